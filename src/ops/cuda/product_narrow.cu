// Products of a few rows of bfloat16, where weights are read once and nothing else counts: a block takes 16 rows of w
// and cuts K among its warps, whose loads are all under way together and, where w is known, before the kernel in front
// has ended. On the tensor cores w is the 16-row operand and the rows of x are the columns; both take their lanes of K in
// the same permuted order, so that a thread's 16 bytes are consecutive. Sums of warps are added in a fixed order, another
// one than that of the large tiles. Gated: the upper eight rows of w are up rows.
#include "ops/cuda/mma.cuh"
#include "ops/cuda/product.cuh"

namespace braid::cuda {
namespace {

constexpr int kRowsOfW = 16, kDepth = 64, kAhead = 4;

// Streamed: a weight is used once per step.
__device__ uint4 load_once(const BFloat16* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// kEights: eights of rows of x; kFull: all of them are there.
template <int kEights, int kWarps, bool kGated, bool kFull>
__global__ __launch_bounds__(kWarps* kWarp, 16 / kWarps) void narrow_kernel(ProductArgs a) {
  __shared__ float sums[kWarps][kRowsOfW][8 * kEights + 1];
  const bool grouped = a.groups.n_tiles != nullptr;
  if (grouped) begin_after_previous();  // it says which weights are read
  const TileRows rows = tile_rows<8 * kEights>(a);
  if (rows.begin >= rows.end) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, q = lane % 4;
  const int64_t n0 = int64_t{blockIdx.x} * (kGated ? 8 : kRowsOfW);
  const BFloat16* w = static_cast<const BFloat16*>(a.w) + rows.batch * (kGated ? 2 * a.n : a.n) * a.k + q * 8;
  // Rows beyond the last are read again and not stored.
  const BFloat16* w_low = w + min(n0 + g, a.n - 1) * a.k;
  const BFloat16* w_high = w + (kGated ? a.n + min(n0 + g, a.n - 1) : min(n0 + g + 8, a.n - 1)) * a.k;
  const int chunks = static_cast<int>(a.k / kDepth);
  uint4 low[kAhead][2], high[kAhead][2];
  auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int c = first + i * kWarps;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (c >= chunks) continue;
        low[i][h] = load_once(w_low + c * kDepth + h * 32);
        high[i][h] = load_once(w_high + c * kDepth + h * 32);
      }
    }
  };
  load(warp);
  if (!grouped) begin_after_previous();
  const BFloat16* x[kEights];
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const int64_t row = rows.begin + e * 8 + g;
    x[e] = kFull || row < rows.end ? x_row<BFloat16>(a, rows, row) + q * 8 : nullptr;
  }

  float acc[kEights][4] = {};
  for (int c0 = warp; c0 < chunks; c0 += kWarps * kAhead) {
    if (c0 != warp) load(c0);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int c = c0 + i * kWarps;
      if (c >= chunks) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t first[4] = {low[i][h].x, high[i][h].x, low[i][h].y, high[i][h].y};
        const uint32_t second[4] = {low[i][h].z, high[i][h].z, low[i][h].w, high[i][h].w};
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
          uint4 v{};
          if (kFull || x[e]) v = *reinterpret_cast<const uint4*>(x[e] + c * kDepth + h * 32);
          mma_bf16(acc[e], first, v.x, v.y);
          mma_bf16(acc[e], second, v.z, v.w);
        }
      }
    }
  }
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[warp][g + i / 2 * 8][e * 8 + q * 2 + i % 2] = acc[e][i];
  }
  __syncthreads();
  auto total = [&](int of_w, int row) {
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < kWarps; ++s) sum += sums[s][of_w][row];
    return sum;
  };
  constexpr int columns = kGated ? 8 : kRowsOfW;
  for (int i = threadIdx.x; i < columns * 8 * kEights; i += kWarps * kWarp) {
    const int column = i % columns, row = i / columns;
    if (n0 + column >= a.n || rows.begin + row >= rows.end) continue;
    const float value = kGated ? gated_value(total(column, row), total(column + 8, row)) : total(column, row);
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

bool divides_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

bool product_narrow_takes(const ProductArgs& a) {
  const bool few = a.groups.n_tiles ? a.groups.tile_rows == kNarrowTileRows : a.m <= 2 * kNarrowTileRows;
  return few && a.x_type == DType::kBF16 && a.w_type == DType::kBF16 && a.k_slices == 1 && divides_16(a.x) &&
         divides_16(a.w) && a.k % kDepth == 0 && a.x_stride % 8 == 0 && a.x_batch % 8 == 0;
}

void product_narrow(cudaStream_t stream, const ProductArgs& a) {
  const bool grouped = a.groups.n_tiles != nullptr;
  const dim3 grid(blocks_for(a.n, a.gated ? 8 : kRowsOfW), grouped ? static_cast<unsigned>(a.groups.most_tiles) : 1,
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
