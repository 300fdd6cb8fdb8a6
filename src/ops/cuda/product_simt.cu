// Products in float32 on the ordinary units: a block computes 64 x 64 results, a thread 4 x 4 of them, K in ascending
// order.
#include "ops/cuda/product.cuh"

namespace braid::cuda {
namespace {

constexpr int kTile = 64, kDepth = 16, kThreads = 256, kPad = 4;

template <typename X, typename W, ProductKind kind>
__global__ __launch_bounds__(kThreads) void simt_kernel(ProductArgs a) {
  begin_after_previous();
  constexpr bool gated = kind == ProductKind::kGated;
  __shared__ float xs[kDepth][kTile + kPad], ws[kDepth][kTile + kPad];
  const TileRows rows = tile_rows<kTile>(a);
  if (rows.begin >= rows.end) return;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  // What this thread loads: four consecutive k of one row of x and one of w.
  const int load_row = threadIdx.x / 4, load_k = threadIdx.x % 4 * 4;
  const int64_t n0 = int64_t{blockIdx.x} * (gated ? kTile / 2 : kTile);
  const X* x = rows.begin + load_row < rows.end ? x_row<X>(a, rows, rows.begin + load_row) : nullptr;
  const int64_t n_load = gated ? n0 + load_row % (kTile / 2) : n0 + load_row;
  const int64_t w_rows = gated ? 2 * a.n : a.n;
  const W* w = n_load < a.n ? static_cast<const W*>(a.w) + (rows.batch * w_rows + n_load +
                                                            (gated && load_row >= kTile / 2 ? a.n : 0)) * a.k
                            : nullptr;
  float acc[16] = {};
  SliceTree<16> tree;
  const int64_t length = a.k / a.k_slices;
  for (int slice = 0; slice < a.k_slices; ++slice) {
    const int64_t end = (slice + 1) * length;
    for (int64_t k0 = slice * length; k0 < end; k0 += kDepth) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t k = k0 + load_k + i;
        xs[load_k + i][load_row] = x && k < end ? to_f(x[k]) : 0.0f;
        ws[load_k + i][load_row] = w && k < end ? to_f(w[k]) : 0.0f;
      }
      __syncthreads();
      const int depth = static_cast<int>(min(int64_t{kDepth}, end - k0));
      for (int k = 0; k < depth; ++k) {
        float xv[4], wv[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) xv[i] = xs[k][ty * 4 + i];
#pragma unroll
        for (int j = 0; j < 4; ++j) wv[j] = ws[k][gated ? j / 2 * (kTile / 2) + tx * 2 + j % 2 : tx * 4 + j];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) acc[i * 4 + j] = fmaf(xv[i], wv[j], acc[i * 4 + j]);
        }
      }
    }
    if constexpr (kind == ProductKind::kSliced) tree.add(acc, slice, slice + 1 == a.k_slices);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t position = rows.begin + ty * 4 + i;
    if (position >= rows.end) continue;
    const int64_t offset = y_offset(a, rows, position);
    if constexpr (gated) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int64_t n = n0 + tx * 2 + j;
        if (n < a.n) store_product(a, offset, n, gated_value(acc[i * 4 + j], acc[i * 4 + 2 + j]));
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t n = n0 + tx * 4 + j;
        if (n < a.n) store_product(a, offset, n, acc[i * 4 + j]);
      }
    }
  }
}

template <typename X, typename W>
void launch_types(cudaStream_t stream, const ProductArgs& a) {
  const auto kernel = a.gated          ? simt_kernel<X, W, ProductKind::kGated>
                      : a.k_slices > 1 ? simt_kernel<X, W, ProductKind::kSliced>
                                       : simt_kernel<X, W, ProductKind::kPlain>;
  const unsigned row_tiles =
      a.groups.n_tiles ? static_cast<unsigned>(a.groups.most_tiles) : blocks_for(a.m, kTile);
  const dim3 grid(blocks_for(a.n, a.gated ? kTile / 2 : kTile), row_tiles, static_cast<unsigned>(a.batches));
  launch(stream, kernel, grid, kThreads, 0, a);
  CUDA_CHECK_LAUNCH("product_simt");
}

}  // namespace

void product_simt(cudaStream_t stream, const ProductArgs& a) {
  if (a.x_type == DType::kF32) {
    a.w_type == DType::kF32 ? launch_types<float, float>(stream, a) : launch_types<float, BFloat16>(stream, a);
  } else {
    launch_types<BFloat16, float>(stream, a);
  }
}

int product_tile_rows(DType x, DType w, int k_slices, int64_t rows) {
  if (x != DType::kBF16 || w != DType::kBF16) return kTile;
  return rows <= 16 ? 16 : rows <= 96 || k_slices > 1 ? kTile : 128;
}

void product(cudaStream_t stream, const ProductArgs& a) {
  a.x_type == DType::kBF16 && a.w_type == DType::kBF16 ? product_mma(stream, a) : product_simt(stream, a);
}

}  // namespace braid::cuda
