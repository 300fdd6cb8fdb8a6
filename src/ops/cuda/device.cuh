// What kernels share: element conversions, reductions, type dispatch, and views of tensors.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/cuda_check.h"
#include "tensor/launch.cuh"
#include "tensor/tensor.h"

namespace braid {

constexpr int kWarp = 32;
#define BRAID_INFINITY __int_as_float(0x7f800000)

__device__ inline float to_f(float x) { return x; }
__device__ inline float to_f(BFloat16 x) { return __uint_as_float(uint32_t{x.bits} << 16); }
__device__ inline float to_f(Half x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ inline float to_f(Float8E4M3 x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3)));
}
template <typename T>
__device__ T from_f(float x);
template <>
__device__ inline float from_f<float>(float x) { return x; }
template <>
__device__ inline BFloat16 from_f<BFloat16>(float x) { return {__bfloat16_as_ushort(__float2bfloat16_rn(x))}; }
template <>
__device__ inline Half from_f<Half>(float x) { return {__half_as_ushort(__float2half_rn(x))}; }
template <>
__device__ inline Float8E4M3 from_f<Float8E4M3>(float x) {
  return {static_cast<uint8_t>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3))};
}
// The nearest value of type T.
template <typename T>
__device__ float rounded(float x) { return to_f(from_f<T>(x)); }

// N consecutive elements as one or two wide accesses; the address is aligned to N elements.
template <typename T, int N>
struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) Pack {
  T v[N];
};

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
  return x;
}
// Of a whole block, in every thread; `shared` has 32 floats. The order depends on the block's size only.
__device__ inline float block_sum(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  const int n_warps = (blockDim.x + kWarp - 1) / kWarp;
  x = warp_sum(static_cast<int>(threadIdx.x % kWarp) < n_warps ? shared[threadIdx.x % kWarp] : 0.0f);
  __syncthreads();
  return x;
}

// 2^d for a whole number d <= 0, exactly; what float32 can not hold is 0, and so is 2^-infinity.
__device__ inline float power_of_two(float d) {
  return d < -126.0f ? 0.0f : __int_as_float((127 + static_cast<int>(d)) << 23);
}

// f(T{}) for the element type; two names: one type after the other.
template <typename F>
void for_compute_type(DType t, F f) {
  t == DType::kBF16 ? f(BFloat16{}) : f(0.0f);
}
template <typename F>
void for_float_type(DType t, F f) {
  switch (t) {
    case DType::kBF16: return f(BFloat16{});
    case DType::kF16: return f(Half{});
    case DType::kF8E4M3: return f(Float8E4M3{});
    default: return f(0.0f);
  }
}

template <typename T>
T* data_of(const Tensor& t) { return static_cast<T*>(t.data); }

inline unsigned blocks_for(int64_t n, int64_t per_block) { return static_cast<unsigned>((n + per_block - 1) / per_block); }

// Whether 8 elements at a time can be read from every row of a matrix.
inline bool by_eights(const Tensor& t) {
  const int64_t bytes = 8 * size_of(t.dtype) < 16 ? 8 * size_of(t.dtype) : 16;
  if (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) != 0 || t.dim(-1) % 8 != 0) return false;
  for (int i = 0; i + 1 < t.rank; ++i) {
    if (t.dim(i) > 1 && t.stride_of(i) % 8 != 0) return false;
  }
  return true;
}

}  // namespace braid
