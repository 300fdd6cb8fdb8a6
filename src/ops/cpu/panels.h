// How the cpu backend packs a weight [n, k]: columns of the product in panels as wide as a register tile, the last one
// only as wide as it must be; within a panel k runs outermost, in bfloat16 two at a time: [k / 2][width][2]. Every
// slice of k starts on its own (an odd slice is padded by half a pair). Which panel a column lies in does not change
// its bits.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/cpu/kernels.h"

namespace braid {

struct PanelLayout {
  int64_t n = 0, k = 0;  // n: columns, padding within included
  int k_slices = 1;
  DType stored = DType::kF32;
  int panel = 0, lanes = 0;

  int64_t n_panels() const { return (n + panel - 1) / panel; }
  int columns(int64_t p) const { return static_cast<int>(std::min<int64_t>(panel, n - p * panel)); }
  int width(int64_t p) const { return (columns(p) + lanes - 1) / lanes * lanes; }
  int64_t slice_k() const { return k / k_slices; }
  int64_t stored_slice_k() const { return stored == DType::kBF16 ? (slice_k() + 1) / 2 * 2 : slice_k(); }
  int64_t stored_k() const { return stored_slice_k() * k_slices; }
  int64_t offset(int64_t p) const { return p * panel * stored_k(); }  // elements
  int64_t size() const { return n_panels() == 0 ? 0 : offset(n_panels() - 1) + width(n_panels() - 1) * stored_k(); }
};

// Packs: column(c) points to the k weights of column c, or is null for a column of zeros.
template <typename T, typename Column>
void pack_panels(T* to, const PanelLayout& layout, const Column& column) {
  const int64_t slice = layout.slice_k(), stored = layout.stored_slice_k();
  const int pair = layout.stored == DType::kBF16 ? 2 : 1;
  std::fill(to, to + layout.size(), T{});
  for (int64_t p = 0; p < layout.n_panels(); ++p) {
    T* panel = to + layout.offset(p);
    const int width = layout.width(p);
    for (int c = 0; c < layout.columns(p); ++c) {
      const T* from = column(p * layout.panel + c);
      if (!from) continue;
      for (int s = 0; s < layout.k_slices; ++s) {
        for (int64_t i = 0; i < slice; ++i) {
          const int64_t at = s * stored + i;
          panel[(at / pair * width + c) * pair + at % pair] = from[s * slice + i];
        }
      }
    }
  }
}

}  // namespace braid
