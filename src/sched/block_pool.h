// The KV blocks of the pool as numbers: who is free, who is held how often, and which free block is handed out next.
// A free block is *vacant* (holds nothing of use) or *cached* (holds KV that the prefix index can still find). Vacant
// blocks go first, lowest id first, so that the pool stays compact; then cached ones, longest released first.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace braid {

class BlockPool {
 public:
  explicit BlockPool(int64_t n_blocks);

  int64_t n_blocks() const { return static_cast<int64_t>(refs_.size()); }
  int64_t n_free() const { return n_vacant() + n_cached_; }
  int64_t n_vacant() const { return static_cast<int64_t>(vacant_.size()); }
  int64_t n_cached() const { return n_cached_; }
  int refs(BlockId block) const { return refs_[index(block)]; }

  // A free block, held once from now on. When it was cached the caller removes it from the prefix index: eviction
  // happens here and nowhere earlier. Requires n_free() > 0.
  BlockId take();
  // One more holder of a block that is held or cached; its contents stay.
  void claim(BlockId block);
  // One holder less. The last one leaves it cached (`keep`) or vacant.
  void release(BlockId block, bool keep);
  // Every cached block becomes vacant.
  void vacate_cached();

 private:
  size_t index(BlockId block) const;
  void unlink(int32_t block);

  std::vector<int32_t> refs_;
  std::vector<int32_t> vacant_;  // min-heap
  // Cached blocks as a ring through the sentinel n_blocks, in release order; next_ is -1 outside the ring.
  std::vector<int32_t> next_, previous_;
  int64_t n_cached_ = 0;
};

}  // namespace braid
