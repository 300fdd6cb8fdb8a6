// Products of a few rows of bfloat16, where weights are read once and nothing else counts: a block takes 16 rows of w
// and cuts K among its warps, whose loads are all under way together and, where w is known, before the kernel in front
// has ended. Sums of warps are added in a fixed order, another one than that of the large tiles. Gated: the upper eight
// rows of w are up rows.
#include "ops/cuda/narrow.cuh"
#include "ops/cuda/product.cuh"

namespace braid::cuda {
namespace {

// kEights: eights of rows of x; kFull: all of them are there.
template <int kEights, int kWarps, bool kGated, bool kFull>
__global__ __launch_bounds__(kWarps* kWarp, 16 / kWarps) void narrow_kernel(ProductArgs a) {
  __shared__ NarrowSums<kEights, kWarps> sums;
  const bool grouped = a.groups.n_tiles != nullptr;
  if (grouped) begin_after_previous();  // it says which weights are read
  const TileRows rows = tile_rows<8 * kEights>(a);
  if (rows.begin >= rows.end) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, q = lane % 4;
  const int64_t n0 = int64_t{blockIdx.x} * (kGated ? 8 : kNarrowRowsOfW);
  const BFloat16* w = static_cast<const BFloat16*>(a.w) + rows.batch * (kGated ? 2 * a.n : a.n) * a.k + q * 8;
  // Rows beyond the last are read again and not stored.
  const BFloat16* w_low = w + min(n0 + g, a.n - 1) * a.k;
  const BFloat16* w_high = w + (kGated ? a.n + min(n0 + g, a.n - 1) : min(n0 + g + 8, a.n - 1)) * a.k;
  const int chunks = static_cast<int>(a.k / kNarrowDepth);
  NarrowChunk ahead[kNarrowAhead];
  auto load = [&](NarrowChunk& to, int c) {
    if (c < chunks) to.load(w_low + c * kNarrowDepth, w_high + c * kNarrowDepth);
  };
#pragma unroll
  for (int i = 0; i < kNarrowAhead; ++i) load(ahead[i], warp + i * kWarps);
  if (!grouped) begin_after_previous();
  const BFloat16* x[kEights];
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const int64_t row = rows.begin + e * 8 + g;
    x[e] = kFull || row < rows.end ? x_row<BFloat16>(a, rows, row) + q * 8 : nullptr;
  }

  float acc[kEights][4] = {};
  for (int c0 = warp; c0 < chunks; c0 += kWarps * kNarrowAhead) {
#pragma unroll
    for (int i = 0; i < kNarrowAhead; ++i) {
      const int c = c0 + i * kWarps;
      if (c >= chunks) break;
      multiply_narrow<kEights, kFull>(acc, ahead[i], x, int64_t{c} * kNarrowDepth);
      load(ahead[i], c + kWarps * kNarrowAhead);
    }
  }
  sums.put(acc);
  __syncthreads();
  constexpr int columns = kGated ? 8 : kNarrowRowsOfW;
  for (int i = threadIdx.x; i < columns * 8 * kEights; i += kWarps * kWarp) {
    const int column = i % columns, row = i / columns;
    if (n0 + column >= a.n || rows.begin + row >= rows.end) continue;
    const float value = kGated ? gated_value(sums.total(column, row), sums.total(column + 8, row)) : sums.total(column, row);
    store_product(a, y_offset(a, rows, rows.begin + row), n0 + column, value);
  }
}

template <int kEights, int kWarps>
void launch_narrow(cudaStream_t stream, const ProductArgs& a, dim3 grid) {
  const bool full = kWarps == 4 && !a.groups.n_tiles && a.m == 8 * kEights;  // slower, measured, in small products
  const auto kernel = a.gated ? (full ? narrow_kernel<kEights, kWarps, true, true> : narrow_kernel<kEights, kWarps, true, false>)
                              : (full ? narrow_kernel<kEights, kWarps, false, true> : narrow_kernel<kEights, kWarps, false, false>);
  launch(stream, kernel, grid, kWarps * kWarp, 0, a);
}

}  // namespace

bool product_narrow_takes(const ProductArgs& a) {
  const bool few = a.groups.n_tiles ? a.groups.tile_rows == kNarrowTileRows : a.m <= 2 * kNarrowTileRows;
  return few && a.x_type == DType::kBF16 && a.w_type == DType::kBF16 && a.k_slices == 1 && divides_16(a.x) &&
         divides_16(a.w) && a.k % kNarrowDepth == 0 && a.x_stride % 8 == 0 && a.x_batch % 8 == 0;
}

void product_narrow(cudaStream_t stream, const ProductArgs& a) {
  const bool grouped = a.groups.n_tiles != nullptr;
  const dim3 grid(blocks_for(a.n, a.gated ? 8 : kNarrowRowsOfW), grouped ? static_cast<unsigned>(a.groups.most_tiles) : 1,
                  static_cast<unsigned>(a.batches));
  const bool few_blocks = int64_t{grid.x} * grid.y * grid.z < 256;  // more warps each, to have as much under way
  if (grouped || a.m <= kNarrowTileRows) {
    few_blocks ? launch_narrow<1, 8>(stream, a, grid) : launch_narrow<1, 4>(stream, a, grid);
  } else {
    few_blocks ? launch_narrow<2, 8>(stream, a, grid) : launch_narrow<2, 4>(stream, a, grid);
  }
  CUDA_CHECK_LAUNCH("product_narrow");
}

}  // namespace braid::cuda
