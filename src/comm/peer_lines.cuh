// How a kernel's messages travel between GPUs: lines of 16 bytes, see nccl_peers.h.
#pragma once
#include "comm/nccl_peers.h"
#include "tensor/launch.cuh"

namespace braid {

inline constexpr int kPeerThreads = 512;
inline constexpr int64_t kMostPeerBlocks = 64;

__device__ inline void store_line(uint4* line, uint32_t a, uint32_t b, uint32_t number) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(line), "r"(a), "r"(number), "r"(b), "r"(number) : "memory");
}

// Both words of a line that collective `number` wrote. The halves arrive on their own, each whole.
__device__ inline uint2 wait_line(const uint4* line, uint32_t number, const int* aborted) {
  for (uint32_t tries = 1;; ++tries) {
    uint32_t a, b, a_number, b_number;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(a_number), "=r"(b), "=r"(b_number) : "l"(line) : "memory");
    if (a_number == number && b_number == number) return make_uint2(a, b);
    if (tries % 4096 == 0 && *static_cast<const volatile int*>(aborted) != 0) return make_uint2(0, 0);
  }
}

// The number of this launch's collective; the same in all blocks until end_collective().
__device__ inline uint32_t begin_collective(const PeerTask& t) { return *static_cast<volatile uint32_t*>(t.state) + 1; }

// Two sets of slots in turn: whoever has this collective's lines from all members knows that all are done with the one
// before, so that the next may overwrite them.
__device__ inline uint4* slot_of(const PeerTask& t, int receiver, int sender, uint32_t number) {
  return t.buffers[receiver] + ((number & 1) * t.size + sender) * t.lines_per_slot;
}

__device__ inline void end_collective(const PeerTask& t, uint32_t number) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicInc(t.state + 1, gridDim.x - 1) == gridDim.x - 1) t.state[0] = number;  // all blocks have read it
  }
}

inline unsigned peer_blocks(int64_t lines) {
  const int64_t blocks = (lines + kPeerThreads - 1) / kPeerThreads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < kMostPeerBlocks ? blocks : kMostPeerBlocks);
}

}  // namespace braid
