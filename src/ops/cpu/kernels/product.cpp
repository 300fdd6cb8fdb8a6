// Products of rows with packed weight panels: see ProductArgs.
#include "ops/cpu/kernels/product.h"

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/table.h"

namespace braid::BRAID_LEVEL {
namespace {

// One tile's sums, row by row, on their way to an epilogue.
struct TileSums {
  alignas(64) float c[kTileRows][kPanel];
};

template <int R, int NV, typename X, typename W>
BRAID_INLINE void one_slice(float (*c)[kPanel], const X* const* rows, const W* panel, int64_t width, int64_t k) {
  F acc[R][NV];
  clear(acc);
  const X* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = rows[r];
  product_tile<R, NV>(acc, x, panel, width, k);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) store(&c[r][v * kLanes], acc[r][v]);
  }
}

// Adds slices in the tree ((0+1)+(2+3))+... into the first.
template <int R, int NV>
BRAID_INLINE void add_slices(TileSums* slices, int n) {
  for (int step = 1; step < n; step *= 2) {
    for (int s = 0; s + step < n; s += 2 * step) {
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < NV; ++v) {
          float* into = &slices[s].c[r][v * kLanes];
          store(into, load(into) + load(&slices[s + step].c[r][v * kLanes]));
        }
      }
    }
  }
}

template <typename W>
constexpr int64_t rows_of_slice(int64_t k) {
  return sizeof(W) == 4 && !__is_same(W, float) ? (k + 1) / 2 : k;  // pairs, or single values
}

template <int R, int NV, typename X, typename W>
__attribute__((noinline)) void sums(TileSums* slices, const ProductArgs& a, int row) {
  const auto* panel = static_cast<const W*>(a.panel);
  const int64_t k = a.k / a.k_slices;
  for (int s = 0; s < a.k_slices; ++s) {
    const X* x[R];
    for (int r = 0; r < R; ++r) x[r] = static_cast<const X*>(a.x[row + r]) + s * k;
    one_slice<R, NV>(slices[s].c, x, panel + s * rows_of_slice<W>(k) * a.width, a.width, k);
  }
  if (a.k_slices > 1) add_slices<R, NV>(slices, a.k_slices);
}

template <int NV, typename X, typename W>
void sums_of_rows(TileSums* slices, const ProductArgs& a, int row, int rows) {
  switch (rows) {
    case 1:
      return sums<1, NV, X, W>(slices, a, row);
    case 2:
      return sums<2, NV, X, W>(slices, a, row);
    case 3:
      return sums<3, NV, X, W>(slices, a, row);
    case 4:
      return sums<4, NV, X, W>(slices, a, row);
    case 5:
      return sums<5, NV, X, W>(slices, a, row);
    default:
      return sums<6, NV, X, W>(slices, a, row);
  }
}
static_assert(kTileRows == 6 && kTileVectors <= 4);

// Calls epilogue(sums, first row, rows) for all tiles of a's rows.
template <typename X, typename W, typename Epilogue>
BRAID_INLINE void for_each_tile(const ProductArgs& a, Epilogue epilogue) {
  TileSums slices[kMaxSlices];
  const int vectors = a.width / kLanes;
  for (int row = 0; row < a.rows;) {
    const int n = tile_rows(a.rows - row);
    if (vectors == kTileVectors) {
      sums_of_rows<kTileVectors, X, W>(slices, a, row, n);
    } else if (vectors == 1) {
      sums_of_rows<1, X, W>(slices, a, row, n);
    } else if (vectors == 2) {
      sums_of_rows<2, X, W>(slices, a, row, n);
    } else {
      sums_of_rows<kTileVectors == 4 ? 3 : 1, X, W>(slices, a, row, n);
    }
    epilogue(slices[0], row, n);
    row += n;
  }
}

// Stores n floats of a row, of which only the last vector may be partial.
BRAID_INLINE void store_row(void* y, DType type, const float* c, int n) {
  int i = 0;
  if (type == DType::kF32) {
    auto* to = static_cast<float*>(y);
    for (; i + kLanes <= n; i += kLanes) store(to + i, load(c + i));
    for (; i < n; ++i) to[i] = c[i];
  } else {
    auto* to = static_cast<uint16_t*>(y);
    for (; i + kLanes <= n; i += kLanes) store_as<U16>(to + i, to_bf16_bits(load(c + i)));
    if (i < n) {
      const U16 rest = to_bf16_bits(load(c + i));
      for (int j = 0; i + j < n; ++j) to[i + j] = rest[j];
    }
  }
}

template <typename X, typename W>
void product_store(const ProductArgs& a) {
  for_each_tile<X, W>(a, [&](TileSums& sums, int row, int rows) {
    for (int r = 0; r < rows; ++r) {
      if (a.bias) {
        for (int i = 0; i < a.columns; ++i) sums.c[r][i] += a.bias[i];
      }
      store_row(a.y[row + r], a.y_type, sums.c[r], a.columns);
    }
  });
}

template <typename X, typename W>
void product_gated(const ProductArgs& a) {
  for_each_tile<X, W>(a, [&](TileSums& sums, int row, int rows) {
    for (int r = 0; r < rows; ++r) {
      float* c = sums.c[r];
      for (int v = 0; v < a.width / kLanes; v += 2) {
        store(c + v / 2 * kLanes, silu(load(c + v * kLanes)) * load(c + (v + 1) * kLanes));
      }
      store_row(a.y[row + r], a.y_type, c, a.columns);
    }
  });
}

template <typename X, typename W>
void product_accumulate(const ProductArgs& a) {
  for_each_tile<X, W>(a, [&](TileSums& sums, int row, int rows) {
    for (int r = 0; r < rows; ++r) {
      auto* y = static_cast<float*>(a.y[row + r]);
      const F w = broadcast(a.row_weight[row + r]);
      for (int i = 0; i < a.columns; i += kLanes) {
        const float* c = sums.c[r] + i;
        if (i + kLanes <= a.columns) {
          store(y + i, fma(w, load(c), load(y + i)));
          continue;
        }
        F rest{};
        for (int j = 0; i + j < a.columns; ++j) rest[j] = y[i + j];
        rest = fma(w, load(c), rest);
        for (int j = 0; i + j < a.columns; ++j) y[i + j] = rest[j];
      }
    }
  });
}

template <typename X, typename W>
constexpr Kernels::Products products() {
  return {product_store<X, W>, product_gated<X, W>, product_accumulate<X, W>};
}

}  // namespace

void add_products(Kernels& table) {
  table.x_f32_w_f32 = products<float, float>();
  table.x_f32_w_bf16 = products<float, uint32_t>();
#if defined(__AVX512BF16__)
  table.x_bf16_w_bf16 = products<uint16_t, uint32_t>();
#endif
}

}  // namespace braid::BRAID_LEVEL
