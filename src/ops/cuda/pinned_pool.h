// Pinned host memory for weights on their way to the device: blocks go back to the pool and are used again once the
// stream has read them. Pinning costs as much as several copies, hence the pool. Used by one thread.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace braid {

class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  explicit PinnedPool(cudaStream_t stream) : stream_(stream) {}
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  ~PinnedPool();
  std::shared_ptr<std::byte[]> take(int64_t bytes);

 private:
  struct Block {
    std::byte* data = nullptr;
    int64_t size = 0;
    bool taken = false, read_from = false;  // read_from: the stream may still read it
  };
  void give_back(std::byte* data);

  cudaStream_t stream_;
  std::vector<Block> blocks_;
};

}  // namespace braid
