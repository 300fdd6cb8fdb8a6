// Attention results of a group's ranks, sent to the rank of each head and merged by log-sum-exp, in one kernel. A thread
// sends its line of every other member's heads, then waits for the others' lines of its own, and for their log-sum-exp:
//   lines of a slot: [T][N][pieces] values, then [T][N] lse
#include <cuda_bf16.h>

#include "comm/peer_lines.cuh"

namespace braid {
namespace {

__device__ float2 floats_of(uint32_t word) {
  const auto pair = reinterpret_cast<const __nv_bfloat162&>(word);
  return __bfloat1622float2(pair);
}
__device__ uint32_t word_of(float2 x) {
  const __nv_bfloat162 pair = __float22bfloat162_rn(x);
  return reinterpret_cast<const uint32_t&>(pair);
}

// y += share * the values of a line.
template <typename T>
struct Line;
template <>
struct Line<float> {
  float v[2] = {};
  __device__ void add(uint2 line, float share) {
    v[0] += share * __uint_as_float(line.x);
    v[1] += share * __uint_as_float(line.y);
  }
  __device__ uint2 words() const { return make_uint2(__float_as_uint(v[0]), __float_as_uint(v[1])); }
};
template <>
struct Line<__nv_bfloat16> {
  float v[4] = {};
  __device__ void add(uint2 line, float share) {
    const float2 low = floats_of(line.x), high = floats_of(line.y);
    v[0] += share * low.x, v[1] += share * low.y;
    v[2] += share * high.x, v[3] += share * high.y;
  }
  __device__ uint2 words() const { return make_uint2(word_of({v[0], v[1]}), word_of({v[2], v[3]})); }
};

// Shares of the softmax over the ranks; a rank that saw nothing has 0, whatever its values hold.
__device__ void shares_of(float (&lse)[kMostPeers], int ranks) {
  constexpr float kInfinity = __builtin_huge_valf();
  float most = -kInfinity, total = 0.0f;
  for (int r = 0; r < ranks; ++r) {
    if (!(lse[r] < kInfinity)) lse[r] = -kInfinity;  // NaN too
    most = fmaxf(most, lse[r]);
  }
  for (int r = 0; r < ranks; ++r) {
    lse[r] = lse[r] == -kInfinity ? 0.0f : expf(lse[r] - most);
    total += lse[r];
  }
  for (int r = 0; r < ranks; ++r) lse[r] = lse[r] == 0.0f ? 0.0f : lse[r] / total;
}

template <typename T>
__global__ void __launch_bounds__(kPeerThreads) merge_heads_kernel(const MergeTask m) {
  begin_after_previous();
  const PeerTask& t = m.peers;
  const uint32_t number = begin_collective(t);
  const int64_t own_rows = m.tokens * m.heads, lines = own_rows * m.pieces;
  const auto* values = reinterpret_cast<const uint2*>(t.in);
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < lines; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t piece = i % m.pieces, row = i / m.pieces, token = row / m.heads, head = row % m.heads;
    const auto row_of = [&](int r) { return (token * t.size + r) * m.heads + head; };  // of rank r's head
    for (int k = 1; k < t.size; ++k) {
      const int to = (t.place + k) % t.size;
      const uint2 v = values[row_of(to) * m.pieces + piece];
      store_line(slot_of(t, to, t.place, number) + i, v.x, v.y, number);
      if (piece == 0) store_line(slot_of(t, to, t.place, number) + lines + row, __float_as_uint(m.lse[row_of(to)]), 0u, number);
    }
    float share[kMostPeers];
    for (int r = 0; r < t.size; ++r) {
      share[r] = r == t.place ? m.lse[row_of(r)] : __uint_as_float(wait_line(slot_of(t, t.place, r, number) + lines + row, number, t.aborted).x);
    }
    shares_of(share, t.size);
    Line<T> y;
    for (int r = 0; r < t.size; ++r) {
      const uint2 v = r == t.place ? values[row_of(r) * m.pieces + piece] : wait_line(slot_of(t, t.place, r, number) + i, number, t.aborted);
      if (share[r] != 0.0f) y.add(v, share[r]);
    }
    reinterpret_cast<uint2*>(t.out)[row * m.pieces + piece] = y.words();
  }
  end_collective(t, number);
}

}  // namespace

cudaError_t launch_merge_task(const MergeTask& m, cudaStream_t stream) {
  const unsigned blocks = peer_blocks(m.tokens * m.heads * m.pieces);
  launch(stream, m.bfloat16 ? merge_heads_kernel<__nv_bfloat16> : merge_heads_kernel<float>, blocks, kPeerThreads, 0, m);
  return cudaGetLastError();
}

}  // namespace braid
