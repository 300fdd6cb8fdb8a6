// Attention in float32 on the ordinary units, for float32 runs: 16 rows by 32 keys a step, 16 threads a row.
#include "ops/cuda/attention.cuh"

namespace braid::cuda {
namespace {

constexpr int kRows = 16, kKeys = kAttentionKeys, kThreads = 256, kPerRow = kThreads / kRows;

__device__ float load_any(const void* p, DType type, int64_t i) {
  switch (type) {
    case DType::kBF16: return to_f(static_cast<const BFloat16*>(p)[i]);
    case DType::kF8E4M3: return to_f(static_cast<const Float8E4M3*>(p)[i]);
    default: return static_cast<const float*>(p)[i];
  }
}

// kLanes: lanes of Dv that a thread keeps.
template <int kLanes>
__global__ __launch_bounds__(kThreads) void simt_kernel(AttentionArgs a) {
  begin_after_previous();
  extern __shared__ float memory[];
  const int stride = a.dk | 1;  // odd: the keys of a step lie in different banks
  float* q = memory;                                  // [kRows, dk]
  float* keys = q + kRows * a.dk;                     // [kKeys, stride]
  float* p = keys + kKeys * stride;                   // [kRows, kKeys]
  float* own_values = p + kRows * kKeys;              // [kKeys, dv]
  float* values = a.latent ? keys : own_values;
  const int value_stride = a.latent ? stride : a.dv;
  const AttentionBlock b = attention_block<kRows>(a);
  if (b.n_rows <= 0) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, row = threadIdx.x / kPerRow, c = threadIdx.x % kPerRow;
  for (int r = warp; r < kRows; r += kThreads / kWarp) {
    const bool valid = r < b.n_rows;
    const int64_t at = valid ? token_of(a, b, r) * a.q_token + head_of(a, b, r) * a.q_head : 0;
    for (int i = lane; i < a.dk; i += kWarp) q[r * a.dk + i] = valid ? load_any(a.q, a.q_type, at + i) : 0.0f;
  }
  const int seen = row < b.n_rows ? visible_keys(a, b, row) : 0;
  float acc[kLanes] = {}, weight = 0.0f, k = -BRAID_INFINITY;
  for (int64_t first = b.begin; first < b.end; first += kKeys) {
    const int n = static_cast<int>(min(int64_t{kKeys}, b.end - first));
    __syncthreads();
    for (int j = warp; j < kKeys; j += kThreads / kWarp) {
      const int64_t slot = j < n ? key_slot(a, b, first + j) : 0;
      for (int i = lane; i < a.dk; i += kWarp) {
        const bool rotated = i >= a.dn;
        const int64_t at = rotated ? slot * a.rope_row + i - a.dn : slot * a.k_slot + b.kv * a.k_head + i;
        keys[j * stride + i] = j < n ? load_any(rotated ? a.k_rope : a.k, a.cache_type, at) : 0.0f;
      }
      if (a.latent) continue;
      for (int i = lane; i < a.dv; i += kWarp) {
        values[j * a.dv + i] = j < n ? load_any(a.v, a.cache_type, slot * a.v_slot + b.kv * a.v_head + i) : 0.0f;
      }
    }
    __syncthreads();
    float score[kKeys / kPerRow] = {}, most = -BRAID_INFINITY;
    for (int i = 0; i < a.dk; ++i) {
      const float x = q[row * a.dk + i];
#pragma unroll
      for (int j = 0; j < kKeys / kPerRow; ++j) score[j] = fmaf(x, keys[(c + j * kPerRow) * stride + i], score[j]);
    }
#pragma unroll
    for (int j = 0; j < kKeys / kPerRow; ++j) {
      const bool visible = first - b.begin + c + j * kPerRow < seen;
      score[j] = visible ? score[j] * a.scale_log2 : -BRAID_INFINITY;
      most = fmaxf(most, score[j]);
    }
#pragma unroll
    for (int d = kPerRow / 2; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    const float factor = raise_maximum(k, most);
    weight *= factor;
#pragma unroll
    for (int j = 0; j < kKeys / kPerRow; ++j) {
      const float term = softmax_term(score[j], k);
      weight += term;
      p[row * kKeys + c + j * kPerRow] = term;
    }
    __syncwarp();  // a row's threads are half a warp
#pragma unroll
    for (int l = 0; l < kLanes; ++l) acc[l] *= factor;
    for (int j = 0; j < n; ++j) {
      const float term = p[row * kKeys + j];
#pragma unroll
      for (int l = 0; l < kLanes; ++l) {
        const int i = c + l * kPerRow;
        if (i < a.dv) acc[l] = fmaf(term, values[j * value_stride + i], acc[l]);
      }
    }
  }
#pragma unroll
  for (int d = kPerRow / 2; d > 0; d /= 2) weight += __shfl_xor_sync(~0u, weight, d);
  if (row >= b.n_rows) return;
  const int64_t token = token_of(a, b, row);
  const int head = head_of(a, b, row);
#pragma unroll
  for (int l = 0; l < kLanes; ++l) {
    const int i = c + l * kPerRow;
    if (i < a.dv) store_lane(a, b.part, token, head, i, acc[l], weight);
  }
  if (c == 0) store_row(a, b.part, token, head, weight, k);
}

}  // namespace

void attention_simt(cudaStream_t stream, const AttentionArgs& a) {
  const auto kernel = a.dv <= 64 ? simt_kernel<4> : a.dv <= 128 ? simt_kernel<8> : a.dv <= 256 ? simt_kernel<16> : simt_kernel<32>;
  const int floats = kRows * a.dk + kKeys * (a.dk | 1) + kRows * kKeys + (a.latent ? 0 : kKeys * a.dv);
  const auto shared = static_cast<int>(sizeof(float)) * floats;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  launch(stream, kernel, attention_grid(a, kRows), kThreads, static_cast<size_t>(shared), a);
  CUDA_CHECK_LAUNCH("attention_simt");
}

}  // namespace braid::cuda
