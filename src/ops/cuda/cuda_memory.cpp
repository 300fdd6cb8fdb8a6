#include "ops/cuda/cuda_memory.h"

#include <cuda.h>

#include <algorithm>

#include "base/error.h"
#include "ops/cuda/cuda_check.h"

namespace braid {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kPiece = int64_t{32} << 20;  // least growth of an arena

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// The driver's address-space calls, looked up so that the binary needs no libcuda to start.
struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) unreserve;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
};

template <typename F>
void look_up(const char* name, F*& function) {
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  void* address = nullptr;
  CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) throw RuntimeFailure(fmt::format("the GPU's driver has no {}", name));
  function = reinterpret_cast<F*>(address);
}

const Driver& driver() {
  static const Driver d = [] {
    Driver x{};
    look_up("cuMemGetAllocationGranularity", x.granularity);
    look_up("cuMemAddressReserve", x.reserve);
    look_up("cuMemAddressFree", x.unreserve);
    look_up("cuMemCreate", x.create);
    look_up("cuMemRelease", x.release);
    look_up("cuMemMap", x.map);
    look_up("cuMemUnmap", x.unmap);
    look_up("cuMemSetAccess", x.set_access);
    return x;
  }();
  return d;
}

void driver_check(CUresult status, const char* what, int64_t size) {
  if (status == CUDA_ERROR_OUT_OF_MEMORY) {
    throw RuntimeFailure(fmt::format("the GPU has no {} bytes left ({})", size, what));
  }
  if (status != CUDA_SUCCESS) throw RuntimeFailure(fmt::format("the GPU failed: {} gave {}", what, static_cast<int>(status)));
}

CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  return p;
}

int64_t total_memory() {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(total);
}

}  // namespace

GrowingArena::GrowingArena(int device, int64_t reserve) : device_(device) {
  size_t granule = 0;
  const CUmemAllocationProp p = on_device(device);
  driver_check(driver().granularity(&granule, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "cuMemGetAllocationGranularity", 0);
  granule_ = static_cast<int64_t>(granule);
  reserved_ = round_up(reserve, granule_);
  driver_check(driver().reserve(&base_, static_cast<size_t>(reserved_), 0, 0, 0), "cuMemAddressReserve", reserved_);
}

GrowingArena::~GrowingArena() {
  int64_t at = 0;
  for (const auto& [size, handle] : pieces_) {
    driver().unmap(base_ + static_cast<unsigned long long>(at), static_cast<size_t>(size));
    driver().release(handle);
    at += size;
  }
  driver().unreserve(base_, static_cast<size_t>(reserved_));
}

void GrowingArena::back(int64_t size) {
  size = round_up(std::max(size, kPiece), granule_);
  if (backed_ + size > reserved_) {
    throw RuntimeFailure(fmt::format("an arena of {} bytes is asked for {}", reserved_, backed_ + size));
  }
  const CUmemAllocationProp p = on_device(device_);
  CUmemGenericAllocationHandle handle = 0;
  driver_check(driver().create(&handle, static_cast<size_t>(size), &p, 0), "cuMemCreate", size);
  const CUdeviceptr at = base_ + static_cast<unsigned long long>(backed_);
  driver_check(driver().map(at, static_cast<size_t>(size), 0, handle, 0), "cuMemMap", size);
  const CUmemAccessDesc access{p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  driver_check(driver().set_access(at, static_cast<size_t>(size), &access, 1), "cuMemSetAccess", size);
  pieces_.emplace_back(size, handle);
  backed_ += size;
}

char* GrowingArena::take(int64_t size) {
  size = round_up(std::max<int64_t>(size, 1), kAlignment);
  if (used_ + size > backed_) back(used_ + size - backed_);
  char* p = reinterpret_cast<char*>(base_) + used_;
  used_ += size;
  return p;
}

CudaMemory::CudaMemory(int device) : weights_(device, total_memory()), scratch_(device, total_memory()) {}

CudaMemory::~CudaMemory() {
  for (void* p : single_) cudaFree(p);
}

Tensor CudaMemory::alloc(MemoryKind kind, DType dtype, std::initializer_list<int64_t> shape) {
  Tensor t(nullptr, dtype, shape);
  const int64_t size = t.n_bytes();
  int64_t& counted = bytes_[static_cast<int>(kind)];
  if (kind == MemoryKind::kScratch) {
    t.data = scratch_.take(size);
    scratch_requested_ += size;
    counted = std::max(counted, scratch_requested_);
    return t;
  }
  if (kind == MemoryKind::kWeights) {
    t.data = weights_.take(size);
  } else {
    const cudaError_t status = cudaMalloc(&t.data, static_cast<size_t>(std::max<int64_t>(size, 1)));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // is handled here, and must not be found by the next check
      throw RuntimeFailure(fmt::format("the GPU has no {} bytes left", size));
    }
    CUDA_CHECK(status);
    single_.push_back(t.data);
  }
  counted += size;
  return t;
}

void CudaMemory::begin_step() {
  scratch_.rewind(0);
  scratch_requested_ = 0;
}

void CudaMemory::release(const ScratchMark& m) {
  scratch_.rewind(m.offset);
  scratch_requested_ = m.requested;
}

}  // namespace braid
