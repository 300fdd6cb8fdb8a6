// y = x w^T, plain, per head or per expert, by our own tiles: one order of summation whatever the number of rows.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/tensor.h"

namespace braid::cuda {

// Rows of x and y in tiles that belong to one expert each; made on the device (moe.cu).
struct RowGroups {
  const int32_t* n_tiles = nullptr;      // [1]; null: no groups
  const int32_t* tile_expert = nullptr;  // [tiles] counted from this rank's first expert
  const int32_t* tile_start = nullptr;   // [tiles] first position
  const int32_t* end = nullptr;          // [experts] one past the expert's last position
  const int32_t* x_rows = nullptr;       // [positions] row of x; null: the position itself
  const int32_t* y_rows = nullptr;       // [positions] row of y; null: the position itself
  int most_tiles = 0;                    // bound known on the host
  int tile_rows = 0;                     // positions in a tile, as product_tile_rows() chose
};

struct ProductArgs {
  const void* x = nullptr;
  const void* w = nullptr;  // [batches, n, k], or [batches, 2 n, k] when gated: n gate rows, then n up rows
  void* y = nullptr;
  const float* bias = nullptr;  // [n]
  DType x_type = DType::kF32, w_type = DType::kF32, y_type = DType::kF32;
  int64_t x_stride = 0, y_stride = 0;  // from row to row
  int64_t x_batch = 0, y_batch = 0;    // from batch to batch
  int64_t m = 0, n = 0, k = 0;
  int batches = 1;     // heads
  int k_slices = 1;    // a power of two up to 8: K cut in equal slices, their sums added in a balanced tree
  bool gated = false;  // y = silu(x gate^T) * (x up^T), rounded to y's type
  RowGroups groups;
};

// Rows of a tile where a batch has about `rows` rows: few while weights are what is waited for.
int product_tile_rows(DType x, DType w, int k_slices, int64_t rows);
void product(cudaStream_t, const ProductArgs&);

// For up to 16 rows, or groups in tiles of kNarrowTileRows, in the default mode: weights at the memory's speed.
inline constexpr int kNarrowTileRows = 8;
bool product_narrow_takes(const ProductArgs&);
void product_narrow(cudaStream_t, const ProductArgs&);

}  // namespace braid::cuda
