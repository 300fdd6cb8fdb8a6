#include "ops/dummy_values.h"

#include "base/error.h"

namespace braid {
namespace {

float rounded_to(DType precision, float x) {
  if (precision == DType::kBF16) return to_float(to_bfloat16(x));
  if (precision == DType::kF16) return to_float(to_half(x));
  return x;
}

}  // namespace

void make_dummy_values(const DummyValues& v) {
  BRAID_CHECK(v.type == DType::kF32 || v.type == DType::kBF16, "dummy values of {}", name_of(v.type));
  for (int64_t r = 0; r < v.rows; ++r) {
    uint64_t bits = 0;
    for (int64_t i = 0; i < v.columns; ++i) {
      const auto index = static_cast<uint64_t>(v.first + r * v.row_step + i);
      if (i == 0 || index % 4 == 0) bits = dummy_hash(v.key, index);
      const float value = rounded_to(v.precision, v.mean + v.deviation * dummy_uniform(bits, index));
      if (v.type == DType::kF32) {
        static_cast<float*>(v.out)[r * v.out_stride + i] = value;
      } else {
        static_cast<BFloat16*>(v.out)[r * v.out_stride + i] = to_bfloat16(value);
      }
    }
  }
}

}  // namespace braid
