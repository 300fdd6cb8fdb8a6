// How the cpu backend packs a weight [n, k]: columns of the product in panels as wide as a register tile, the last one
// only as wide as it must be; within a panel k runs outermost, in bfloat16 two at a time: [k / 2][width][2]. Every
// slice of k starts on its own (an odd slice is padded by half a pair). Which panel a column lies in does not change
// its bits.
//
// Eight-bit weights lie group after group, read as one stream: the group's scales, float32 [width], then its codes four
// k at a time: [ceil(k / 4)][width / lanes][4 * lanes], the order within a block being the level's
// (Kernels::code_places).
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "ops/cpu/kernels.h"
#include "ops/weight_format.h"

namespace braid {

struct PanelLayout {
  int64_t n = 0, k = 0;  // n: columns, padding within included
  int k_slices = 1;
  WeightFormat stored;
  int panel = 0, lanes = 0;

  DType element() const { return stored.scaled() ? DType::kU8 : stored.type; }  // of the packed memory
  int64_t n_panels() const { return (n + panel - 1) / panel; }
  int columns(int64_t p) const { return static_cast<int>(std::min<int64_t>(panel, n - p * panel)); }
  int width(int64_t p) const { return (columns(p) + lanes - 1) / lanes * lanes; }
  int64_t slice_k() const { return k / k_slices; }
  int64_t group_k(int64_t g) const { return std::min<int64_t>(stored.group, slice_k() - g * stored.group); }
  // Elements of packed memory that a column takes.
  int64_t stored_slice_k() const {
    if (stored.scaled()) {
      const int64_t groups = stored.groups(slice_k());
      const auto full = static_cast<int64_t>(sizeof(float)) + code_bytes(stored.group);
      return groups == 0 ? 0 : groups * full - code_bytes(stored.group) + code_bytes(group_k(groups - 1));
    }
    return stored.type == DType::kBF16 ? (slice_k() + 1) / 2 * 2 : slice_k();
  }
  int64_t stored_k() const { return stored_slice_k() * k_slices; }
  int64_t offset(int64_t p) const { return p * panel * stored_k(); }  // elements
  int64_t size() const { return n_panels() == 0 ? 0 : offset(n_panels() - 1) + width(n_panels() - 1) * stored_k(); }
};

inline void set_codes(ProductArgs& a, const WeightFormat& stored) {
  if (!stored.scaled()) return;
  a.group = stored.group;
  a.codes = &code_book(stored.type);
}

// Packs: column(c) points to the k weights of column c, or is null for a column of zeros.
template <typename T, typename Column>
void pack_panels(T* to, const PanelLayout& layout, const Column& column) {
  const int64_t slice = layout.slice_k(), stored = layout.stored_slice_k();
  const int pair = layout.stored.type == DType::kBF16 ? 2 : 1;
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

// A column's elements and scales; nulls: zeros.
struct CodedColumn {
  const uint8_t* elements = nullptr;
  const float* scales = nullptr;
};

template <typename Column>
void pack_codes(uint8_t* to, const PanelLayout& layout, const CodeBook& book, const uint8_t* places,
                const Column& column) {
  std::memset(to, 0, static_cast<size_t>(layout.size()));
  const int64_t groups = layout.stored.groups(layout.slice_k());
  const int lanes = layout.lanes;
  for (int64_t p = 0; p < layout.n_panels(); ++p) {
    const int width = layout.width(p);
    for (int c = 0; c < layout.columns(p); ++c) {
      const CodedColumn from = column(p * layout.panel + c);
      if (!from.elements) continue;
      uint8_t* group = to + layout.offset(p);
      const uint8_t* element = from.elements;
      for (int64_t g = 0; g < layout.k_slices * groups; ++g) {
        const int64_t k = layout.group_k(g % groups);
        float scale = from.scales[g] * book.unit;
        uint8_t* codes = group + width * static_cast<int>(sizeof scale) + c / lanes * 4 * lanes;
        for (int64_t i = 0; i < k; ++i, ++element) {
          codes[i / 4 * 4 * width + places[i % 4 * lanes + c % lanes]] = book.code[*element];
          if (book.nan[*element]) scale = std::numeric_limits<float>::quiet_NaN();
        }
        std::memcpy(group + static_cast<size_t>(c) * sizeof scale, &scale, sizeof scale);
        group += width * (static_cast<int64_t>(sizeof scale) + code_bytes(k));
      }
    }
  }
}

}  // namespace braid
