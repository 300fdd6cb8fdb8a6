// What products of a few rows of bfloat16 share: a warp multiplies 16 rows of w, some chunks of K of them, with 8 or 16
// rows of x. On the tensor cores w is the 16-row operand and the rows of x are the columns; both take their lanes of K in
// the same permuted order, so that a thread's 16 bytes are consecutive. Weights are asked for kAhead chunks before they
// are needed, each once.
#pragma once
#include "ops/cuda/device.cuh"
#include "ops/cuda/mma.cuh"

namespace braid::cuda {

constexpr int kNarrowRowsOfW = 16, kNarrowDepth = 64, kNarrowAhead = 4;

// Streamed: a weight is used once per step.
__device__ inline uint4 load_once(const BFloat16* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// A thread's weights of one chunk: lanes 8 (lane % 4) + {0..7} of both halves, of rows lane / 4 and lane / 4 + 8.
struct NarrowChunk {
  uint4 low[2], high[2];
  __device__ void load(const BFloat16* w_low, const BFloat16* w_high) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      low[h] = load_once(w_low + h * 32);
      high[h] = load_once(w_high + h * 32);
    }
  }
};

// acc[e] (c of mma_bf16) += the chunk times eight rows of x; x[e] is where this thread's lanes of row lane / 4 of the e-th
// eight begin, or null for a row of zeros.
template <int kEights, bool kFull>
__device__ void multiply_narrow(float (&acc)[kEights][4], const NarrowChunk& w, const BFloat16* const (&x)[kEights], int64_t offset) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t first[4] = {w.low[h].x, w.high[h].x, w.low[h].y, w.high[h].y};
    const uint32_t second[4] = {w.low[h].z, w.high[h].z, w.low[h].w, w.high[h].w};
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      uint4 v{};
      if (kFull || x[e]) v = *reinterpret_cast<const uint4*>(x[e] + offset + h * 32);
      mma_bf16(acc[e], first, v.x, v.y);
      mma_bf16(acc[e], second, v.z, v.w);
    }
  }
}

// Sums of warps, to be added in their order: [warp][row of w][row of x].
template <int kEights, int kWarps>
struct NarrowSums {
  float of[kWarps][kNarrowRowsOfW][8 * kEights + 1];
  __device__ void put(const float (&acc)[kEights][4]) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int i = 0; i < 4; ++i) of[warp][g + i / 2 * 8][e * 8 + q * 2 + i % 2] = acc[e][i];
    }
  }
  __device__ float total(int of_w, int of_x) const {
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < kWarps; ++s) sum += of[s][of_w][of_x];
    return sum;
  }
};

inline bool divides_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace braid::cuda
