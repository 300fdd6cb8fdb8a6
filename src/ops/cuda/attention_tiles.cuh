// Rows of keys, values and queries on their way into shared memory as bfloat16.
#pragma once
#include "ops/cuda/attention.cuh"
#include "ops/cuda/mma.cuh"

namespace braid::cuda {

__host__ __device__ constexpr int padded_lanes(int d) { return (d + 15) / 16 * 16; }
// Bytes from row to row in shared memory: an odd number of 16-byte chunks, so that eight rows lie in different banks.
__host__ __device__ constexpr int row_bytes(int d) { return padded_lanes(d) * 2 + 16; }

// Eight lanes of a cached row, as bfloat16, into shared memory; lanes from `d` on and absent rows are zeros.
template <typename C>
__device__ void load_chunk(char* to, const C* from, int lane, int d, bool valid, bool aligned) {
  if constexpr (sizeof(C) == 2) {
    if (aligned) {
      const bool whole = valid && lane < d;
      copy_async(shared_address(to), whole ? from + lane : from, whole);
      return;
    }
  }
  Pack<BFloat16, 8> p;
  if (valid && aligned && lane < d) {
    const auto raw = *reinterpret_cast<const Pack<C, 8>*>(from + lane);
#pragma unroll
    for (int i = 0; i < 8; ++i) p.v[i] = from_f<BFloat16>(to_f(raw.v[i]));
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) p.v[i] = valid && lane + i < d ? from_f<BFloat16>(to_f(from[lane + i])) : BFloat16{};
  }
  *reinterpret_cast<Pack<BFloat16, 8>*>(to) = p;
}

// Rows of a tile, d lanes each, of which those from dn on are in a second matrix.
template <typename C>
struct TileSource {
  const C *base, *rest;
  int64_t stride, rest_stride;
  int d, dn;
};

// kKeys rows of which n exist; kLanes: padded lanes of a row, 0 where they are not known when compiling.
template <typename C, int kKeys, int kThreads, int kLanes = 0>
__device__ void load_rows(char* to, const TileSource<C>& source, const int64_t* slots, int n, bool aligned) {
  const int chunks = (kLanes > 0 ? kLanes : padded_lanes(source.d)) / 8;
  const int bytes = kLanes > 0 ? row_bytes(kLanes) : row_bytes(source.d);
  for (int at = threadIdx.x; at < kKeys * chunks; at += kThreads) {
    const int row = at / chunks, lane = at % chunks * 8;
    const bool valid = row < n;
    const int64_t slot = valid ? slots[row] : 0;
    const C *from = source.base + slot * source.stride, *rest = source.rest + slot * source.rest_stride;
    char* chunk = to + row * bytes + lane * 2;
    if (lane + 8 <= source.dn || source.dn == source.d) {
      load_chunk(chunk, from, lane, source.dn, valid, aligned);
    } else if (source.dn % 8 == 0) {
      load_chunk(chunk, rest, lane - source.dn, source.d - source.dn, valid, aligned);
    } else {
      Pack<BFloat16, 8> p;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int l = lane + i;
        p.v[i] = !valid || l >= source.d ? BFloat16{} : from_f<BFloat16>(to_f(l < source.dn ? from[l] : rest[l - source.dn]));
      }
      *reinterpret_cast<Pack<BFloat16, 8>*>(chunk) = p;
    }
  }
}

inline bool divides(const void* p, size_t by) { return reinterpret_cast<uintptr_t>(p) % by == 0; }
// Whether eights of lanes can be read at once.
inline bool aligned_queries(const AttentionArgs& a) {
  return divides(a.q, 16) && a.q_token % 8 == 0 && a.q_head % 8 == 0 && a.dk % 8 == 0;
}
template <typename C>
bool aligned_keys(const AttentionArgs& a) {
  return divides(a.k, 8 * sizeof(C)) && divides(a.v, 8 * sizeof(C)) && divides(a.k_rope, 8 * sizeof(C)) &&
         a.k_slot % 8 == 0 && a.k_head % 8 == 0 && a.v_slot % 8 == 0 && a.v_head % 8 == 0 && a.rope_row % 8 == 0 &&
         a.dk % 8 == 0 && a.dn % 8 == 0 && a.dv % 8 == 0;
}

// A block's queries as kRows rows of `lanes` lanes; zeros where the block has fewer rows and behind a query's last lane.
template <int kRows, int kThreads>
__device__ void load_queries(char* to, const AttentionArgs& a, const AttentionBlock& b, int lanes, bool aligned) {
  for (int i = threadIdx.x; i < kRows * lanes / 8; i += kThreads) {
    const int row = i / (lanes / 8), chunk = i % (lanes / 8);
    const bool valid = row < b.n_rows;
    const BFloat16* from = static_cast<const BFloat16*>(a.q);
    if (valid) from += token_of(a, b, row) * a.q_token + head_of(a, b, row) * a.q_head;
    load_chunk(to + row * row_bytes(lanes) + chunk * 16, from, chunk * 8, a.dk, valid, aligned);
  }
}

}  // namespace braid::cuda
