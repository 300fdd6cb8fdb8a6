#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/dummy.h"

namespace braid {
namespace {

constexpr int kRun = 8;  // elements of a thread: 16 bytes of bfloat16, so that stores over the bus are wide

__device__ float dummy_value(const DummyValues& v, int64_t index) {
  const auto i = static_cast<uint64_t>(index);
  const float x = __fadd_rn(v.mean, __fmul_rn(v.deviation, dummy_uniform(dummy_hash(v.key, i), i)));
  if (v.precision == DType::kBF16) return __bfloat162float(__float2bfloat16_rn(x));
  if (v.precision == DType::kF16) return __half2float(__float2half_rn(x));
  return x;
}

template <typename T>
__device__ T stored_as(float x);
template <>
__device__ float stored_as<float>(float x) { return x; }
template <>
__device__ __nv_bfloat16 stored_as<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

template <typename T>
__global__ void dummy_kernel(DummyValues v) {
  const int64_t runs = (v.columns + kRun - 1) / kRun;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < runs * v.rows; i += step) {
    const int64_t row = i / runs, column = i % runs * kRun;
    const int n = static_cast<int>(min(int64_t{kRun}, v.columns - column));
    T* out = static_cast<T*>(v.out) + row * v.out_stride + column;
    alignas(16) T values[kRun];
#pragma unroll
    for (int k = 0; k < kRun; ++k) values[k] = stored_as<T>(dummy_value(v, v.first + row * v.row_step + column + k));
    if (n == kRun && reinterpret_cast<uintptr_t>(out) % 16 == 0) {
#pragma unroll
      for (size_t k = 0; k < sizeof values / 16; ++k) reinterpret_cast<uint4*>(out)[k] = reinterpret_cast<const uint4*>(values)[k];
    } else {
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        if (k < n) out[k] = values[k];
      }
    }
  }
}

}  // namespace

void launch_dummy_values(const DummyValues& v, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const int64_t runs = (v.columns + kRun - 1) / kRun * v.rows;
  if (runs == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((runs + kThreads - 1) / kThreads, 2048));
  if (v.type == DType::kBF16) {
    dummy_kernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(v);
  } else {
    dummy_kernel<float><<<blocks, kThreads, 0, stream>>>(v);
  }
  CUDA_CHECK_LAUNCH("dummy_kernel");
}

}  // namespace braid
