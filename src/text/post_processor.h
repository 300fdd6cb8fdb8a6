// The post-processors of tokenizer.json, as far as they matter for one sequence: the ids put around the text's own.
#pragma once
#include <cstdint>
#include <vector>

#include "base/json.h"

namespace braid {

struct Surround {
  std::vector<int32_t> before, after;
};

Surround make_post_processor(const Json& config);  // null: nothing around. Throws Error.

}  // namespace braid
