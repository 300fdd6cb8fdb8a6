// Collectives of small messages, one kernel each: every member writes into memory of the others, which they look at
// themselves. A message travels as lines of 16 bytes, half of them data, the other half a number that says which
// collective wrote them; so it needs no barrier, one trip, and a few microseconds, where NCCL needs eight.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/comm.h"
#include "comm/run_state.h"

namespace braid {

inline constexpr int kMostPeers = 8;

// What one launch does. Pieces are counted in words of 4 bytes. Two words make a line.
struct PeerTask {
  const uint32_t* in = nullptr;
  uint32_t* out = nullptr;
  int64_t in_step = 0;   // from the piece for one member to the next one's; 0: all get the same
  int64_t out_step = 0;  // from the place of one member's piece to the next one's; unused by sums
  int64_t words = 0;     // of a piece
  bool sum = false;      // pieces are floats and are added in the tree over ranks
  int place = 0, size = 0;
  uint4* buffers[kMostPeers] = {};  // by member; [2][size senders][lines_per_slot]
  int64_t lines_per_slot = 0;
  uint32_t* state = nullptr;        // own: the number of the last collective, blocks that are done
  const int* aborted = nullptr;     // pinned host memory
};
cudaError_t launch_peer_task(const PeerTask& task, cudaStream_t stream);  // nccl_peers.cu

// Merges results of attention, see Comm::merge_heads(): peers.in are values, peers.out y.
struct MergeTask {
  PeerTask peers;
  const float* lse = nullptr;
  int64_t tokens = 0, heads = 0;  // of this member
  int64_t pieces = 0;             // of 8 bytes, of a head's values
  bool bfloat16 = false;          // else float32
};
cudaError_t launch_merge_task(const MergeTask& task, cudaStream_t stream);  // nccl_merge.cu

class PeerBuffers {
 public:
  // Collective over `host`'s group, with each member's device current. Null, on every member, where some member cannot
  // write into another's memory.
  static std::unique_ptr<PeerBuffers> make(Comm& host, RunState& run);
  PeerBuffers(const PeerBuffers&) = delete;
  PeerBuffers& operator=(const PeerBuffers&) = delete;
  ~PeerBuffers();

  bool fits(int64_t bytes /*of a piece*/) const { return bytes <= kMostBytes && bytes % 4 == 0; }
  void all_reduce(float* x, int64_t n, cudaStream_t stream);
  void reduce_scatter(float* out, const float* in /*[size, n]*/, int64_t n, cudaStream_t stream);
  void gather(std::byte* out, const std::byte* in, int64_t bytes, cudaStream_t stream);
  void all_to_all(std::byte* out, const std::byte* in, int64_t bytes, cudaStream_t stream);
  // Values of `tokens` x `heads` of a member, `head_bytes` each, with a log-sum-exp.
  bool merges(int64_t tokens, int64_t heads, int64_t head_bytes) const {
    return head_bytes % 8 == 0 && tokens * heads * (head_bytes + 8) <= kMostBytes;
  }
  void merge_heads(Tensor y, Tensor values, Tensor lse, cudaStream_t stream);
  void abort() { __atomic_store_n(aborted_, 1, __ATOMIC_RELEASE); }  // kernels that wait give up; any thread

 private:
  // Half of a line is data. Above this NCCL, whose lines are all data, is faster.
  static constexpr int64_t kMostBytes = 512 << 10;

  PeerBuffers(int place, int size, RunState& run);
  bool open_peers(Comm& host);
  void launch(PeerTask task, const void* in, void* out, int64_t bytes, cudaStream_t stream);

  RunState& run_;
  PeerTask base_;              // what all tasks have in common
  uint4* own_ = nullptr;
  int* aborted_ = nullptr;
  std::vector<void*> opened_;  // memory of other processes
};

}  // namespace braid
