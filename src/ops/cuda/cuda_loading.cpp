// What only the start of a run needs: host memory for weights, dummy values, the device's free memory.
#include "base/error.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/dummy.h"

namespace braid {

DeviceMemory CudaBackend::device_memory() const {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {static_cast<int64_t>(total), static_cast<int64_t>(free)};
}

std::shared_ptr<std::byte[]> CudaBackend::staging(int64_t bytes) {
  constexpr int64_t kWorthPinning = 64 << 10;
  return bytes < kWorthPinning ? Backend::staging(bytes) : pinned_->take(bytes);
}

// The device writes into the pinned host memory: the values travel twice, which is still far faster than making them on
// the host, and everything behind it is the path of a real checkpoint.
void CudaBackend::make_dummy(const DummyValues& v) {
  cudaPointerAttributes where{};
  CUDA_CHECK(cudaPointerGetAttributes(&where, v.out));
  if (where.type == cudaMemoryTypeUnregistered) return make_dummy_values(v);
  launch_dummy_values(v, stream_);
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

}  // namespace braid
