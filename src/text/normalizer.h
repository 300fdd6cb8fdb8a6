// The normalizers of tokenizer.json: what is done to text before it is cut into words.
#pragma once
#include <memory>
#include <string>

#include "base/json.h"

namespace braid {

// Text together with the one thing that is remembered of where it came from: whether it begins where the input began
// (Metaspace's "first" asks for that), and how many of its leading bytes stem from the input's first character.
struct NormalText {
  std::string text;
  bool at_start = true;
  size_t start_bytes = 0;
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void normalize(NormalText& t) const = 0;
};

std::unique_ptr<const Normalizer> make_normalizer(const Json& config);  // throws Error; null config gives null

}  // namespace braid
