#include "ops/cuda/moe.h"

#include "ops/cuda/device.cuh"

namespace braid::cuda {
namespace {

constexpr int kGroupThreads = 1024;  // also the most experts that one rank holds
constexpr int kCombineThreads = 256;

struct GroupArgs {
  const int32_t* ids;
  int64_t ids_stride;
  int64_t n_pairs;
  int top_k, first, experts, tile_rows;
  int32_t *x_rows, *y_rows, *end, *tile_expert, *tile_start, *n_tiles;
};

// Inclusive sum over the block, one value a thread; `shared` has kGroupThreads integers.
__device__ int running_sum(int value, int* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int d = 1; d < kGroupThreads; d *= 2) {
    const int before = static_cast<int>(threadIdx.x) >= d ? shared[threadIdx.x - d] : 0;
    __syncthreads();
    shared[threadIdx.x] += before;
    __syncthreads();
  }
  const int sum = shared[threadIdx.x];
  __syncthreads();
  return sum;
}

// One block. Where in its group a pair lands is left to chance: a row's result does not depend on it.
__global__ __launch_bounds__(kGroupThreads) void group_kernel(GroupArgs a) {
  __shared__ int counts[kGroupThreads], shared[kGroupThreads];
  const int e = threadIdx.x;
  counts[e] = 0;
  __syncthreads();
  auto expert_of = [&](int64_t pair) { return a.ids[pair / a.top_k * a.ids_stride + pair % a.top_k] - a.first; };
  for (int64_t p = e; p < a.n_pairs; p += kGroupThreads) {
    const int expert = expert_of(p);
    if (0 <= expert && expert < a.experts) atomicAdd(&counts[expert], 1);
  }
  __syncthreads();
  const int count = counts[e], tiles = (count + a.tile_rows - 1) / a.tile_rows;
  const int end = running_sum(count, shared), tiles_end = running_sum(tiles, shared);
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
  for (int64_t p = e; p < a.n_pairs; p += kGroupThreads) {
    const int expert = expert_of(p);
    if (expert < 0 || expert >= a.experts) continue;
    const int position = atomicAdd(&counts[expert], 1);
    a.x_rows[position] = static_cast<int32_t>(p / a.top_k);
    a.y_rows[position] = static_cast<int32_t>(p);
  }
}

__global__ void combine_kernel(float* y, int64_t y_stride, const float* parts, const int32_t* ids, int64_t ids_stride,
                               const float* weights, int64_t weights_stride, int top_k, int first, int experts,
                               int64_t h) {
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
  GroupArgs a{data_of<int32_t>(ids), ids.stride[0], pairs, static_cast<int>(ids.dim(1)), first, experts, tile_rows};
  a.n_tiles = memory;
  a.x_rows = memory + 1;
  a.y_rows = a.x_rows + pairs;
  a.end = a.y_rows + pairs;
  a.tile_expert = a.end + experts;
  a.tile_start = a.tile_expert + tiles;
  group_kernel<<<1, kGroupThreads, 0, stream>>>(a);
  CUDA_CHECK_LAUNCH("group_pairs");
  return {a.n_tiles, a.tile_expert, a.tile_start, a.end, a.x_rows, a.y_rows, static_cast<int>(tiles), tile_rows};
}

void combine_experts(cudaStream_t stream, Tensor y, Tensor parts, Tensor ids, Tensor weights, int first, int experts) {
  const dim3 grid(blocks_for(y.dim(1), kCombineThreads), static_cast<unsigned>(y.dim(0)));
  combine_kernel<<<grid, kCombineThreads, 0, stream>>>(data_of<float>(y), y.stride[0], data_of<float>(parts),
                                                       data_of<int32_t>(ids), ids.stride[0], data_of<float>(weights),
                                                       weights.stride[0], static_cast<int>(ids.dim(1)), first, experts,
                                                       y.dim(1));
  CUDA_CHECK_LAUNCH("combine_experts");
}

}  // namespace braid::cuda
