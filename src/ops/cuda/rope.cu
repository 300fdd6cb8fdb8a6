// Norm, rotation and cache writes of attention's inputs in one pass, a warp per row of lanes.
#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"

namespace braid::cuda {
namespace {

constexpr int kWarps = 4;

// Rows of a [T, heads, lanes] tensor.
template <typename T>
struct HeadRows {
  T* data;
  int64_t token_stride, head_stride;
  __device__ T* row(int64_t t, int64_t h) const { return data + t * token_stride + h * head_stride; }
};
template <typename T>
HeadRows<T> head_rows(const Tensor& t) { return {data_of<T>(t), t.stride[0], t.stride[1]}; }

struct Rotation {
  const float* cos_sin;  // [positions, d / 2, 2]
  int d;
  bool halves;
};
Rotation rotation_of(const RopeTable& r) {
  return {data_of<float>(r.cos_sin), r.dim(), r.layout == RopeLayout::kHalfSplit};
}

// A norm's weights for up to 512 lanes, one warp: read before they are needed, even before the kernel in front has ended.
class NormWeights {
 public:
  __device__ NormWeights(const float* w, int n) : w_(w), n_(n) {
#pragma unroll
    for (int j = 0; j < kKept; ++j) kept_[j] = w && at(j) < n ? __ldg(w + at(j)) : 0.0f;
  }
  // The row is in `lanes` (shared, one warp's own); T is the compute type that values are rounded to.
  template <typename T>
  __device__ void apply(float* lanes, float eps) const {
    float sum = 0.0f;
    for (int i = at(0); i < n_; i += kWarp) sum = fmaf(lanes[i], lanes[i], sum);
    const float factor = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(n_) + eps);
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      if (at(j) < n_) lanes[at(j)] = rounded<T>(rounded<T>(lanes[at(j)] * factor) * kept_[j]);
    }
    for (int i = at(kKept); i < n_; i += kWarp) lanes[i] = rounded<T>(rounded<T>(lanes[i] * factor) * w_[i]);
    __syncwarp();
  }

 private:
  static constexpr int kKept = 16;
  __device__ static int at(int j) { return static_cast<int>(threadIdx.x) % kWarp + j * kWarp; }
  const float* w_;
  int n_;
  float kept_[kKept];
};

__device__ void rotate_lanes(float* lanes, const Rotation& r, int64_t position) {
  const float* cos_sin = r.cos_sin + position * r.d;
  for (int i = threadIdx.x % kWarp; i < r.d / 2; i += kWarp) {
    float* a = lanes + (r.halves ? i : 2 * i);
    float* b = lanes + (r.halves ? i + r.d / 2 : 2 * i + 1);
    const float a0 = *a, b0 = *b, c = __ldg(cos_sin + 2 * i), s = __ldg(cos_sin + 2 * i + 1);
    *a = a0 * c - b0 * s;
    *b = b0 * c + a0 * s;
  }
  __syncwarp();
}

// Loads that are under way together: the compiler can not tell that what is read is not what is written.
constexpr int kAtOnce = 9;

template <typename T>
__device__ void load_lanes(float* lanes, const T* from, int n) {
  for (int i0 = threadIdx.x % kWarp; i0 < n; i0 += kAtOnce * kWarp) {
    T values[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i0 + j * kWarp < n) values[j] = from[i0 + j * kWarp];
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i0 + j * kWarp < n) lanes[i0 + j * kWarp] = to_f(values[j]);
    }
  }
  __syncwarp();
}
template <typename T>
__device__ void store_lanes(T* to, const float* lanes, int n) {
  for (int i = threadIdx.x % kWarp; i < n; i += kWarp) to[i] = from_f<T>(lanes[i]);
}
// Rounded to the compute type first: what is read back is what was computed with.
template <typename T, typename C>
__device__ void store_cache(C* to, const float* lanes, int n, float scale) {
  for (int i = threadIdx.x % kWarp; i < n; i += kWarp) to[i] = from_f<C>(rounded<T>(lanes[i]) / scale);
}

template <typename T, typename C>
struct GqaArgs {
  HeadRows<T> q, k, v;
  HeadRows<C> cache_k, cache_v;
  const float *q_norm, *k_norm;
  const int32_t *positions, *slots;
  Rotation rotation;
  int n_q, n_kv, d, d_v;
  float eps, scale;
  int64_t n_rows;
};

template <typename T, typename C>
__global__ void gqa_kernel(GqaArgs<T, C> a) {
  begin_after_previous();
  extern __shared__ float memory[];
  const int warp = threadIdx.x / kWarp, per_token = a.n_q + 2 * a.n_kv;
  float* lanes = memory + warp * max(a.d, a.d_v);
  const int row = static_cast<int>(blockIdx.x) * kWarps + warp;
  if (row >= a.n_rows) return;
  const int t = row / per_token, h = row % per_token, kv = h - a.n_q;
  const int64_t slot = a.slots[t];
  if (kv >= a.n_kv) {  // a value
    if (slot < 0) return;
    load_lanes(lanes, a.v.row(t, kv - a.n_kv), a.d_v);
    store_cache<T>(a.cache_v.row(slot, kv - a.n_kv), lanes, a.d_v, a.scale);
    return;
  }
  T* x = kv < 0 ? a.q.row(t, h) : a.k.row(t, kv);
  const float* norm = kv < 0 ? a.q_norm : a.k_norm;
  load_lanes(lanes, x, a.d);
  if (norm) NormWeights(norm, a.d).apply<T>(lanes, a.eps);
  rotate_lanes(lanes, a.rotation, a.positions[t]);
  store_lanes(x, lanes, a.d);
  if (kv >= 0 && slot >= 0) store_cache<T>(a.cache_k.row(slot, kv), lanes, a.d, a.scale);
}

template <typename T, typename C>
struct MlaArgs {
  HeadRows<T> q_out;
  HeadRows<const T> q_in;
  T* kv_a;
  C* cache;
  int64_t kv_stride, cache_stride;
  const float* norm;
  const int32_t *positions, *slots;
  Rotation rotation;
  int n_q, d, latent;
  float eps, scale;
  int64_t n_rows;
};

template <typename T, typename C>
__global__ void mla_kernel(MlaArgs<T, C> a) {
  extern __shared__ float memory[];
  const int warp = threadIdx.x / kWarp;
  float* lanes = memory + warp * (a.latent + a.d);
  const int row = static_cast<int>(blockIdx.x) * kWarps + warp;
  const int t = row / (a.n_q + 1), h = row % (a.n_q + 1) - 1;  // -1: the latent row, the longest work first
  const NormWeights weights(h < 0 ? a.norm : nullptr, a.latent);
  begin_after_previous();
  if (row >= a.n_rows) return;
  const int64_t position = a.positions[t], slot = a.slots[t];
  if (h >= 0) {
    load_lanes(lanes, a.q_in.row(t, h), a.d);
    rotate_lanes(lanes, a.rotation, position);
    store_lanes(a.q_out.row(t, h), lanes, a.d);
    return;
  }
  T* const kv = a.kv_a + int64_t{t} * a.kv_stride;
  load_lanes(lanes, kv, a.latent + a.d);
  rotate_lanes(lanes + a.latent, a.rotation, position);
  weights.template apply<T>(lanes, a.eps);
  store_lanes(kv, lanes, a.latent + a.d);
  if (slot >= 0) store_cache<T>(a.cache + slot * a.cache_stride, lanes, a.latent + a.d, a.scale);
}

// f(compute type, cache type)
template <typename F>
void for_types(DType compute, DType cache, F f) {
  for_compute_type(compute, [&]<typename T>(T t) {
    cache == DType::kF8E4M3 ? f(t, Float8E4M3{}) : cache == DType::kBF16 ? f(t, BFloat16{}) : f(t, 0.0f);
  });
}

template <typename R, typename C>
__global__ void gather_kernel(HeadRows<R> rows, HeadRows<const C> cache, const int32_t* slots, int64_t n_lanes, float scale) {
  begin_after_previous();
  const int64_t c = blockIdx.x, slot = slots[c];
  for (int64_t i = threadIdx.x; i < n_lanes; i += blockDim.x) {
    rows.row(c, blockIdx.y)[i] = slot < 0 ? R{} : from_f<R>(to_f(cache.row(slot, blockIdx.y)[i]) * scale);
  }
}

}  // namespace

void gather_cache(cudaStream_t stream, Tensor rows, const KvCache& cache, Tensor slots) {
  for_float_type(rows.dtype, [&]<typename R>(R) {
    for_float_type(cache.k.dtype, [&]<typename C>(C) {
      const dim3 grid(static_cast<unsigned>(rows.dim(0)), static_cast<unsigned>(rows.dim(1)));
      const HeadRows<const C> from{data_of<C>(cache.k), cache.k.stride[0], cache.k.stride[1]};
      launch(stream, gather_kernel<R, C>, grid, 128, 0, head_rows<R>(rows), from, data_of<int32_t>(slots), rows.dim(2), cache.scale);
    });
  });
  CUDA_CHECK_LAUNCH("gather_cache");
}

void gqa_rope_cache(cudaStream_t stream, Tensor q, Tensor k, Tensor v, Tensor q_norm, Tensor k_norm, float eps,
                    const RopeTable& rope, const KvCache& cache, const BatchMeta& batch) {
  for_types(q.dtype, cache.k.dtype, [&]<typename T, typename C>(T, C) {
    GqaArgs<T, C> a{head_rows<T>(q),
                    head_rows<T>(k),
                    head_rows<T>(v),
                    head_rows<C>(cache.k),
                    head_rows<C>(cache.v),
                    data_of<float>(q_norm),
                    data_of<float>(k_norm),
                    data_of<int32_t>(batch.positions),
                    data_of<int32_t>(batch.slots),
                    rotation_of(rope),
                    static_cast<int>(q.dim(1)),
                    static_cast<int>(k.dim(1)),
                    static_cast<int>(q.dim(2)),
                    static_cast<int>(v.dim(2)),
                    eps,
                    cache.scale,
                    batch.n_tokens * (q.dim(1) + 2 * k.dim(1))};
    const size_t shared = sizeof(float) * kWarps * static_cast<size_t>(a.d > a.d_v ? a.d : a.d_v);
    launch(stream, gqa_kernel<T, C>, blocks_for(a.n_rows, kWarps), kWarps * kWarp, shared, a);
  });
  CUDA_CHECK_LAUNCH("gqa_rope_cache");
}

void mla_rope_cache(cudaStream_t stream, Tensor q_out, Tensor q_in, Tensor kv_a, Tensor norm, float eps,
                    const RopeTable& rope, const KvCache& cache, const BatchMeta& batch) {
  for_types(q_in.dtype, cache.k.dtype, [&]<typename T, typename C>(T, C) {
    MlaArgs<T, C> a{head_rows<T>(q_out),
                    {data_of<T>(q_in), q_in.stride[0], q_in.stride[1]},
                    data_of<T>(kv_a),
                    data_of<C>(cache.k),
                    kv_a.stride[0],
                    cache.k.stride[0],
                    data_of<float>(norm),
                    data_of<int32_t>(batch.positions),
                    data_of<int32_t>(batch.slots),
                    rotation_of(rope),
                    static_cast<int>(q_in.dim(1)),
                    static_cast<int>(q_in.dim(2)),
                    static_cast<int>(kv_a.dim(1) - q_in.dim(2)),
                    eps,
                    cache.scale,
                    batch.n_tokens * (q_in.dim(1) + 1)};
    const size_t shared = sizeof(float) * kWarps * static_cast<size_t>(a.latent + a.d);
    launch(stream, mla_kernel<T, C>, blocks_for(a.n_rows, kWarps), kWarps * kWarp, shared, a);
  });
  CUDA_CHECK_LAUNCH("mla_rope_cache");
}

}  // namespace braid::cuda
