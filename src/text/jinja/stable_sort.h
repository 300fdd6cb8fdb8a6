// A stable sort whose comparator may throw, charge the budget, or be inconsistent (NaN): it then ends in some order.
// std::stable_sort is not used because libstdc++ 12's needs a function that newer clangs reject as deprecated.
#pragma once
#include <algorithm>
#include <iterator>
#include <vector>

namespace braid {

template <typename T, typename Less>
void stable_merge_sort(std::vector<T>& items, Less less) {
  std::vector<T> merged;
  merged.reserve(items.size());
  for (size_t width = 1; width < items.size(); width *= 2) {
    merged.clear();
    for (size_t begin = 0; begin < items.size(); begin += 2 * width) {
      const auto at = [&](size_t i) { return items.begin() + static_cast<std::ptrdiff_t>(std::min(i, items.size())); };
      std::merge(std::make_move_iterator(at(begin)), std::make_move_iterator(at(begin + width)),
                 std::make_move_iterator(at(begin + width)), std::make_move_iterator(at(begin + 2 * width)),
                 std::back_inserter(merged), [&](const T& a, const T& b) { return less(a, b); });
    }
    items.swap(merged);
  }
}

}  // namespace braid
