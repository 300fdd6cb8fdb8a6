#include "base/float_types.h"

#include <array>
#include <cmath>

namespace braid {
namespace {

float decode_e4m3(uint8_t bits) {
  const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
  float value;
  if (exponent == 15 && mantissa == 7) {
    value = std::nanf("");
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), -9);
  } else {
    value = std::ldexp(1.0f + static_cast<float>(mantissa) / 8.0f, exponent - 7);
  }
  return (bits & 0x80) ? -value : value;
}

std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (int i = 0; i < 256; ++i) table[static_cast<size_t>(i)] = decode_e4m3(static_cast<uint8_t>(i));
  return table;
}

const std::array<float, 256> kE4M3Table = make_e4m3_table();

}  // namespace

float to_float(Half x) {
  _Float16 h;
  static_assert(sizeof h == 2);
  h = std::bit_cast<_Float16>(x.bits);
  return static_cast<float>(h);
}

Half to_half(float x) { return {std::bit_cast<uint16_t>(static_cast<_Float16>(x))}; }

float to_float(Float8E4M3 x) { return kE4M3Table[x.bits]; }

Float8E4M3 to_float8_e4m3(float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float a = std::fabs(x);
  if (std::isnan(x)) return {static_cast<uint8_t>(sign | 0x7f)};
  if (a >= 448.0f) return {static_cast<uint8_t>(sign | 0x7e)};
  int exponent = 0;
  std::frexp(a, &exponent);               // a = m * 2^exponent, m in [0.5, 1)
  if (exponent - 1 < -6) exponent = -5;   // subnormals share the smallest exponent's spacing
  const float spacing = std::ldexp(1.0f, exponent - 4);
  const float rounded = std::nearbyint(a / spacing) * spacing;  // exact: both are scaled by powers of two
  if (rounded == 0.0f) return {sign};
  int e = 0;
  const float m = std::frexp(rounded, &e);  // may have moved up one binade
  if (e - 1 < -6) return {static_cast<uint8_t>(sign | static_cast<int>(std::ldexp(rounded, 9)))};
  const int mantissa = static_cast<int>(m * 16.0f) - 8;
  return {static_cast<uint8_t>(sign | ((e - 1 + 7) << 3) | mantissa)};
}

}  // namespace braid
