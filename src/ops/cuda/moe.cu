#include "ops/cuda/moe.h"

#include "ops/cuda/device.cuh"

namespace braid::cuda {
namespace {

constexpr int kGroupThreads = 1024;  // also the most experts that one rank holds
constexpr int kCombineThreads = 256;

struct GroupArgs {
  const int32_t* ids;
  int64_t ids_stride;
  int n_pairs;
  int top_k, first, experts, tile_rows;
  int32_t *x_rows, *y_rows, *end, *tile_expert, *tile_start, *n_tiles;
};

// Inclusive sums over the block, two values a thread; `shared` has an integer pair per warp.
__device__ int2 running_sums(int2 value, int2* shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  auto over_warp = [lane](int2 v) {
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int x = __shfl_up_sync(~0u, v.x, d), y = __shfl_up_sync(~0u, v.y, d);
      if (lane >= d) v = {v.x + x, v.y + y};
    }
    return v;
  };
  value = over_warp(value);
  if (lane == kWarp - 1) shared[warp] = value;
  __syncthreads();
  const int2 warps = over_warp(shared[lane]);
  const int x = __shfl_sync(~0u, warps.x, max(warp - 1, 0)), y = __shfl_sync(~0u, warps.y, max(warp - 1, 0));
  return warp == 0 ? value : int2{value.x + x, value.y + y};
}

// One block. Where in its group a pair lands is left to chance: a row's result does not depend on it.
__global__ __launch_bounds__(kGroupThreads) void group_kernel(GroupArgs a) {
  begin_after_previous();
  __shared__ int counts[kGroupThreads];
  __shared__ int2 shared[kWarp];
  const int e = threadIdx.x;
  counts[e] = 0;
  __syncthreads();
  auto expert_of = [&](int pair) { return a.ids[pair / a.top_k * a.ids_stride + pair % a.top_k] - a.first; };
  for (int p = e; p < a.n_pairs; p += kGroupThreads) {
    const int expert = expert_of(p);
    if (0 <= expert && expert < a.experts) atomicAdd(&counts[expert], 1);
  }
  __syncthreads();
  const int count = counts[e], tiles = (count + a.tile_rows - 1) / a.tile_rows;
  const int2 ends = running_sums({count, tiles}, shared);
  const int end = ends.x, tiles_end = ends.y;
  if (e < a.experts) {
    a.end[e] = end;
    for (int i = 0; i < tiles; ++i) {
      a.tile_expert[tiles_end - tiles + i] = e;
      a.tile_start[tiles_end - tiles + i] = end - count + i * a.tile_rows;
    }
  }
  if (e == kGroupThreads - 1) *a.n_tiles = tiles_end;
  counts[e] = end - count;
  __syncthreads();
  for (int p = e; p < a.n_pairs; p += kGroupThreads) {
    const int expert = expert_of(p);
    if (expert < 0 || expert >= a.experts) continue;
    const int position = atomicAdd(&counts[expert], 1);
    a.x_rows[position] = p / a.top_k;
    a.y_rows[position] = p;
  }
}

__global__ void combine_kernel(float* y, int64_t y_stride, const float* parts, const int32_t* ids, int64_t ids_stride,
                               const float* weights, int64_t weights_stride, int top_k, int first, int experts,
                               int64_t h) {
  begin_after_previous();
  const int64_t t = blockIdx.y, i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= h) return;
  float sum = 0.0f;
  for (int j = 0; j < top_k; ++j) {
    const int expert = ids[t * ids_stride + j] - first;
    if (expert < 0 || expert >= experts) continue;
    sum += weights[t * weights_stride + j] * parts[(t * top_k + j) * h + i];
  }
  y[t * y_stride + i] = sum;
}

int64_t most_tiles(int64_t pairs, int experts, int tile_rows) {
  return pairs / tile_rows + (pairs < experts ? pairs : experts);
}

}  // namespace

int64_t group_ints(int64_t pairs, int experts, int tile_rows) {
  return 2 * pairs + experts + 2 * most_tiles(pairs, experts, tile_rows) + 1;
}

RowGroups group_pairs(cudaStream_t stream, Tensor ids, int first, int experts, int tile_rows, int32_t* memory) {
  const int64_t pairs = ids.dim(0) * ids.dim(1), tiles = most_tiles(pairs, experts, tile_rows);
  GroupArgs a{data_of<int32_t>(ids), ids.stride[0], static_cast<int>(pairs), static_cast<int>(ids.dim(1)), first, experts, tile_rows};
  a.n_tiles = memory;
  a.x_rows = memory + 1;
  a.y_rows = a.x_rows + pairs;
  a.end = a.y_rows + pairs;
  a.tile_expert = a.end + experts;
  a.tile_start = a.tile_expert + tiles;
  launch(stream, group_kernel, 1, kGroupThreads, 0, a);
  CUDA_CHECK_LAUNCH("group_pairs");
  return {a.n_tiles, a.tile_expert, a.tile_start, a.end, a.x_rows, a.y_rows, static_cast<int>(tiles), tile_rows};
}

void combine_experts(cudaStream_t stream, Tensor y, Tensor parts, Tensor ids, Tensor weights, int first, int experts) {
  const dim3 grid(blocks_for(y.dim(1), kCombineThreads), static_cast<unsigned>(y.dim(0)));
  launch(stream, combine_kernel, grid, kCombineThreads, 0, data_of<float>(y), y.stride[0], data_of<float>(parts),
                                                       data_of<int32_t>(ids), ids.stride[0], data_of<float>(weights),
                                                       weights.stride[0], static_cast<int>(ids.dim(1)), first, experts,
                                                       y.dim(1));
  CUDA_CHECK_LAUNCH("combine_experts");
}

}  // namespace braid::cuda
