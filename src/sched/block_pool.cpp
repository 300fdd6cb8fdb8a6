// Heap of vacant blocks and ring of cached ones; see the header.
#include "sched/block_pool.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace braid {

BlockPool::BlockPool(int64_t n_blocks) {
  BRAID_CHECK(n_blocks > 0 && n_blocks < std::numeric_limits<int32_t>::max(), "{} blocks", n_blocks);
  const auto n = static_cast<size_t>(n_blocks);
  refs_.assign(n, 0);
  vacant_.resize(n);
  std::iota(vacant_.begin(), vacant_.end(), 0);  // ascending is a valid min-heap
  next_.assign(n + 1, -1);
  previous_.assign(n + 1, -1);
  next_[n] = previous_[n] = static_cast<int32_t>(n);
}

size_t BlockPool::index(BlockId block) const {
  BRAID_CHECK(block.value >= 0 && block.value < n_blocks(), "block {} of {}", block.value, n_blocks());
  return static_cast<size_t>(block.value);
}

void BlockPool::unlink(int32_t block) {
  next_[previous_[block]] = next_[block];
  previous_[next_[block]] = previous_[block];
  next_[block] = previous_[block] = -1;
  --n_cached_;
}

BlockId BlockPool::take() {
  BRAID_CHECK(n_free() > 0, "no free block");
  int32_t block = 0;
  if (!vacant_.empty()) {
    std::pop_heap(vacant_.begin(), vacant_.end(), std::greater<>());
    block = vacant_.back();
    vacant_.pop_back();
  } else {
    block = next_[refs_.size()];
    unlink(block);
  }
  refs_[block] = 1;
  return BlockId(block);
}

void BlockPool::claim(BlockId block) {
  const size_t i = index(block);
  if (refs_[i] == 0) {
    BRAID_CHECK(next_[i] >= 0, "block {} is vacant and cannot be claimed", block.value);
    unlink(static_cast<int32_t>(i));
  }
  ++refs_[i];
}

void BlockPool::release(BlockId block, bool keep) {
  const size_t i = index(block);
  BRAID_CHECK(refs_[i] > 0, "block {} is free already", block.value);
  if (--refs_[i] > 0) return;
  const auto b = static_cast<int32_t>(i);
  if (!keep) {
    vacant_.push_back(b);
    std::push_heap(vacant_.begin(), vacant_.end(), std::greater<>());
    return;
  }
  const auto end = static_cast<int32_t>(refs_.size());
  previous_[b] = previous_[end];
  next_[b] = end;
  next_[previous_[b]] = b;
  previous_[end] = b;
  ++n_cached_;
}

void BlockPool::vacate_cached() {
  while (n_cached_ > 0) {
    const int32_t block = next_[refs_.size()];
    unlink(block);
    vacant_.push_back(block);
    std::push_heap(vacant_.begin(), vacant_.end(), std::greater<>());
  }
}

}  // namespace braid
