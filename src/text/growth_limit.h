// Steps that replace text can be chained in a tokenizer.json so that each multiplies the last one's output. No honest
// file comes near this limit.
#pragma once
#include <cstddef>

#include "base/error.h"

namespace braid {

inline constexpr size_t kMaxTextBytes = size_t{64} << 20;

inline void check_growth(size_t n_bytes) {
  if (n_bytes > kMaxTextBytes) throw Error("the tokenizer makes more than {} bytes of one text", kMaxTextBytes);
}

}  // namespace braid
