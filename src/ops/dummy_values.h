// Values of dummy weights: a pure function of (key, element), so that layouts, backends and machines agree on every bit.
#pragma once
#include <cstdint>

#include "tensor/tensor.h"

namespace braid {

// Rows of a dense row-major tensor, and where they go.
struct DummyValues {
  void* out = nullptr;
  DType type = DType::kF32;       // of out: float32 or bfloat16
  DType precision = DType::kF32;  // values are rounded to it first: float32, bfloat16 or float16
  uint64_t key = 0;
  float mean = 0.0f, deviation = 1.0f;
  int64_t rows = 0, columns = 0;
  int64_t first = 0;        // index of the first element in the whole tensor
  int64_t row_step = 0;     // from one row's first index to the next one's
  int64_t out_stride = 0;   // likewise in out, in elements
};

// One 64-bit hash gives four elements 16 uniform bits each: mean 0 and standard deviation 1, no library function.
constexpr uint64_t dummy_hash(uint64_t key, uint64_t index) {
  uint64_t x = key + 0x9e3779b97f4a7c15u * (index / 4);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
constexpr float dummy_uniform(uint64_t hash, uint64_t index) {
  constexpr float kStep = 3.4641016f / 65536.0f;  // sqrt(12) is the width of a uniform distribution of deviation 1
  return (static_cast<float>(hash >> (16 * (index % 4)) & 0xffff) - 32767.5f) * kStep;
}

void make_dummy_values(const DummyValues&);  // on the calling thread

}  // namespace braid
