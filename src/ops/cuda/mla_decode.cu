// Latent attention for decoding: sizes, choice of kernel and the merge of partial results.
#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/mla_plan.cuh"
#include "ops/cuda/mla_ptx.cuh"

namespace braid {
namespace {

constexpr int kMergeWarps = 8;

// Adds partial results to kColumns lanes of query rows. With kRowsApart each warp has a row of its own: right where
// sequences are split into some parts. Else all warps share a row and each adds every eighth part.
template <int kColumns, bool kRowsApart>
__global__ void __launch_bounds__(32 * kMergeWarps) mla_combine_kernel(const __grid_constant__ MlaPlan plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kVectors = kColumns / 128;  // of four lanes, of each thread
  const MlaDecodeArgs& a = plan.args;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = kRowsApart ? 0 : warp, step = kRowsApart ? 1 : kMergeWarps;
  const int seq = blockIdx.z, row = kRowsApart ? blockIdx.x * kMergeWarps + warp : blockIdx.x;
  const int column = blockIdx.y * kColumns + 4 * lane;
  const int first_row = a.q_start[seq] * a.n_heads, rows = a.q_start[seq + 1] * a.n_heads - first_row;
  wait_for_previous();
  const int2 spread = plan.spread[seq];
  if (row >= rows || spread.y < 2) return;
  const auto place = [&](int i) {  // of partial i: only the first part begins the sequence
    return (static_cast<int64_t>(2 * (spread.x + i) + (i == 0)) * plan.row_tiles + row / plan.tile_rows) *
               plan.tile_rows +
           row % plan.tile_rows;
  };
  float most = -INFINITY, weight = 0.0f;
  for (int i = lane; i < spread.y; i += 32) most = fmaxf(most, plan.part_lse[place(i)]);
  for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
  if (most == -INFINITY) most = 0.0f;
  float4 sum[kVectors] = {};
#pragma unroll kVectors == 1 ? 8 : 2
  for (int i = first; i < spread.y; i += step) {
    const int64_t at = place(i);
    const float share = fast_exp2(plan.part_lse[at] - most);
    const float* from = plan.part_out + at * kMlaLatent + column;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const float4 x = *reinterpret_cast<const float4*>(from + 128 * v);
      sum[v].x = fmaf(share, x.x, sum[v].x), sum[v].y = fmaf(share, x.y, sum[v].y);
      sum[v].z = fmaf(share, x.z, sum[v].z), sum[v].w = fmaf(share, x.w, sum[v].w);
    }
    weight += share;
  }
  if constexpr (!kRowsApart) {
    static_assert(kVectors == 1);
    __shared__ float4 sums[kMergeWarps][32];
    __shared__ float weights[kMergeWarps];
    sums[warp][lane] = sum[0];
    weights[warp] = weight;
    __syncthreads();
    if (warp > 0) return;
    for (int w = 1; w < kMergeWarps; ++w) {
      const float4 x = sums[w][lane];
      sum[0].x += x.x, sum[0].y += x.y, sum[0].z += x.z, sum[0].w += x.w;
      weight += weights[w];
    }
  }
  const int64_t to = static_cast<int64_t>(first_row) + row;
  const float inverse = weight > 0.0f ? 1.0f / weight : 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(sum[v].x * inverse, sum[v].y * inverse);
    const __nv_bfloat162 high = __floats2bfloat162_rn(sum[v].z * inverse, sum[v].w * inverse);
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(a.out) + to * kMlaLatent + column + 128 * v) =
        make_uint2(reinterpret_cast<const uint32_t&>(low), reinterpret_cast<const uint32_t&>(high));
  }
  if (a.lse && blockIdx.y == 0 && lane == 0) {
    a.lse[to] = weight > 0.0f ? (most + log2f(weight)) * 0.69314718055994531f : -INFINITY;
  }
#endif
}

int multiprocessors() {
  static const int n = [] {
    int device = 0, count = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
  }();
  return n;
}

// Query rows of a tile: 64, or for a float8 cache the fewest that hold them all, up to 32.
int rows_of_tile(bool float8, int rows) { return !float8 ? 64 : rows > 16 ? 32 : rows > 8 ? 16 : 8; }

MlaPlan sizes(bool float8, int max_q_len, int n_heads) {
  MlaPlan plan;
  plan.tile_rows = rows_of_tile(float8, max_q_len * n_heads);
  plan.tile_tokens = float8 ? 128 : 64;
  plan.row_tiles = (max_q_len * n_heads + plan.tile_rows - 1) / plan.tile_rows;
  plan.n_parts = std::max(1, multiprocessors() / plan.row_tiles);
  return plan;
}

size_t spread_bytes(int n_seqs) { return (sizeof(int2) * static_cast<size_t>(n_seqs) + 127) / 128 * 128; }
size_t partial_rows(const MlaPlan& plan) {
  return plan.n_parts == 1 ? 0 : size_t{2} * plan.n_parts * plan.row_tiles * plan.tile_rows;
}

}  // namespace

bool mla_decode_supported(int capability_major, int capability_minor, int64_t row, int64_t latent, int block_size) {
  return capability_major == 9 && capability_minor == 0 && row == kMlaRow && latent == kMlaLatent &&
         block_size % 16 == 0;
}

size_t mla_decode_workspace(int n_seqs, int max_q_len, int n_heads) {
  const size_t rows =
      std::max(partial_rows(sizes(false, max_q_len, n_heads)), partial_rows(sizes(true, max_q_len, n_heads)));
  return spread_bytes(n_seqs) + rows * (1 + kMlaLatent) * sizeof(float);
}

cudaError_t mla_combine(const MlaPlan& plan, cudaStream_t stream) {
  const int rows = plan.args.max_q_len * plan.args.n_heads, n_seqs = plan.args.n_seqs;
  const auto start = [&](auto kernel, int columns, int rows_of_block) {
    // The same division of a multiprocessor's memory as the kernel before, which would else have to be waited for.
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    if (status != cudaSuccess) return status;
    const dim3 grid((rows + rows_of_block - 1) / rows_of_block, kMlaLatent / columns, n_seqs);
    launch(stream, kernel, grid, 32 * kMergeWarps, 0, plan);
    return cudaGetLastError();
  };
  // By how many parts a sequence is split into, were all of one length.
  if (plan.n_parts < 4 * n_seqs) return start(mla_combine_kernel<512, true>, 512, kMergeWarps);
  if (plan.n_parts < 20 * n_seqs) return start(mla_combine_kernel<128, true>, 128, kMergeWarps);
  return start(mla_combine_kernel<128, false>, 128, 1);
}

cudaError_t mla_decode(const MlaDecodeArgs& args, cudaStream_t stream) {
  if (args.n_seqs == 0 || args.max_q_len == 0) return cudaSuccess;
  MlaPlan plan = sizes(args.float8, args.max_q_len, args.n_heads);
  plan.args = args;
  auto* bytes = static_cast<uint8_t*>(args.workspace);
  plan.spread = reinterpret_cast<int2*>(bytes);
  plan.part_out = reinterpret_cast<float*>(bytes + spread_bytes(args.n_seqs));
  plan.part_lse = plan.part_out + partial_rows(plan) * kMlaLatent;
  plan.score_scale = args.softmax_scale * args.cache_scale * 1.44269504088896341f;
  const cudaError_t status = args.float8 ? mla_decode_float8(plan, stream) : mla_decode_bf16(plan, stream);
  return status == cudaSuccess && plan.n_parts > 1 ? mla_combine(plan, stream) : status;
}

}  // namespace braid
