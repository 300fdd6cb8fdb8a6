// Memory of one GPU. Weights and scratch are bump arenas over reserved address space that is backed by memory as they
// grow: nothing is rounded up per tensor, nothing moves, and a recorded graph stays valid when scratch grows. Caches and
// workspace are single allocations. Everything is aligned to 256 bytes. Used by one thread.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/backend.h"

namespace braid {

// Address space of a fixed size, backed by device memory from its begin up to where it was asked for.
class GrowingArena {
 public:
  GrowingArena(int device, int64_t reserve);
  GrowingArena(const GrowingArena&) = delete;
  GrowingArena& operator=(const GrowingArena&) = delete;
  ~GrowingArena();

  char* take(int64_t size);
  void rewind(int64_t offset) { used_ = offset; }
  int64_t used() const { return used_; }      // bytes, padding included
  int64_t backed() const { return backed_; }  // bytes of device memory behind it

 private:
  void back(int64_t size);

  int device_;
  int64_t reserved_, granule_ = 0, used_ = 0, backed_ = 0;
  unsigned long long base_ = 0;
  std::vector<std::pair<int64_t, unsigned long long>> pieces_;  // size and handle, in address order
};

class CudaMemory {
 public:
  explicit CudaMemory(int device);
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;
  ~CudaMemory();

  Tensor alloc(MemoryKind, DType, std::initializer_list<int64_t> shape);
  void begin_step();
  ScratchMark mark() const { return {0, scratch_.used(), 0, scratch_requested_}; }
  void release(const ScratchMark&);
  int64_t bytes(MemoryKind kind) const { return bytes_[static_cast<int>(kind)]; }  // as asked for, without padding

 private:
  GrowingArena weights_, scratch_;
  std::vector<void*> single_;
  int64_t scratch_requested_ = 0;
  int64_t bytes_[kMemoryKinds] = {};
};

}  // namespace braid
