// Products of rows with packed weight panels: see ProductArgs.
#include "ops/cpu/kernels/product.h"

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/coded.h"
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

struct Coded {};  // as a type of weights

constexpr int kBlockTiles = 16;          // a group's codes are widened once for that many
constexpr int kTileRowsInRegisters = 4;  // of tiles that take the codes straight into registers
constexpr int kFewRows = 8;              // for up to so many rows that costs less than a widened copy
constexpr int kMaxGroup = 128;

// Rows [row, row + rows) of a block, tile by tile.
struct TileRows {
  int row, rows;
};

// sums += one group's share, scaled. `widened`: its codes as bfloat16 pairs, or null.
template <int R, int NV, typename X>
__attribute__((noinline)) void group_sums(TileSums& sums, const void* const* rows, int64_t first, int64_t k,
                                          const uint8_t* group, const uint32_t* widened, const CodeReader& reader,
                                          bool fresh) {
  const X* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = static_cast<const X*>(rows[r]) + first;
  F acc[R][NV];
  clear(acc);
  if (widened) {
    product_tile<R, NV>(acc, x, widened, NV * kLanes, k);
  } else if constexpr (R <= kTileRowsInRegisters) {
    coded_tile<R, NV>(acc, x, group + NV * kLanes * sizeof(float), k, reader);
  }
#pragma GCC unroll 8
  for (int v = 0; v < NV; ++v) {
    const F scale = load_as<F>(group + v * sizeof(F));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      float* sum = &sums.c[r][v * kLanes];
      store(sum, fresh ? scale * acc[r][v] : fma(scale, acc[r][v], load(sum)));
    }
  }
}

template <int NV, typename X>
BRAID_INLINE void group_sums_of_rows(TileSums& sums, const void* const* rows, int n, int64_t first, int64_t k,
                                     const uint8_t* group, const uint32_t* widened, const CodeReader& reader,
                                     bool fresh) {
  switch (n) {
    case 1:
      return group_sums<1, NV, X>(sums, rows, first, k, group, widened, reader, fresh);
    case 2:
      return group_sums<2, NV, X>(sums, rows, first, k, group, widened, reader, fresh);
    case 3:
      return group_sums<3, NV, X>(sums, rows, first, k, group, widened, reader, fresh);
    case 4:
      return group_sums<4, NV, X>(sums, rows, first, k, group, widened, reader, fresh);
    case 5:
      return group_sums<5, NV, X>(sums, rows, first, k, group, widened, reader, fresh);
    default:
      return group_sums<6, NV, X>(sums, rows, first, k, group, widened, reader, fresh);
  }
}

// The sums of all tiles of a block: tile t's of slice s at sums[t * k_slices + s].
template <int NV, typename X>
void block_sums(TileSums* sums, const ProductArgs& a, const TileRows* tiles, int n_tiles, bool widen) {
  alignas(64) uint32_t buffer[kMaxGroup / 2 * NV * kLanes];
  const CodeReader reader = CodeReader::of(*a.codes);
  const auto* group = static_cast<const uint8_t*>(a.panel);
  const int64_t slice = a.k / a.k_slices;
  for (int s = 0; s < a.k_slices; ++s) {
    for (int64_t first = 0; first < slice; first += a.group) {
      const int64_t k = first + a.group < slice ? a.group : slice - first;
      if (widen) widen_codes(buffer, group + a.width * sizeof(float), NV, k, reader);
      for (int t = 0; t < n_tiles; ++t) {
        group_sums_of_rows<NV, X>(sums[t * a.k_slices + s], a.x + tiles[t].row, tiles[t].rows, s * slice + first, k,
                                  group, widen ? buffer : nullptr, reader, first == 0);
      }
      group += a.width * (static_cast<int64_t>(sizeof(float)) + code_bytes(k));
    }
  }
  if (a.k_slices == 1) return;
  for (int t = 0; t < n_tiles; ++t) add_slices<kTileRows, NV>(sums + t * a.k_slices, a.k_slices);
}

template <typename X, typename Epilogue>
BRAID_INLINE void for_each_coded_tile(const ProductArgs& a, Epilogue epilogue) {
  TileSums sums[kBlockTiles * kMaxSlices];
  const int vectors = a.width / kLanes, most = kBlockTiles * kTileRows;
  const int blocks = (a.rows + most - 1) / most;
  for (int b = 0; b < blocks; ++b) {
    const int end = a.rows * (b + 1) / blocks;
    TileRows tiles[kBlockTiles];
    int n_tiles = 0;
    int row = a.rows * b / blocks;
    const bool widen = end - row > kFewRows;
    for (; row < end; ++n_tiles) {
      const int few = (end - row + kTileRowsInRegisters - 1) / kTileRowsInRegisters;
      tiles[n_tiles] = {row, widen ? tile_rows(end - row) : (end - row + few - 1) / few};
      row += tiles[n_tiles].rows;
    }
    if (vectors == kTileVectors) {
      block_sums<kTileVectors, X>(sums, a, tiles, n_tiles, widen);
    } else if (vectors == 1) {
      block_sums<1, X>(sums, a, tiles, n_tiles, widen);
    } else if (vectors == 2) {
      block_sums<2, X>(sums, a, tiles, n_tiles, widen);
    } else {
      block_sums<kTileVectors == 4 ? 3 : 1, X>(sums, a, tiles, n_tiles, widen);
    }
    for (int t = 0; t < n_tiles; ++t) epilogue(sums[t * a.k_slices], tiles[t].row, tiles[t].rows);
  }
}

template <typename X, typename W, typename Epilogue>
BRAID_INLINE void for_each_plain_tile(const ProductArgs& a, Epilogue epilogue) {
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

// Calls epilogue(sums, first row, rows) for all tiles of a's rows.
template <typename X, typename W, typename Epilogue>
BRAID_INLINE void for_each_tile(const ProductArgs& a, Epilogue epilogue) {
  if constexpr (__is_same(W, Coded)) {
    for_each_coded_tile<X>(a, epilogue);
  } else {
    for_each_plain_tile<X, W>(a, epilogue);
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
  table.x_f32_coded = products<float, Coded>();
  for (int k = 0; k < 4; ++k) {
    for (int lane = 0; lane < kLanes; ++lane)
      table.code_places[k * kLanes + lane] = static_cast<uint8_t>(code_place(k, lane));
  }
#if defined(__AVX512BF16__)
  table.x_bf16_w_bf16 = products<uint16_t, uint32_t>();
  table.x_bf16_coded = products<uint16_t, Coded>();
#endif
}

}  // namespace braid::BRAID_LEVEL
