// One element of a tensor of activations or weights, whatever its type, by offset in elements. For code where clarity counts and speed does
// not: the reference backend, copies and tests.
#pragma once
#include "base/error.h"
#include "tensor/tensor.h"

namespace braid {

inline float load_element(const Tensor& t, int64_t offset) {
  switch (t.dtype) {
    case DType::kF32:
      return static_cast<const float*>(t.data)[offset];
    case DType::kBF16:
      return to_float(static_cast<const BFloat16*>(t.data)[offset]);
    case DType::kF16:
      return to_float(static_cast<const Half*>(t.data)[offset]);
    case DType::kF8E4M3:
      return to_float(static_cast<const Float8E4M3*>(t.data)[offset]);
    case DType::kI8:
      return static_cast<const int8_t*>(t.data)[offset];
    default:
      break;
  }
  BRAID_CHECK(false, "{} is no type of activations or weights", name_of(t.dtype));
  return 0.0f;
}

inline void store_element(const Tensor& t, int64_t offset, float value) {
  switch (t.dtype) {
    case DType::kF32:
      static_cast<float*>(t.data)[offset] = value;
      return;
    case DType::kBF16:
      store(static_cast<BFloat16*>(t.data) + offset, value);
      return;
    case DType::kF16:
      store(static_cast<Half*>(t.data) + offset, value);
      return;
    case DType::kF8E4M3:
      store(static_cast<Float8E4M3*>(t.data) + offset, value);
      return;
    default:
      break;
  }
  BRAID_CHECK(false, "{} is no float type", name_of(t.dtype));
}

// The nearest value of type `t`.
inline float round_to(DType t, float value) {
  switch (t) {
    case DType::kBF16:
      return to_float(to_bfloat16(value));
    case DType::kF16:
      return to_float(to_half(value));
    case DType::kF8E4M3:
      return to_float(to_float8_e4m3(value));
    default:
      return value;
  }
}

}  // namespace braid
