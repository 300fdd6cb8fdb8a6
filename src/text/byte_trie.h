// A set of byte strings with a number each, asked for all or the longest of its members that start at a place.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace braid {

class ByteTrie {
 public:
  ByteTrie() = default;
  // Values are not negative; of equal strings the one with the largest counts. Empty strings are left out.
  explicit ByteTrie(std::vector<std::pair<std::string_view, int32_t>> members);

  bool empty() const { return nodes_.empty(); }
  bool may_start_with(char c) const { return first_[static_cast<unsigned char>(c)] >= 0; }

  // Calls found(length, value) for each member that is a prefix of `text`, shortest first.
  template <typename Found>
  void prefixes(std::string_view text, const Found& found) const {
    if (text.empty()) return;
    int32_t node = first_[static_cast<unsigned char>(text[0])];
    for (size_t length = 1; node >= 0; ++length) {
      if (nodes_[node].value >= 0) found(length, nodes_[node].value);
      if (length == text.size()) return;
      node = child(nodes_[node], static_cast<unsigned char>(text[length]));
    }
  }

 private:
  struct Node {
    uint32_t first_child = 0;  // children lie side by side, ordered by label
    int32_t value = -1;
    uint16_t n_children = 0;
    uint8_t label = 0;
  };
  int32_t child(const Node& node, unsigned char label) const;

  std::vector<Node> nodes_;
  std::array<int32_t, 256> first_ = make_empty();  // the root's children, by label
  static constexpr std::array<int32_t, 256> make_empty() {
    std::array<int32_t, 256> none{};
    none.fill(-1);
    return none;
  }
};

}  // namespace braid
