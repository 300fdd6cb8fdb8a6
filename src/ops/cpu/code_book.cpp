#include "ops/cpu/code_book.h"

#include <cmath>

#include "base/error.h"

namespace braid {
namespace {

CodeBook make_book(DType type) {
  const bool float8 = type == DType::kF8E4M3;
  CodeBook b{};
  b.factor = float8 ? 128 : 1;  // e4m3: its exponent and mantissa against the half's; int8: a denormal half
  b.mask = float8 ? 0xbfff : 0x807f;
  b.unit = float8 ? 0x1p8f : 0x1p24f;
  for (int i = 0; i < 256; ++i) {
    const auto bits = static_cast<uint8_t>(i), magnitude = static_cast<uint8_t>(i & 0x7f);
    const auto element = static_cast<int8_t>(bits);
    b.nan[i] = float8 && magnitude == 0x7f;
    b.code[i] = float8 || element >= 0 ? bits : static_cast<uint8_t>(0x80 | -element);
    const float value = float8 ? to_float(Float8E4M3{magnitude}) : magnitude;
    const float number = float8 && magnitude == 0x7f ? 0.0f : value / b.unit;
    b.number[i] = bits & 0x80 ? -number : number;
    if (i >= 128) continue;
    const uint16_t narrow = to_bfloat16(number).bits;
    BRAID_CHECK(to_float(BFloat16{narrow}) == number, "{} is no bfloat16", number);
    b.high[i] = static_cast<uint8_t>(narrow >> 8);
    b.low[i] = static_cast<uint8_t>(narrow & 0xff);
  }
  return b;
}

}  // namespace

const CodeBook& code_book(DType type) {
  static const CodeBook float8 = make_book(DType::kF8E4M3), int8 = make_book(DType::kI8);
  BRAID_CHECK(type == DType::kF8E4M3 || type == DType::kI8, "{} has no codes", name_of(type));
  return type == DType::kI8 ? int8 : float8;
}

}  // namespace braid
