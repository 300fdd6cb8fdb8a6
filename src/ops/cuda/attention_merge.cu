// Putting attention together: parts of one rank, partials and results of several.
#include "ops/cuda/attention.cuh"

namespace braid::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxRanks = 64;

// kParts: a power of two not below n_parts; absent parts add zeros. Scaling by powers of two to the largest k first gives
// the bits that merging two by two does.
template <int kParts>
__global__ void merge_kernel(PartialSums parts, int n_parts, int64_t heads, int64_t dv, FinishedRows out,
                             PartialSums sums) {
  begin_after_previous();
  const int64_t t = blockIdx.x / heads, n = blockIdx.x % heads;
  float factor[kParts], weight[kParts], k = -BRAID_INFINITY;
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    factor[p] = p < n_parts ? parts.k[p * parts.k_part + t * parts.k_token + n] : -BRAID_INFINITY;
    k = fmaxf(k, factor[p]);
  }
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const float w = p < n_parts ? parts.weight[p * parts.weight_part + t * parts.weight_token + n] : 0.0f;
    factor[p] = factor[p] == -BRAID_INFINITY ? 0.0f : power_of_two(factor[p] - k);
    weight[p] = w * factor[p];
  }
  auto add_up = [](float (&v)[kParts]) {
#pragma unroll
    for (int half = kParts / 2; half >= 1; half /= 2) {
#pragma unroll
      for (int p = 0; p < half; ++p) v[p] += v[p + half];
    }
    return v[0];
  };
  const float total = add_up(weight);
  for (int64_t i = threadIdx.x; i < dv; i += kThreads) {
    float v[kParts];
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      v[p] = factor[p] == 0.0f
                 ? 0.0f
                 : parts.sum[p * parts.sum_part + t * parts.sum_token + n * parts.sum_head + i] * factor[p];
    }
    const float sum = add_up(v);
    if (out.y) {
      store_value(out.y, out.type, t * out.token + n * out.head + i, total == 0.0f ? 0.0f : sum / total * out.value_scale);
    } else {
      sums.sum[t * sums.sum_token + n * sums.sum_head + i] = sum;
    }
  }
  if (threadIdx.x != 0) return;
  if (out.y) {
    if (out.lse) out.lse[t * out.lse_token + n] = log_sum(total, k);
  } else {
    sums.weight[t * sums.weight_token + n] = total;
    sums.k[t * sums.k_token + n] = k;
  }
}

template <typename V>
__global__ void results_kernel(void* y, DType y_type, int64_t y_token, int64_t y_head, float* out_lse,
                               int64_t out_lse_token, const V* values, int64_t v_rank, int64_t v_token, int64_t v_head, const float* lses, int64_t l_rank,
                               int64_t l_token, int ranks, int first, int n_values, int64_t heads, int64_t dv) {
  begin_after_previous();
  __shared__ float weights[kMaxRanks], total;
  const int64_t t = blockIdx.x / heads, n = blockIdx.x % heads;
  if (threadIdx.x == 0) {
    float most = -BRAID_INFINITY, sum = 0.0f;
    for (int w = 0; w < ranks; ++w) {
      const float lse = lses[w * l_rank + t * l_token + n];
      weights[w] = lse < BRAID_INFINITY ? lse : -BRAID_INFINITY;  // NaN fails the comparison
      most = fmaxf(most, weights[w]);
    }
    for (int w = 0; w < ranks; ++w) {
      weights[w] = weights[w] == -BRAID_INFINITY ? 0.0f : expf(weights[w] - most);
      sum += weights[w];
    }
    total = sum;
    if (out_lse) out_lse[t * out_lse_token + n] = most + logf(sum);
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < dv; i += kThreads) {
    float sum = 0.0f;
    for (int v = 0; v < n_values; ++v) {
      const float weight = weights[first + v];
      if (weight == 0.0f) continue;  // its value may be anything
      sum += weight / total * to_f(values[v * v_rank + t * v_token + n * v_head + i]);
    }
    store_value(y, y_type, t * y_token + n * y_head + i, sum);
  }
}

}  // namespace

void merge_parts(cudaStream_t stream, const PartialSums& parts, int n_parts, int64_t tokens, int64_t heads, int64_t dv,
                 const FinishedRows& out, const PartialSums& sums) {
  const auto kernel = n_parts <= 2   ? merge_kernel<2>
                      : n_parts <= 8 ? merge_kernel<8>
                      : n_parts <= 16 ? merge_kernel<16>
                                     : merge_kernel<64>;
  launch(stream, kernel, static_cast<unsigned>(tokens * heads), kThreads, 0, parts, n_parts, heads, dv, out, sums);
  CUDA_CHECK_LAUNCH("merge_parts");
}

void merge_results(cudaStream_t stream, Tensor y, Tensor lse, Tensor values, Tensor lses, int first) {
  for_compute_type(values.dtype, [&]<typename V>(V) {
    launch(stream, results_kernel<V>, static_cast<unsigned>(y.dim(0) * y.dim(1)), kThreads, 0, y.data, y.dtype, y.stride[0], y.stride[1], data_of<float>(lse), lse.stride[0], data_of<V>(values), values.stride[0], values.stride[1],
        values.stride[2], data_of<float>(lses), lses.stride[0], lses.stride[1], static_cast<int>(lses.dim(0)), first,
        static_cast<int>(values.dim(0)), y.dim(1), y.dim(2));
  });
  CUDA_CHECK_LAUNCH("merge_results");
}

}  // namespace braid::cuda
