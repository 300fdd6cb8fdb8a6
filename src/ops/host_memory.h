// Memory of the backends that compute on the host. Weights, caches and workspace live until the end; scratch is a bump
// arena that begin_step() rewinds: it grows by chaining blocks and becomes one block again at the next step, so that a
// steady state allocates nothing. Everything is aligned to 64 bytes. Weights and workspace lie one behind another in
// blocks of whole large pages (reading them in small ones takes twice as long); a cache comes straight from the system
// in small pages, which are committed only when they are first written. Used by one thread.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/backend.h"

namespace braid {

class HostMemory {
 public:
  HostMemory() = default;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory();

  Tensor alloc(MemoryKind, DType, std::initializer_list<int64_t> shape);
  void begin_step();

  ScratchMark mark() const;
  void release(const ScratchMark&);

  int64_t bytes(MemoryKind kind) const { return bytes_[static_cast<int>(kind)]; }  // as asked for, without padding

 private:
  struct Block {
    char* data = nullptr;
    int64_t size = 0;
    bool mapped = false;
  };
  static Block make_block(int64_t size, bool huge_pages);
  static void free_block(const Block&);
  char* take_scratch(int64_t size);
  char* take_lasting(int64_t size);

  std::vector<Block> lasting_;
  char* shared_end_ = nullptr;  // of the block that weights are being put into
  int64_t shared_left_ = 0;
  int64_t shared_total_ = 0;  // of all such blocks
  std::vector<Block> scratch_;
  int64_t scratch_offset_ = 0;     // within the last block
  int64_t scratch_step_ = 0;       // held now, padding included
  int64_t scratch_peak_ = 0;       // the most of that in this step
  int64_t scratch_requested_ = 0;  // held now, as asked for
  int64_t bytes_[kMemoryKinds] = {};
};

}  // namespace braid
