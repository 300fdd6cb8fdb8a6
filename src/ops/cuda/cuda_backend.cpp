// Devices, memory and weights.
#include "ops/cuda/cuda_backend.h"

#include <cstring>

#include "base/error.h"
#include "ops/cuda/cuda_check.h"

namespace braid {
namespace {

constexpr int64_t kStagingBytes = int64_t{4} << 20;
constexpr int64_t kLtWorkspaceBytes = int64_t{32} << 20;

// Before anything else of the backend is made: memory and streams belong to the thread's current device.
int use_device(int device) {
  const int count = cuda_device_count();
  if (count == 0) throw Error("no GPU is usable here (no driver, or no device visible to this process)");
  if (device < 0 || device >= count) throw Error("GPU {} was asked for, the last one here is {}", device, count - 1);
  CUDA_CHECK(cudaSetDevice(device));
  return device;
}

}  // namespace

int cuda_device_count() {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return n;
}

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) { return std::make_unique<CudaBackend>(options); }

Staging::Staging(int64_t size) : size_(size) {
  CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&data_), static_cast<size_t>(size), cudaHostAllocDefault));
}
Staging::~Staging() { cudaFreeHost(data_); }

void* Staging::take(int64_t size) {
  size = (size + 255) / 256 * 256;
  if (used_ + size > size_) return nullptr;
  void* p = data_ + used_;
  used_ += size;
  return p;
}

CudaBackend::CudaBackend(const CudaOptions& options)
    : options_(options), memory_(use_device(options.device)), staging_(kStagingBytes),
      lt_(memory_.alloc(MemoryKind::kWorkspace, DType::kU8, {kLtWorkspaceBytes}).data, kLtWorkspaceBytes) {
  CUDA_CHECK(cudaGetDeviceProperties(&properties_, options.device));
  if (properties_.major < 8) {
    throw Error("GPU {} ({}) has compute capability {}.{}; braid's kernels need 8.0 or more", options.device,
                properties_.name, properties_.major, properties_.minor);
  }
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  pinned_ = std::make_shared<PinnedPool>(stream_);
}

CudaBackend::~CudaBackend() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

void CudaBackend::begin_step() {
  CUDA_CHECK(cudaSetDevice(options_.device));
  memory_.begin_step();
}

void CudaBackend::sync() {
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  for (const auto& finish : when_waited_) finish();
  when_waited_.clear();
  staging_.clear();
}

void* CudaBackend::staged(int64_t size) {
  void* pinned = staging_.take(size);
  if (!pinned) {
    sync();
    pinned = staging_.take(size);
    BRAID_CHECK(pinned, "{} bytes of pinned memory, {} are there", size, staging_.size());
  }
  return pinned;
}

void CudaBackend::upload(Tensor device, const void* host) {
  const int64_t size = device.n_bytes();
  if (size == 0) return;
  BRAID_CHECK(device.dense() || device.rank == 2);
  if (size <= staging_.size() / 4) {
    void* const pinned = staged(size);
    std::memcpy(pinned, host, static_cast<size_t>(size));
    host = pinned;
  }
  // From pageable memory the call returns when the host bytes have been read.
  if (device.dense()) {
    CUDA_CHECK(cudaMemcpyAsync(device.data, host, static_cast<size_t>(size), cudaMemcpyHostToDevice, stream_));
  } else {
    const auto row = static_cast<size_t>(device.dim(1) * size_of(device.dtype));
    const auto pitch = static_cast<size_t>(device.stride_of(0) * size_of(device.dtype));
    CUDA_CHECK(cudaMemcpy2DAsync(device.data, pitch, host, row, row, static_cast<size_t>(device.dim(0)), cudaMemcpyHostToDevice, stream_));
  }
}

void CudaBackend::download(void* host, Tensor device) {
  if (device.n_elements() == 0) return;
  BRAID_CHECK(device.dense());
  CUDA_CHECK(cudaMemcpyAsync(host, device.data, static_cast<size_t>(device.n_bytes()), cudaMemcpyDeviceToHost, stream_));
  sync();
}

Tensor CudaBackend::keep(Tensor w) {
  Tensor kept = w;
  kept.data = alloc(MemoryKind::kWeights, w.dtype, {w.n_elements()}).data;
  if (w.dim(0) > 0) kept.stride[0] = w.n_elements() / w.dim(0);
  put(kept, w);
  return kept;
}

void CudaBackend::put(Tensor device, Tensor w) {
  if (w.n_elements() == 0) return;
  BRAID_CHECK(device.dense() && w.rows(0, 1).dense() && device.dtype == w.dtype && device.n_elements() == w.n_elements());
  if (w.dense()) return CUDA_CHECK(cudaMemcpyAsync(device.data, w.data, static_cast<size_t>(w.n_bytes()), cudaMemcpyDefault, stream_));
  const auto row = static_cast<size_t>(w.n_bytes() / w.dim(0));
  const auto apart = static_cast<size_t>(w.stride[0] * size_of(w.dtype));
  CUDA_CHECK(cudaMemcpy2DAsync(device.data, row, w.data, apart, row, static_cast<size_t>(w.dim(0)), cudaMemcpyDefault, stream_));
}

}  // namespace braid
