// One rank's NCCL communicator over a list of ranks. Its calls come from the rank's thread; abort() from any, which ends
// the kernels that wait for a lost peer.
#pragma once
#include <cuda_runtime.h>
#include <nccl.h>

#include <memory>
#include <mutex>

#include "comm/nccl_peers.h"
#include "comm/run_state.h"

namespace braid {

class NcclCommunicator {
 public:
  // Returns when all members have come with the same id. The rank's device is current.
  NcclCommunicator(const ncclUniqueId& id, int place, int size, cudaStream_t stream, std::shared_ptr<RunState> run);
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator();

  int size() const { return size_; }
  int place() const { return place_; }
  cudaStream_t stream() const { return stream_; }
  void abort();
  void use_peers(std::unique_ptr<PeerBuffers> peers) { peers_ = std::move(peers); }  // for small messages; or null

  // All bytes are device memory. `bytes` of a member are the same on all others.
  void all_gather(std::byte* out, const std::byte* in, int64_t bytes);
  void broadcast(std::byte* x, int64_t bytes, int root);
  void all_to_all(std::byte* out, const std::byte* in, int64_t bytes /*of a piece*/);
  // Every member sends a piece to every other and takes one from it; its own piece is copied. Pieces may be empty.
  struct Piece {
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  template <typename ToOf, typename FromOf>
  void exchange(ToOf to, FromOf from) {
    const Lock lock(*this);
    check(ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < size_; ++r) {
      const Piece out = to(r), in = from(r);
      if (r == place_) {
        copy(in, out);
        continue;
      }
      if (out.bytes > 0) check(ncclSend(out.data, static_cast<size_t>(out.bytes), ncclUint8, r, comm_, stream_), "ncclSend");
      if (in.bytes > 0) check(ncclRecv(in.data, static_cast<size_t>(in.bytes), ncclUint8, r, comm_, stream_), "ncclRecv");
    }
    check(ncclGroupEnd(), "ncclGroupEnd");
  }
  // Comm::merge_heads(), where members write into each other's memory.
  bool merge_heads_fits(const Tensor& y) const { return peers_ && peers_->merges(y.dim(0), y.dim(1), y.dim(2) * size_of(y.dtype)); }
  void merge_heads(Tensor y, Tensor values, Tensor lse);
  // Sums in the balanced tree over ranks. Two numbers have one sum in whatever order; with more members NCCL's own order
  // would depend on the place in the vector, so pieces are exchanged and added here.
  void all_reduce(float* x, int64_t n);
  void reduce_scatter(float* out, const float* in /*[size, n]*/, int64_t n);

 private:
  // While NCCL is called. An abort waits for it a moment, then goes ahead: the call hangs.
  class Lock {
   public:
    explicit Lock(NcclCommunicator& c);

   private:
    std::unique_lock<std::timed_mutex> lock_;
  };
  bool small(int64_t bytes) const { return peers_ && peers_->fits(bytes); }
  void check(ncclResult_t result, const char* what);
  void copy(Piece to, Piece from);
  float* workspace(int64_t n);

  const int place_, size_;
  const cudaStream_t stream_;
  const std::shared_ptr<RunState> run_;
  std::timed_mutex mutex_;
  ncclComm_t comm_ = nullptr;  // null once aborted
  std::unique_ptr<PeerBuffers> peers_;
  float* workspace_ = nullptr;
  int64_t workspace_size_ = 0;
};

void cuda_or_fail(RunState& run, cudaError_t status, const char* what);

// out[i] = the balanced tree sum of in[r * stride + i] over `size` ranks (nccl_sum.cu).
void tree_sum_on_device(float* out, const float* in, int64_t stride, int size, int64_t n, cudaStream_t stream);

}  // namespace braid
