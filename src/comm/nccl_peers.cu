// Sums, gathers and exchanges of small messages.
#include "comm/peer_lines.cuh"
#include "comm/tree_sum.cuh"

namespace braid {
namespace {

template <bool kSum>
__global__ void __launch_bounds__(kPeerThreads) peer_kernel(const PeerTask t) {
  begin_after_previous();
  const uint32_t number = begin_collective(t);
  const int64_t lines = (t.words + 1) / 2;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < lines; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t word = 2 * i;
    const bool two = word + 1 < t.words;
    for (int k = 1; k < t.size; ++k) {
      const int to = (t.place + k) % t.size;
      const uint32_t* in = t.in + to * t.in_step + word;
      store_line(slot_of(t, to, t.place, number) + i, in[0], two ? in[1] : 0u, number);
    }
    const uint32_t* own = t.in + t.place * t.in_step + word;
    float a[kMostPeers], b[kMostPeers];
    for (int r = 0; r < t.size; ++r) {
      uint2 v;
      if (r == t.place) {
        v = make_uint2(own[0], two ? own[1] : 0u);
      } else {
        v = wait_line(slot_of(t, t.place, r, number) + i, number, t.aborted);
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
  end_collective(t, number);
}

}  // namespace

cudaError_t launch_peer_task(const PeerTask& t, cudaStream_t stream) {
  launch(stream, t.sum ? peer_kernel<true> : peer_kernel<false>, peer_blocks((t.words + 1) / 2), kPeerThreads, 0, t);
  return cudaGetLastError();
}

}  // namespace braid
