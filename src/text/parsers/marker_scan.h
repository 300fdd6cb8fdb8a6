// Looking for markers in text that arrives in pieces.
#pragma once
#include <algorithm>
#include <span>
#include <string_view>

namespace braid {

struct MarkerHit {
  size_t at = std::string_view::npos;  // npos: none is whole
  size_t which = 0;
  bool found() const { return at != std::string_view::npos; }
};

// The first marker in `text` at or after `from`; of two at one place the longer.
inline MarkerHit find_marker(std::string_view text, std::span<const std::string_view> markers, size_t from = 0) {
  MarkerHit hit;
  for (size_t i = 0; i < markers.size(); ++i) {
    const size_t at = text.find(markers[i], from);
    const bool first = at < hit.at || (at == hit.at && hit.found() && markers[i].size() > markers[hit.which].size());
    if (first) hit = {at, i};
  }
  return hit;
}

// How many bytes at the end of `text` may be the beginning of a marker.
inline size_t possible_marker_suffix(std::string_view text, std::span<const std::string_view> markers) {
  size_t held = 0;
  for (const std::string_view marker : markers)
    for (size_t n = std::min(marker.size() - 1, text.size()); n > held; --n)
      if (text.ends_with(marker.substr(0, n))) {
        held = n;
        break;
      }
  return held;
}

}  // namespace braid
