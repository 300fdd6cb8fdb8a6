// Operations on rows of activations: embedding, norms, activation, gathers, copies.
#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"

namespace braid::cuda {
namespace {

constexpr int kThreads = 256;

// Threads for a row of n elements, V at a time; depends on n only, as the order of a sum does.
int row_threads(int64_t n, int v) {
  const int64_t wanted = (n / v + kWarp - 1) / kWarp * kWarp;
  return static_cast<int>(wanted < kWarp ? kWarp : wanted > 1024 ? 1024 : wanted);
}

template <typename Y, typename X>
__global__ void embed_kernel(Y* y, int64_t y_stride, const int32_t* ids, const X* table, int64_t table_stride,
                             int64_t n_rows, int64_t first_row, int64_t h) {
  begin_after_previous();
  const int64_t row = ids[blockIdx.x] - first_row;
  const bool held = 0 <= row && row < n_rows;
  for (int64_t i = threadIdx.x; i < h; i += blockDim.x) {
    y[blockIdx.x * y_stride + i] = from_f<Y>(held ? to_f(table[row * table_stride + i]) : 0.0f);
  }
}

// y = w * rms_norm(x (+ added)); with `residual` the sum is rounded and stored there first. The row is read twice: the
// second time from a near cache, by the thread that read it first.
template <typename T, typename A, int V, bool kAdd>
__global__ void norm_kernel(T* y, int64_t y_stride, T* x, int64_t x_stride, const A* added, int64_t added_stride,
                            const float* w, float eps, int64_t h) {
  __shared__ float shared[kWarp];
  using PT = Pack<T, V>;
  using PW = Pack<float, V>;
  const int64_t own = int64_t{threadIdx.x} * V;
  PW first{};  // weights are read before the kernel in front has ended
  if (own < h) first = *reinterpret_cast<const PW*>(w + own);
  begin_after_previous();
  T* row = x + blockIdx.x * x_stride;
  float sum = 0.0f;
  for (int64_t i = int64_t{threadIdx.x} * V; i < h; i += int64_t{blockDim.x} * V) {
    PT p = *reinterpret_cast<const PT*>(row + i);
    if constexpr (kAdd) {
      const auto a = *reinterpret_cast<const Pack<A, V>*>(added + blockIdx.x * added_stride + i);
#pragma unroll
      for (int j = 0; j < V; ++j) p.v[j] = from_f<T>(to_f(p.v[j]) + to_f(a.v[j]));
      *reinterpret_cast<PT*>(row + i) = p;
    }
#pragma unroll
    for (int j = 0; j < V; ++j) sum = fmaf(to_f(p.v[j]), to_f(p.v[j]), sum);
  }
  const float factor = 1.0f / sqrtf(block_sum(sum, shared) / static_cast<float>(h) + eps);
  for (int64_t i = int64_t{threadIdx.x} * V; i < h; i += int64_t{blockDim.x} * V) {
    PT p = *reinterpret_cast<const PT*>(row + i);
    const PW weights = i == own ? first : *reinterpret_cast<const PW*>(w + i);
#pragma unroll
    for (int j = 0; j < V; ++j) p.v[j] = from_f<T>(rounded<T>(to_f(p.v[j]) * factor) * weights.v[j]);
    *reinterpret_cast<PT*>(y + blockIdx.x * y_stride + i) = p;
  }
}

template <typename T, typename A, bool kAdd>
void norm(cudaStream_t stream, Tensor y, Tensor x, Tensor added, Tensor w, float eps) {
  const int64_t h = x.dim(1);
  const bool eights = by_eights(y) && by_eights(x) && by_eights(w) && (!kAdd || by_eights(added));
  const auto kernel = eights ? norm_kernel<T, A, 8, kAdd> : norm_kernel<T, A, 1, kAdd>;
  launch(stream, kernel, static_cast<unsigned>(x.dim(0)), row_threads(h, eights ? 8 : 1), 0, data_of<T>(y), y.stride[0], data_of<T>(x), x.stride[0], data_of<A>(added), kAdd ? added.stride[0] : 0,
      data_of<float>(w), eps, h);
  CUDA_CHECK_LAUNCH("norm");
}

__global__ void add_kernel(float* y, int64_t y_stride, const float* x, int64_t x_stride, int64_t h) {
  begin_after_previous();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < h) y[blockIdx.y * y_stride + i] += x[blockIdx.y * x_stride + i];
}

template <typename T, int V>
__global__ void silu_mul_kernel(T* y, int64_t y_stride, const T* x, int64_t x_stride, int64_t f, int64_t n) {
  begin_after_previous();
  const int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * V;
  if (at >= n) return;
  const int64_t t = at / f, i = at % f;
  const auto gate = *reinterpret_cast<const Pack<T, V>*>(x + t * x_stride + i);
  const auto up = *reinterpret_cast<const Pack<T, V>*>(x + t * x_stride + f + i);
  Pack<T, V> out;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const float g = to_f(gate.v[j]);
    out.v[j] = from_f<T>(g / (1.0f + expf(-g)) * to_f(up.v[j]));
  }
  *reinterpret_cast<Pack<T, V>*>(y + t * y_stride + i) = out;
}

// A tensor's shape with up to four dimensions, for kernels that walk two tensors element by element.
struct Walk {
  int64_t n[4];
  int64_t in_to[4], in_from[4];  // strides
};

template <typename To, typename From, bool kConvert>
__global__ void copy_kernel(To* to, const From* from, Walk w, int64_t total) {
  begin_after_previous();
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= total) return;
  int64_t rest = at, in_to = 0, in_from = 0;
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    in_to += rest % w.n[i] * w.in_to[i];
    in_from += rest % w.n[i] * w.in_from[i];
    rest /= w.n[i];
  }
  if constexpr (kConvert) {
    to[in_to] = from_f<To>(to_f(from[in_from]));
  } else {
    to[in_to] = from[in_from];
  }
}

template <typename T>
__global__ void zero_kernel(T* x, Walk w, int64_t total) {
  begin_after_previous();
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= total) return;
  int64_t rest = at, offset = 0;
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    offset += rest % w.n[i] * w.in_to[i];
    rest /= w.n[i];
  }
  x[offset] = T{};
}

Walk walk_of(const Tensor& to, const Tensor& from) {
  Walk w{{1, 1, 1, 1}, {}, {}};
  for (int i = 0; i < to.rank; ++i) {
    const int at = 4 - to.rank + i;
    w.n[at] = to.dim(i);
    w.in_to[at] = to.stride_of(i);
    w.in_from[at] = from.stride_of(i);
  }
  return w;
}

// f(an unsigned integer as large as an element)
template <typename F>
void for_size(DType t, F f) {
  switch (size_of(t)) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    default: return f(uint64_t{});
  }
}

constexpr int kPacks = 4;  // of 16 bytes, a thread

__global__ void copy_packs_kernel(uint4* to, const uint4* from, int64_t n) {
  begin_after_previous();
  const int64_t first = int64_t{blockIdx.x} * kPacks * kThreads + threadIdx.x;
  uint4 packs[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (first + i * kThreads < n) packs[i] = from[first + i * kThreads];
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (first + i * kThreads < n) to[first + i * kThreads] = packs[i];
  }
}

// By a kernel, which joins the chain of launches and is faster than the copy engine's 2.7 TB/s.
void copy_dense(cudaStream_t stream, void* to, const void* from, int64_t bytes) {
  const auto addresses = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  if (bytes % 16 != 0 || addresses % 16 != 0) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream));
    return;
  }
  const int64_t n = bytes / 16;
  launch(stream, copy_packs_kernel, blocks_for(n, kPacks * kThreads), kThreads, 0, static_cast<uint4*>(to),
         static_cast<const uint4*>(from), n);
  CUDA_CHECK_LAUNCH("copy");
}

}  // namespace

void embed(cudaStream_t stream, Tensor y, Tensor ids, Tensor table, int64_t first_row) {
  for_compute_type(y.dtype, [&]<typename Y>(Y) {
    for_compute_type(table.dtype, [&]<typename X>(X) {
      launch(stream, embed_kernel<Y, X>, static_cast<unsigned>(y.dim(0)), kThreads, 0, data_of<Y>(y), y.stride[0], data_of<int32_t>(ids), data_of<X>(table), table.stride[0], table.dim(0),
          first_row, y.dim(1));
    });
  });
  CUDA_CHECK_LAUNCH("embed");
}

void rms_norm(cudaStream_t stream, Tensor y, Tensor x, Tensor w, float eps) {
  for_compute_type(x.dtype, [&]<typename T>(T) { norm<T, T, false>(stream, y, x, {}, w, eps); });
}

void add_rms_norm(cudaStream_t stream, Tensor y, Tensor residual, Tensor add, Tensor w, float eps) {
  for_compute_type(residual.dtype, [&]<typename T>(T) {
    for_compute_type(add.dtype, [&]<typename A>(A) { norm<T, A, true>(stream, y, residual, add, w, eps); });
  });
}

void add(cudaStream_t stream, Tensor y, Tensor x) {
  const dim3 grid(blocks_for(x.dim(1), kThreads), static_cast<unsigned>(x.dim(0)));
  launch(stream, add_kernel, grid, kThreads, 0, data_of<float>(y), y.stride[0], data_of<float>(x), x.stride[0], x.dim(1));
  CUDA_CHECK_LAUNCH("add");
}

void silu_mul(cudaStream_t stream, Tensor y, Tensor gate_up) {
  const int64_t n = y.dim(0) * y.dim(1);
  const bool eights = by_eights(y) && by_eights(gate_up);
  for_compute_type(y.dtype, [&]<typename T>(T) {
    const auto kernel = eights ? silu_mul_kernel<T, 8> : silu_mul_kernel<T, 1>;
    launch(stream, kernel, blocks_for(n, kThreads * (eights ? 8 : 1)), kThreads, 0, data_of<T>(y), y.stride[0], data_of<T>(gate_up), gate_up.stride[0], y.dim(1), n);
  });
  CUDA_CHECK_LAUNCH("silu_mul");
}

void gather_rows(cudaStream_t stream, Tensor y, Tensor x, Tensor rows) {
  for_compute_type(y.dtype, [&]<typename T>(T) {
    launch(stream, embed_kernel<T, T>, static_cast<unsigned>(y.dim(0)), kThreads, 0, data_of<T>(y), y.stride[0], data_of<int32_t>(rows), data_of<T>(x), x.stride[0], x.dim(0), 0, y.dim(1));
  });
  CUDA_CHECK_LAUNCH("gather_rows");
}

void copy(cudaStream_t stream, Tensor to, Tensor from) {
  const int64_t n = to.n_elements();
  const Walk w = walk_of(to, from);
  const unsigned blocks = blocks_for(n, kThreads);
  if (to.dtype == from.dtype && to.dense() && from.dense()) {
    copy_dense(stream, to.data, from.data, to.n_bytes());
    return;
  }
  if (to.dtype == from.dtype) {
    for_size(to.dtype, [&]<typename T>(T) {
      launch(stream, copy_kernel<T, T, false>, blocks, kThreads, 0, data_of<T>(to), data_of<T>(from), w, n);
    });
  } else {
    for_float_type(to.dtype, [&]<typename To>(To) {
      for_float_type(from.dtype, [&]<typename From>(From) {
        launch(stream, copy_kernel<To, From, true>, blocks, kThreads, 0, data_of<To>(to), data_of<From>(from), w, n);
      });
    });
  }
  CUDA_CHECK_LAUNCH("copy");
}

void fill_zero(cudaStream_t stream, Tensor x) {
  const int64_t n = x.n_elements();
  if (x.dense()) {
    CUDA_CHECK(cudaMemsetAsync(x.data, 0, static_cast<size_t>(x.n_bytes()), stream));
    return;
  }
  for_size(x.dtype, [&]<typename T>(T) {
    launch(stream, zero_kernel<T>, blocks_for(n, kThreads), kThreads, 0, data_of<T>(x), walk_of(x, x), n);
  });
  CUDA_CHECK_LAUNCH("fill_zero");
}

}  // namespace braid::cuda
