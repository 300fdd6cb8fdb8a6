// The register tile: up to kTileRows rows of x times up to kTileVectors vectors of a panel's columns, each element one
// chain over k in ascending order. Whatever rows share a tile, an element's chain is the same.
#pragma once
#include "ops/cpu/kernels/vec.h"

namespace braid::BRAID_LEVEL {

// Register by register: the compiler clears a whole array in memory.
template <int R, int NV>
BRAID_INLINE void clear(F (&acc)[R][NV]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[r][v] = F{};
  }
}

// acc[r][v] += sum over k of x[r][k] * panel[k * width + v * kLanes + lane]
template <int R, int NV>
BRAID_INLINE void product_tile(F (&acc)[R][NV], const float* const (&x)[R], const float* panel, int64_t width,
                               int64_t k) {
  for (int64_t i = 0; i < k; ++i) {
    F w[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) w[v] = load(panel + i * width + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F xr = broadcast(x[r][i]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] = fma(xr, w[v], acc[r][v]);
    }
  }
}

// One of two consecutive k of a panel of bfloat16 pairs.
template <int R, int NV>
BRAID_INLINE void product_step(F (&acc)[R][NV], const float* const (&x)[R], int64_t i, const F (&w)[NV]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const F xr = broadcast(x[r][i]);
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[r][v] = fma(xr, w[v], acc[r][v]);
  }
}

// The panel holds pairs of bfloat16, k even in the low half.
template <int R, int NV>
BRAID_INLINE void product_tile(F (&acc)[R][NV], const float* const (&x)[R], const uint32_t* panel, int64_t width,
                               int64_t k) {
  F w[NV];
  for (int64_t i = 0; i + 1 < k; i += 2, panel += width) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) w[v] = (F)(load_as<U>(panel + v * kLanes) << 16);
    product_step(acc, x, i, w);
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) w[v] = (F)(load_as<U>(panel + v * kLanes) & 0xffff0000u);
    product_step(acc, x, i + 1, w);
  }
  if (k % 2) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) w[v] = (F)(load_as<U>(panel + v * kLanes) << 16);
    product_step(acc, x, k - 1, w);
  }
}

#if defined(__AVX512BF16__)
// Both in bfloat16: one instruction adds the products of a pair.
template <int R, int NV>
BRAID_INLINE void product_tile(F (&acc)[R][NV], const uint16_t* const (&x)[R], const uint32_t* panel, int64_t width,
                               int64_t k) {
  for (int64_t i = 0; i < k; i += 2, panel += width) {
    __m512bh w[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) w[v] = (__m512bh)load_as<U>(panel + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      int pair;
      if (i + 1 < k) {
        __builtin_memcpy(&pair, x[r] + i, 4);
      } else {
        pair = x[r][i];  // an odd k ends with half a pair
      }
      const __m512bh xr = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], xr, w[v]);
    }
  }
}
#endif

// Rows of the next tile when `rows` are left: as even as possible, since a tile of one or two rows costs nearly as much
// as a full one.
BRAID_INLINE int tile_rows(int rows) {
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  return (rows + tiles - 1) / tiles;
}

}  // namespace braid::BRAID_LEVEL
