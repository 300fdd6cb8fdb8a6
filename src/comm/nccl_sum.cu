// Sums over ranks on the device, in the order that comm.h promises.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "comm/tree_sum.cuh"

namespace braid {
namespace {

__global__ void tree_sum_kernel(float* out, const float* in, int64_t stride, int size, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    out[i] = tree_sum(size, [&](int r) { return in[r * stride + i]; });
  }
}

}  // namespace

void tree_sum_on_device(float* out, const float* in, int64_t stride, int size, int64_t n, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const int64_t blocks = std::min<int64_t>((n + kThreads - 1) / kThreads, 1024);
  if (blocks > 0) tree_sum_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(out, in, stride, size, n);
}

}  // namespace braid
