#include <algorithm>

#include "comm/nccl_peers.h"
#include "comm/tree_sum.cuh"
#include "tensor/launch.cuh"

namespace braid {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kMostBlocks = 64;

__device__ void store_line(uint4* line, uint32_t a, uint32_t b, uint32_t number) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(line), "r"(a), "r"(number), "r"(b), "r"(number) : "memory");
}

// Both words of a line that collective `number` wrote. The halves arrive on their own, each whole.
__device__ uint2 wait_line(const uint4* line, uint32_t number, const int* aborted) {
  for (uint32_t tries = 1;; ++tries) {
    uint32_t a, b, a_number, b_number;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(a_number), "=r"(b), "=r"(b_number) : "l"(line) : "memory");
    if (a_number == number && b_number == number) return make_uint2(a, b);
    if (tries % 4096 == 0 && *static_cast<const volatile int*>(aborted) != 0) return make_uint2(0, 0);
  }
}

template <bool kSum>
__global__ void __launch_bounds__(kThreads) peer_kernel(const PeerTask t) {
  begin_after_previous();
  const uint32_t number = *static_cast<volatile uint32_t*>(t.state) + 1;
  // Two sets of slots in turn: whoever has this collective's lines from all members knows that all are done with the one
  // before, so that the next may overwrite them.
  const int64_t first_slot = (number & 1) * t.size;
  const int64_t lines = (t.words + 1) / 2;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < lines; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t word = 2 * i;
    const bool two = word + 1 < t.words;
    for (int k = 1; k < t.size; ++k) {
      const int to = (t.place + k) % t.size;
      const uint32_t* in = t.in + to * t.in_step + word;
      store_line(t.buffers[to] + (first_slot + t.place) * t.lines_per_slot + i, in[0], two ? in[1] : 0u, number);
    }
    const uint32_t* own = t.in + t.place * t.in_step + word;
    float a[kMostPeers], b[kMostPeers];
    for (int r = 0; r < t.size; ++r) {
      uint2 v;
      if (r == t.place) {
        v = make_uint2(own[0], two ? own[1] : 0u);
      } else {
        v = wait_line(t.buffers[t.place] + (first_slot + r) * t.lines_per_slot + i, number, t.aborted);
      }
      if constexpr (kSum) {
        a[r] = __uint_as_float(v.x);
        b[r] = __uint_as_float(v.y);
      } else {
        uint32_t* out = t.out + r * t.out_step + word;
        out[0] = v.x;
        if (two) out[1] = v.y;
      }
    }
    if constexpr (kSum) {
      t.out[word] = __float_as_uint(t.size == 2 ? __fadd_rn(a[0], a[1]) : tree_sum(t.size, [&](int r) { return a[r]; }));
      if (two) t.out[word + 1] = __float_as_uint(t.size == 2 ? __fadd_rn(b[0], b[1]) : tree_sum(t.size, [&](int r) { return b[r]; }));
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicInc(t.state + 1, gridDim.x - 1) == gridDim.x - 1) t.state[0] = number;  // all blocks have read it
  }
}

}  // namespace

cudaError_t launch_peer_task(const PeerTask& t, cudaStream_t stream) {
  const int64_t lines = (t.words + 1) / 2;
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>((lines + kThreads - 1) / kThreads, 1, kMostBlocks));
  launch(stream, t.sum ? peer_kernel<true> : peer_kernel<false>, blocks, kThreads, 0, t);
  return cudaGetLastError();
}

}  // namespace braid
