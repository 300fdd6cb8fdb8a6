#include "text/byte_trie.h"

#include <algorithm>
#include <string>

namespace braid {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, int32_t>> members) {
  std::sort(members.begin(), members.end());
  // Breadth first: each node stands for the range of sorted members that share its prefix.
  struct Range {
    size_t begin, end, depth;
    int64_t parent;  // -1: the root
  };
  std::vector<Range> queue{{0, members.size(), 0, -1}};
  for (size_t next = 0; next < queue.size(); ++next) {
    const Range range = queue[next];
    size_t i = range.begin;
    for (; i < range.end && members[i].first.size() == range.depth; ++i)
      if (range.parent >= 0) nodes_[range.parent].value = members[i].second;
    if (range.parent >= 0) nodes_[range.parent].first_child = static_cast<uint32_t>(nodes_.size());
    while (i < range.end) {
      const char label = members[i].first[range.depth];
      size_t end = i + 1;
      while (end < range.end && members[end].first[range.depth] == label) ++end;
      const auto node = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({.label = static_cast<uint8_t>(label)});
      if (range.parent >= 0)
        ++nodes_[range.parent].n_children;
      else
        first_[static_cast<uint8_t>(label)] = node;
      queue.push_back({i, end, range.depth + 1, node});
      i = end;
    }
  }
}

int32_t ByteTrie::child(const Node& node, unsigned char label) const {
  const Node* begin = nodes_.data() + node.first_child;
  const Node* end = begin + node.n_children;
  const Node* at = std::lower_bound(begin, end, label, [](const Node& n, unsigned char l) { return n.label < l; });
  return at != end && at->label == label ? static_cast<int32_t>(at - nodes_.data()) : -1;
}

}  // namespace braid
