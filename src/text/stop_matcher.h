// Finds stop strings in a text that comes in parts. The stop string that is complete first counts (of several that end
// at one byte the longest), so that the answer does not depend on how the text was cut.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct StopMatch {
  size_t index;  // which of the stop strings
  size_t end;    // bytes of the fed part up to the end of the match
};

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // empty ones never match

  // Feeds a part; stops behind the first match.
  std::optional<StopMatch> feed(std::string_view part);
  // How many of the bytes fed last may be the start of a stop string.
  size_t held() const;
  const std::string& stop(size_t index) const { return needles_[index].text; }

 private:
  struct Needle {  // Knuth-Morris-Pratt: fallback[n] is the longest proper border of the first n bytes
    std::string text;
    std::vector<size_t> fallback;
    size_t matched = 0;
  };
  std::vector<Needle> needles_;
};

}  // namespace braid
