// What the two kinds of tiles (product_mma.cu, product_simt.cu) share: which rows a block works on, how a result is
// stored, how slices of K are added.
#pragma once
#include "ops/cuda/device.cuh"
#include "ops/cuda/product.h"

namespace braid::cuda {

enum class ProductKind { kPlain, kSliced, kGated };

// The rows of a block: positions [begin, end) of one batch.
struct TileRows {
  int batch = 0;
  int64_t begin = 0, end = 0;
};

// Block y is a tile of rows; blocks beyond the tiles that exist get an empty range.
template <int kTileRows>
__device__ TileRows tile_rows(const ProductArgs& a) {
  if (!a.groups.n_tiles) {
    const int64_t begin = int64_t{blockIdx.y} * kTileRows;
    return {static_cast<int>(blockIdx.z), begin, min(begin + kTileRows, a.m)};
  }
  if (static_cast<int>(blockIdx.y) >= *a.groups.n_tiles) return {};
  const int expert = a.groups.tile_expert[blockIdx.y];
  const int64_t begin = a.groups.tile_start[blockIdx.y];
  return {expert, begin, min(begin + kTileRows, static_cast<int64_t>(a.groups.end[expert]))};
}

template <typename X>
__device__ const X* x_row(const ProductArgs& a, const TileRows& rows, int64_t position) {
  const int64_t row = a.groups.x_rows ? a.groups.x_rows[position] : position;
  const int64_t batch = a.groups.n_tiles ? 0 : rows.batch * a.x_batch;
  return static_cast<const X*>(a.x) + batch + row * a.x_stride;
}

__device__ inline int64_t y_offset(const ProductArgs& a, const TileRows& rows, int64_t position) {
  const int64_t row = a.groups.y_rows ? a.groups.y_rows[position] : position;
  return (a.groups.n_tiles ? 0 : rows.batch * a.y_batch) + row * a.y_stride;
}

// Column n of a row that starts at `offset`.
__device__ inline void store_product(const ProductArgs& a, int64_t offset, int64_t n, float value) {
  if (a.bias) value += a.bias[n];
  if (a.y_type == DType::kBF16) {
    static_cast<BFloat16*>(a.y)[offset + n] = from_f<BFloat16>(value);
  } else {
    static_cast<float*>(a.y)[offset + n] = value;
  }
}

__device__ inline float gated_value(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

// Adds up sums of slices as they come, in a balanced binary tree: after slice s, the levels at which s has ones are
// complete. The last slice leaves the whole sum in `acc`.
template <int N>
struct SliceTree {
  static constexpr int kLevels = 3;
  float level[kLevels][N];
  __device__ void add(float (&acc)[N], int slice, bool last) {
    bool carrying = true;
#pragma unroll
    for (int l = 0; l < kLevels; ++l) {
      if (!carrying) continue;
      const bool full = slice >> l & 1;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (full) {
          acc[i] = level[l][i] + acc[i];
        } else {
          level[l][i] = acc[i];
        }
      }
      carrying = full;
    }
    if (last) return;
#pragma unroll
    for (int i = 0; i < N; ++i) acc[i] = 0.0f;
  }
};

void product_mma(cudaStream_t, const ProductArgs&);   // bfloat16 x and w
void product_simt(cudaStream_t, const ProductArgs&);  // the rest, in float32

}  // namespace braid::cuda
