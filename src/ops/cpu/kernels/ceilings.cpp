// What one core of this level can do at most, measured by benchmarks beside their results.
#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/table.h"
#include "ops/cpu/kernels/vec.h"

namespace braid::BRAID_LEVEL {
namespace {

constexpr int kChains = 12;  // enough to hide the latency, few enough for sixteen registers

// `sink` keeps the loops alive.
int64_t float32_flops(int64_t n, float* sink) {
  F acc[kChains];
  for (int c = 0; c < kChains; ++c) acc[c] = broadcast(static_cast<float>(c));  // all different, or they become one
  F a = broadcast(sink[0]);
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) acc[c] = fma(a, a, acc[c]);
    asm volatile("" : "+x"(a));
  }
  for (int c = 0; c < kChains; ++c) sink[0] += sum_lanes(acc[c]);
  return n * kChains * kLanes * 2;
}

int64_t bf16_flops(int64_t n, float* sink) {
#if defined(__AVX512BF16__)
  F acc[kChains];
  for (int c = 0; c < kChains; ++c) acc[c] = broadcast(static_cast<float>(c));
  __m512i a = _mm512_set1_epi32(static_cast<int>(sink[0]));
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_dpbf16_ps(acc[c], (__m512bh)a, (__m512bh)a);
    asm volatile("" : "+x"(a));
  }
  for (int c = 0; c < kChains; ++c) sink[0] += sum_lanes(acc[c]);
  return n * kChains * kLanes * 4;
#else
  return float32_flops(n, sink);
#endif
}

void read(const float* from, int64_t n, float* sink) {
  F sum[8] = {};
  for (int64_t i = 0; i + 8 * kLanes <= n; i += 8 * kLanes) {
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) sum[c] += load(from + i + c * kLanes);
  }
  for (int c = 0; c < 8; ++c) sink[0] += sum_lanes(sum[c]);
}

}  // namespace

void add_ceilings(Kernels& table) { table.ceilings = {float32_flops, bf16_flops, read}; }

}  // namespace braid::BRAID_LEVEL
