// Routing: a warp chooses the experts of one row, exactly as ops/route.cpp defines it.
#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/route.h"

namespace braid::cuda {
namespace {

constexpr int kWarps = 2;  // what fits shared memory with 1024 experts
constexpr int kNone = 0x7fffffff;

struct RouteArgs {
  int32_t* ids;
  float* weights;
  const float *logits, *bias;
  int64_t ids_stride, weights_stride, logits_stride, n_rows;
  int n_experts;
  RouterSpec spec;
};

// In the order of the floats; -0 is 0.
__device__ unsigned ordered_bits(float x) {
  const unsigned bits = __float_as_uint(x + 0.0f);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// Sets marks[i] of the n largest values among those with marks[i] == 0; -1 is out of the question.
__device__ void mark_largest(int8_t* marks, const float* values, int size, int n) {
  const int lane = threadIdx.x % kWarp;
  for (int round = 0; round < n; ++round) {
    float value = -BRAID_INFINITY;
    int index = kNone;
    for (int i = lane; i < size; i += kWarp) {
      if (marks[i] == 0 && (index == kNone || values[i] > value)) {
        value = values[i];
        index = i;
      }
    }
    const unsigned bits = index == kNone ? 0u : ordered_bits(value);
    const unsigned best = __reduce_max_sync(~0u, bits);
    const int chosen = __reduce_min_sync(~0u, bits == best ? index : kNone);
    if (lane == 0 && chosen != kNone) marks[chosen] = 1;
    __syncwarp();
  }
}

__device__ double warp_sum(double x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

// Scores in double: routers have few logits, and near ties should fall as in the reference. `terms` keeps the softmax's
// terms.
__device__ void score(float* scores, double* terms, const float* logits, int n, RouterScore how) {
  const int lane = threadIdx.x % kWarp;
  float max = -BRAID_INFINITY;
  for (int i = lane; i < n; i += kWarp) max = fmaxf(max, logits[i]);
  max = warp_max(max);
  double sum = 0.0;
  if (how == RouterScore::kSoftmax) {
    for (int i = lane; i < n; i += kWarp) sum += terms[i] = exp(static_cast<double>(logits[i]) - max);
    sum = warp_sum(sum);
  }
  for (int i = lane; i < n; i += kWarp) {
    const double z = logits[i];
    scores[i] = static_cast<float>(how == RouterScore::kSoftmax ? terms[i] / sum : 1.0 / (1.0 + exp(-z)));
  }
}

__global__ void route_kernel(RouteArgs a) {
  begin_after_previous();
  extern __shared__ __align__(16) float memory[];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, n = a.n_experts;
  const int64_t row = int64_t{blockIdx.x} * kWarps + warp;
  // Per warp: ranks of the experts and values of groups (as many as experts at most), both first the softmax's terms;
  // scores; marks.
  float* ranks = memory + warp * 2 * n;
  float *groups = ranks + n, *scores = memory + (2 * kWarps + warp) * n;
  int8_t* marks = reinterpret_cast<int8_t*>(memory + kWarps * 3 * n) + warp * 2 * n;
  int8_t* group_marks = marks + n;
  if (row >= a.n_rows) return;
  score(scores, reinterpret_cast<double*>(ranks), a.logits + row * a.logits_stride, n, a.spec.score);
  __syncwarp();
  for (int i = lane; i < n; i += kWarp) {
    const float v = a.bias ? scores[i] + a.bias[i] : scores[i];
    ranks[i] = isnan(v) ? -BRAID_INFINITY : v;
    marks[i] = group_marks[i] = 0;
  }
  __syncwarp();
  if (a.spec.group_score != GroupScore::kNone && a.spec.n_groups > 1) {
    const int size = n / a.spec.n_groups;
    for (int g = lane; g < a.spec.n_groups; g += kWarp) groups[g] = group_value(ranks + g * size, size, a.spec.group_score);
    __syncwarp();
    mark_largest(group_marks, groups, a.spec.n_groups, a.spec.top_groups);
    for (int i = lane; i < n; i += kWarp) marks[i] = group_marks[i / size] ? 0 : -1;
    __syncwarp();
  }
  mark_largest(marks, ranks, n, a.spec.top_k);

  // Ascending ids; the sum in their order.
  float* const chosen_scores = groups;
  int found = 0;
  for (int i0 = 0; i0 < n; i0 += kWarp) {
    const int i = i0 + lane;
    const bool chosen = i < n && marks[i] == 1;
    const unsigned all = __ballot_sync(~0u, chosen);
    if (chosen) {
      const int at = found + __popc(all & ((1u << lane) - 1));
      a.ids[row * a.ids_stride + at] = i;
      chosen_scores[at] = scores[i];
    }
    found += __popc(all);
  }
  __syncwarp();
  float sum = 0.0f;
  for (int j = 0; j < found; ++j) sum += chosen_scores[j];
  for (int j = lane; j < found; j += kWarp) {
    const float w = a.spec.renormalise ? chosen_scores[j] / (sum + 1e-20f) : chosen_scores[j];
    a.weights[row * a.weights_stride + j] = w * a.spec.scale;
  }
}

}  // namespace

void route(cudaStream_t stream, Tensor ids, Tensor weights, Tensor logits, Tensor bias, const RouterSpec& spec) {
  const RouteArgs a{data_of<int32_t>(ids), data_of<float>(weights), data_of<float>(logits), data_of<float>(bias),
                    ids.stride[0],         weights.stride[0],       logits.stride[0],       logits.dim(0),
                    static_cast<int>(logits.dim(1)), spec};
  const size_t shared = kWarps * static_cast<size_t>(a.n_experts) * (3 * sizeof(float) + 2);
  launch(stream, route_kernel, blocks_for(a.n_rows, kWarps), kWarps * kWarp, shared, a);
  CUDA_CHECK_LAUNCH("route");
}

}  // namespace braid::cuda
