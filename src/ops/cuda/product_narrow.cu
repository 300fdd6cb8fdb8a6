// Products of a few rows of bfloat16, where weights are read once and nothing else counts: a block takes 16 rows of w
// and cuts K among its warps, whose loads are all under way together. On the tensor cores w is the 16-row operand and
// the rows of x are the columns; both take their lanes of K in the same permuted order, so that a thread's 16 bytes are
// consecutive. Sums of warps are added in a fixed order, another one than that of the large tiles.
#include "ops/cuda/mma.cuh"
#include "ops/cuda/product.cuh"

namespace braid::cuda {
namespace {

constexpr int kWarps = 8, kRowsOfW = 16, kDepth = 64, kAhead = 4;

// Streamed: a weight is used once per step.
__device__ uint4 load_once(const BFloat16* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// kEights: eights of rows of x.
template <int kEights>
__global__ __launch_bounds__(kWarps* kWarp) void narrow_kernel(ProductArgs a) {
  __shared__ float sums[kWarps][kRowsOfW][8 * kEights + 1];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, q = lane % 4;
  const int64_t n0 = int64_t{blockIdx.x} * kRowsOfW, batch = blockIdx.y;
  const BFloat16* w = static_cast<const BFloat16*>(a.w) + batch * a.n * a.k + q * 8;
  // Rows beyond the last are read again and not stored.
  const BFloat16* w_low = w + min(n0 + g, a.n - 1) * a.k;
  const BFloat16* w_high = w + min(n0 + g + 8, a.n - 1) * a.k;
  const BFloat16* x[kEights];
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const int64_t row = min(int64_t{e * 8 + g}, a.m - 1);
    x[e] = static_cast<const BFloat16*>(a.x) + batch * a.x_batch + row * a.x_stride + q * 8;
  }
  float acc[kEights][4] = {};
  const int chunks = static_cast<int>(a.k / kDepth);
  for (int c0 = warp; c0 < chunks; c0 += kWarps * kAhead) {
    uint4 low[kAhead][2], high[kAhead][2];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int c = c0 + i * kWarps;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (c >= chunks) continue;
        low[i][h] = load_once(w_low + c * kDepth + h * 32);
        high[i][h] = load_once(w_high + c * kDepth + h * 32);
      }
    }
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
          const uint4 v = *reinterpret_cast<const uint4*>(x[e] + c * kDepth + h * 32);
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
  for (int i = threadIdx.x; i < kRowsOfW * 8 * kEights; i += kWarps * kWarp) {
    const int64_t n = n0 + i % kRowsOfW;
    const int row = i / kRowsOfW;
    if (n >= a.n || row >= a.m) continue;
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < kWarps; ++s) sum += sums[s][i % kRowsOfW][row];
    store_product(a, batch * a.y_batch + row * a.y_stride, n, sum);
  }
}

}  // namespace

bool product_narrow_takes(const ProductArgs& a) {
  auto divides_16 = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return a.m <= 16 && a.x_type == DType::kBF16 && a.w_type == DType::kBF16 && a.k_slices == 1 && !a.gated &&
         !a.groups.n_tiles && divides_16(a.x) && divides_16(a.w) && a.k % kDepth == 0 && a.x_stride % 8 == 0 &&
         a.x_batch % 8 == 0;
}

void product_narrow(cudaStream_t stream, const ProductArgs& a) {
  const dim3 grid(blocks_for(a.n, kRowsOfW), static_cast<unsigned>(a.batches));
  const auto kernel = a.m <= 8 ? narrow_kernel<1> : narrow_kernel<2>;
  kernel<<<grid, kWarps * kWarp, 0, stream>>>(a);
  CUDA_CHECK_LAUNCH("product_narrow");
}

}  // namespace braid::cuda
