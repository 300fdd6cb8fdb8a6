// Sums of float32 vectors over the ranks of a group in one fixed order, whoever adds them. The order is a binary tree
// over [0, size): a node [lo, hi) of more than one rank is the sum of [lo, mid) and [mid, hi), where mid - lo is the
// largest power of two below hi - lo. So 8 ranks give ((0+1)+(2+3))+((4+5)+(6+7)), 6 give ((0+1)+(2+3))+(4+5), and
// 3 give (0+1)+2. A process that holds several ranks may send the sum of a whole node instead of its ranks' vectors;
// the bits stay the same.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace braid {

struct TreeNode {
  int lo = 0, hi = 0;
  bool operator==(const TreeNode&) const = default;
};

int tree_split(int lo, int hi);  // mid of [lo, hi), hi - lo >= 2

// The fewest nodes of the tree over [0, size) that make up [begin, end), ascending.
std::vector<TreeNode> tree_cover(int size, int begin, int end);

// Adds n floats per known node: set() says where a node's vector lies, add() evaluates a node from the largest known
// nodes below it. An out may be one of the inputs (outs are written block by block, after their reading).
class TreeSum {
 public:
  explicit TreeSum(int size) : size_(size) {}
  void set(TreeNode node, const float* values) { known_.push_back({node, values}); }
  void add(TreeNode node, int64_t n, std::span<float* const> outs) const;  // the same sum to every out
  void add(int64_t n, float* out) const { add({0, size_}, n, std::span<float* const>(&out, 1)); }

 private:
  struct Known {
    TreeNode node;
    const float* values;
  };
  const float* find(TreeNode node) const;
  const float* block(TreeNode node, int64_t at, int64_t n, float* scratch) const;

  int size_;
  std::vector<Known> known_;
};

}  // namespace braid
