// Vectors of the instruction-set level that the including file is compiled for. Files in this folder are compiled once
// per level with BRAID_LEVEL naming the level's namespace; everything here is forced inline and lives in that
// namespace, so that no function compiled for one level can be linked into another.
//
// Fusing is written down: fma() is the one place, one rounding where the level has the instruction and two where it has
// not. A lane's result never depends on its neighbours, so that a row or column gives the same bits wherever it lies.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#define BRAID_INLINE static inline __attribute__((always_inline))

namespace braid::BRAID_LEVEL {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
inline constexpr int kTileVectors = 4;  // register tile: kTileRows rows by kTileVectors vectors of columns
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
inline constexpr int kTileVectors = 2;
#else
inline constexpr int kLanes = 4;
inline constexpr int kTileVectors = 2;
#endif
inline constexpr int kTileRows = 6;
inline constexpr int kPanel = kTileVectors * kLanes;  // columns of a packed panel

typedef float F __attribute__((vector_size(kLanes * 4)));
typedef int32_t I __attribute__((vector_size(kLanes * 4)));
typedef uint32_t U __attribute__((vector_size(kLanes * 4)));
typedef uint16_t U16 __attribute__((vector_size(kLanes * 2)));
typedef uint8_t U8 __attribute__((vector_size(kLanes)));

// Any address, any declared type.
template <typename V>
struct Loose {
  typedef V type __attribute__((aligned(1), may_alias));
};
template <typename V>
BRAID_INLINE V load_as(const void* p) {
  return *static_cast<const typename Loose<V>::type*>(p);
}
template <typename V>
BRAID_INLINE void store_as(void* p, V v) {
  *static_cast<typename Loose<V>::type*>(p) = v;
}
BRAID_INLINE F load(const float* p) { return load_as<F>(p); }
BRAID_INLINE void store(float* p, F v) { store_as<F>(p, v); }
BRAID_INLINE F broadcast(float x) { return x - F{}; }  // x - 0 is x for every x

BRAID_INLINE F fma(F a, F b, F c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
BRAID_INLINE F max(F a, F b) { return a > b ? a : b; }

// Sum and maximum over lanes, always in the same tree.
template <int kDistance>
BRAID_INLINE F swapped(F v) {
  I lane{};
  for (int i = 0; i < kLanes; ++i) lane[i] = i ^ kDistance;
  return __builtin_shuffle(v, lane);
}
BRAID_INLINE float sum_lanes(F v) {
  if constexpr (kLanes >= 16) v += swapped<8>(v);
  if constexpr (kLanes >= 8) v += swapped<4>(v);
  v += swapped<2>(v);
  v += swapped<1>(v);
  return v[0];
}
BRAID_INLINE float max_lanes(F v) {
  if constexpr (kLanes >= 16) v = max(v, swapped<8>(v));
  if constexpr (kLanes >= 8) v = max(v, swapped<4>(v));
  v = max(v, swapped<2>(v));
  v = max(v, swapped<1>(v));
  return v[0];
}

// 2^x to 2 ulp; 0 below 2^-126 (no denormals); NaN stays NaN. x is at most 127. x = hi + lo: a caller may have bits
// that one float can not hold.
template <bool with_lo = true>
BRAID_INLINE F exp2(F hi, F lo) {
  const F least = broadcast(-127.0f), magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  hi = hi < least ? least : hi;
  const F shifted = hi + magic;
  F f = hi - (shifted - magic);  // in [-0.5, 0.5]
  if constexpr (with_lo) f += lo;
  F p = broadcast(1.535336188319500e-4f);
  p = fma(p, f, broadcast(1.339887440266574e-3f));
  p = fma(p, f, broadcast(9.618437357674640e-3f));
  p = fma(p, f, broadcast(5.550332471162809e-2f));
  p = fma(p, f, broadcast(2.402264791363012e-1f));
  p = fma(p, f, broadcast(6.931472028550421e-1f));
  p = fma(p, f, broadcast(1.0f));
  const I exponent = (I)shifted - (I)magic;
  return p * (F)((exponent + 127) << 23);
}
BRAID_INLINE F exp2(F x) { return exp2<false>(x, F{}); }
// The same to 1e-4: for what is rounded to bfloat16 anyway.
BRAID_INLINE F rough_exp2(F x) {
  const F least = broadcast(-127.0f), magic = broadcast(12582912.0f);
  x = x < least ? least : x;
  const F shifted = x + magic, f = x - (shifted - magic);
  F p = fma(broadcast(5.500893294811249e-2f), f, broadcast(2.422109693288803e-1f));
  p = fma(p, f, broadcast(6.932829022407532e-1f));
  p = fma(p, f, broadcast(1.0f));
  return p * (F)(((I)shifted - (I)magic + 127) << 23);
}

// e^x, with the product x * log2(e) carried in two floats where there is an fma.
BRAID_INLINE F exp(F x) {
  const F log2e = broadcast(1.44269504088896341f), log2e_rest = broadcast(1.925963033500e-8f);
  x = x > 88.0f ? broadcast(88.0f) : x;
  const F hi = x * log2e;
  F lo = fma(x, log2e, -hi);
  lo = fma(x, log2e_rest, lo);
  return exp2(hi, hi > -126.0f ? lo : F{});
}
BRAID_INLINE F silu(F x) { return x / (1.0f + exp(-x)); }

// 16-bit lanes as 32-bit ones and back. The compiler's own conversion goes by halves on 512 bits; the forms with a
// (full) mask, since the plain ones warn of what they leave undefined.
BRAID_INLINE U widen(U16 x) {
#if defined(__AVX512F__)
  return (U)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)x);
#else
  return __builtin_convertvector(x, U);
#endif
}
BRAID_INLINE U16 narrow(U x) {
#if defined(__AVX512F__)
  return (U16)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)x);
#else
  return __builtin_convertvector(x, U16);
#endif
}

// bfloat16 (round to nearest even, NaN stays NaN).
BRAID_INLINE F from_bf16_bits(U16 bits) { return (F)(widen(bits) << 16); }
BRAID_INLINE U16 to_bf16_bits(F x) {
  const U u = (U)x;
  const U rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const U nan = (u >> 16) | 0x40u;
  return narrow((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}
BRAID_INLINE F round_bf16(F x) { return from_bf16_bits(to_bf16_bits(x)); }

// float8 e4m3: no infinities, 448 the largest and what everything above becomes.
BRAID_INLINE F from_e4m3_bits(U8 bits) {
  const U b = __builtin_convertvector(bits, U), magnitude = b & 0x7fu;
  const F value = (F)(magnitude << 20) * 0x1p120f;  // rebias the exponent; denormals come out right
  const U v = magnitude == 0x7fu ? U{} + 0x7fc00000u : (U)value;
  return (F)(v | (b & 0x80u) << 24);
}
BRAID_INLINE U8 to_e4m3_bits(F x) {
  const U u = (U)x, sign = (u >> 24) & 0x80u, magnitude = u & 0x7fffffffu;
  const F a = (F)magnitude;
  const U normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - (120u << 23)) >> 20;
  const U small = (U)(a + 16384.0f) - (U)broadcast(16384.0f);  // a in steps of 2^-9, rounded by the addition
  U bits = a < 0x1p-6f ? small : normal;
  bits = a >= 448.0f ? U{} + 0x7eu : bits;
  bits = magnitude > 0x7f800000u ? U{} + 0x7fu : bits;
  return __builtin_convertvector(bits | sign, U8);
}

}  // namespace braid::BRAID_LEVEL
