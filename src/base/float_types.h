// The narrow float formats on the host: bf16, IEEE half and e4m3 (the "fn" kind: no infinities, 448 the largest).
// Conversions to float are exact; conversions from float round to nearest even, e4m3 saturates at +-448.
#pragma once
#include <bit>
#include <cstdint>

namespace braid {

struct BFloat16 {
  uint16_t bits = 0;
};
struct Half {
  uint16_t bits = 0;
};
struct Float8E4M3 {
  uint8_t bits = 0;
};

inline float to_float(float x) { return x; }
inline float to_float(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
float to_float(Half x);
float to_float(Float8E4M3 x);

inline BFloat16 to_bfloat16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};  // NaN stays NaN
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
Half to_half(float x);
Float8E4M3 to_float8_e4m3(float x);

// store(&y, x): one spelling for kernels that are templates on the element type.
inline void store(float* y, float x) { *y = x; }
inline void store(BFloat16* y, float x) { *y = to_bfloat16(x); }
inline void store(Half* y, float x) { *y = to_half(x); }
inline void store(Float8E4M3* y, float x) { *y = to_float8_e4m3(x); }

}  // namespace braid
