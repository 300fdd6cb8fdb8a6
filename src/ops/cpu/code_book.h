// Eight-bit weights as the kernels read them: a sign in the top bit and one of 128 magnitudes, whatever the type. A
// weight is (the code's number) * unit * scale; every number is exact in bfloat16, and its own half up to a shift of
// the bits. NaN has no code: a group that holds one gets NaN as its scale.
#pragma once
#include <cstdint>

#include "tensor/tensor.h"

namespace braid {

struct CodeBook {
  alignas(64) uint8_t high[128], low[128];  // bytes of the magnitudes' numbers as bfloat16
  float number[256];                        // of a code
  // As a half a number is (code, its sign extended to 16 bits, * factor) & mask.
  int16_t factor;
  uint16_t mask;
  float unit;         // 2^8 for float8_e4m3, 2^24 for int8: exponents as a half has them
  uint8_t code[256];  // of an element's bits; meaningless for NaN
  bool nan[256];
};

const CodeBook& code_book(DType);  // float8_e4m3 or int8

// Bytes that `k` neighbours of one output's group take beside their scale.
constexpr int64_t code_bytes(int64_t k) { return (k + 3) / 4 * 4; }

}  // namespace braid
