#include "ops/cuda/pinned_pool.h"

#include <algorithm>

#include "ops/cuda/cuda_check.h"

namespace braid {
namespace {

constexpr int64_t kGranule = int64_t{1} << 20;
constexpr int64_t kKept = int64_t{256} << 20;  // larger blocks are freed when they come back

}  // namespace

PinnedPool::~PinnedPool() {
  for (Block& b : blocks_) cudaFreeHost(b.data);
}

std::shared_ptr<std::byte[]> PinnedPool::take(int64_t bytes) {
  const int64_t size = (std::max<int64_t>(bytes, 1) + kGranule - 1) / kGranule * kGranule;
  auto fits = [&](const Block& b) { return !b.taken && b.size >= size && b.size <= 2 * size; };
  auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) { return fits(b) && !b.read_from; });
  if (block == blocks_.end()) block = std::find_if(blocks_.begin(), blocks_.end(), fits);
  if (block == blocks_.end()) {
    Block made;
    made.size = size;
    CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&made.data), static_cast<size_t>(size), cudaHostAllocDefault));
    block = blocks_.insert(blocks_.end(), made);
  }
  if (block->read_from) {
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    for (Block& b : blocks_) b.read_from = b.read_from && b.taken;
  }
  block->taken = block->read_from = true;
  return {block->data, [pool = shared_from_this()](std::byte* data) { pool->give_back(data); }};
}

void PinnedPool::give_back(std::byte* data) {
  const auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) { return b.data == data; });
  block->taken = false;
  if (block->size <= kKept) return;
  cudaStreamSynchronize(stream_);
  cudaFreeHost(block->data);
  blocks_.erase(block);
}

}  // namespace braid
