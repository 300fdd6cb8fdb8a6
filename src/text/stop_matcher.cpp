#include "text/stop_matcher.h"

#include <algorithm>

namespace braid {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    Needle needle{std::move(text), {0, 0}, 0};
    for (size_t i = 1; i < needle.text.size(); ++i) {
      size_t border = needle.fallback[i];
      while (border > 0 && needle.text[border] != needle.text[i]) border = needle.fallback[border];
      needle.fallback.push_back(border + (needle.text[border] == needle.text[i] ? 1 : 0));
    }
    needles_.push_back(std::move(needle));
  }
}

std::optional<StopMatch> StopMatcher::feed(std::string_view part) {
  for (size_t i = 0; i < part.size(); ++i) {
    std::optional<size_t> found;
    for (size_t n = 0; n < needles_.size(); ++n) {
      Needle& needle = needles_[n];
      if (needle.text.empty()) continue;
      while (needle.matched > 0 && needle.text[needle.matched] != part[i])
        needle.matched = needle.fallback[needle.matched];
      if (needle.text[needle.matched] == part[i]) ++needle.matched;
      if (needle.matched == needle.text.size() && (!found || needle.text.size() > needles_[*found].text.size()))
        found = n;
    }
    if (found) return StopMatch{*found, i + 1};
  }
  return std::nullopt;
}

size_t StopMatcher::held() const {
  size_t most = 0;
  for (const Needle& needle : needles_) most = std::max(most, needle.matched);
  return most;
}

}  // namespace braid
