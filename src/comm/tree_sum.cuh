// The tree of tree_sum.h for device code: leaves come in rank order, and equal halves are added as soon as both are there.
#pragma once

namespace braid {

inline constexpr int kTreeDepth = 16;  // up to 2^16 leaves

template <typename Leaf>
__device__ float tree_sum(int size, Leaf leaf) {
  float halves[kTreeDepth];
  int n = 0;
  for (int i = 0; i < size; ++i) {
    float v = leaf(i);
    for (int k = i + 1; k % 2 == 0; k /= 2) v = __fadd_rn(halves[--n], v);
    halves[n++] = v;
  }
  float sum = halves[--n];
  while (n > 0) sum = __fadd_rn(halves[--n], sum);
  return sum;
}

}  // namespace braid
