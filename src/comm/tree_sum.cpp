// The tree is walked once per block of 1024 floats, so that partial sums stay in the first-level cache.
#include "comm/tree_sum.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace braid {
namespace {

constexpr int64_t kBlock = 1024;  // floats
constexpr int kMaxDepth = 24;     // of scratch blocks: two per level of the tree

void cover(int lo, int hi, int begin, int end, std::vector<TreeNode>& nodes) {
  if (hi <= begin || end <= lo) return;
  if (begin <= lo && hi <= end) {
    nodes.push_back({lo, hi});
    return;
  }
  const int mid = tree_split(lo, hi);
  cover(lo, mid, begin, end, nodes);
  cover(mid, hi, begin, end, nodes);
}

}  // namespace

int tree_split(int lo, int hi) {
  int half = 1;
  while (half * 2 < hi - lo) half *= 2;
  return lo + half;
}

std::vector<TreeNode> tree_cover(int size, int begin, int end) {
  std::vector<TreeNode> nodes;
  cover(0, size, begin, end, nodes);
  return nodes;
}

const float* TreeSum::find(TreeNode node) const {
  for (const Known& k : known_) {
    if (k.node == node) return k.values;
  }
  return nullptr;
}

// The node's values [at, at + n): where they lie if known, else summed into scratch.
const float* TreeSum::block(TreeNode node, int64_t at, int64_t n, float* scratch) const {
  if (const float* values = find(node)) return values + at;
  BRAID_CHECK(node.hi - node.lo >= 2, "no values for rank {}", node.lo);
  const int mid = tree_split(node.lo, node.hi);
  const float* a = block({node.lo, mid}, at, n, scratch);
  const float* b = block({mid, node.hi}, at, n, scratch + kBlock);
  for (int64_t i = 0; i < n; ++i) scratch[i] = a[i] + b[i];
  return scratch;
}

void TreeSum::add(TreeNode node, int64_t n, std::span<float* const> outs) const {
  alignas(64) float scratch[kBlock * kMaxDepth];
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t count = std::min(kBlock, n - at);
    const float* sum = block(node, at, count, scratch);
    for (float* out : outs) {
      if (sum != out + at) std::memcpy(out + at, sum, static_cast<size_t>(count) * sizeof(float));
    }
  }
}

}  // namespace braid
