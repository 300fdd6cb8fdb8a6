// How the weights of products are kept, which is a choice of its own beside the type that activations are computed in.
#pragma once
#include <cstdint>

#include "tensor/tensor.h"

namespace braid {

// float32 and bfloat16 stand for themselves. In the eight-bit types (float8_e4m3; int8 within [-127, 127]) a value is its
// element times a float32 scale, of which there is one for every `group` neighbours along k of one output. Groups are
// counted from the start of every slice of k, the last of a slice may be short; so a slice has the same elements and
// scales whichever rank holds it.
struct WeightFormat {
  static constexpr int kMaxGroup = 128;

  DType type = DType::kF32;
  int group = 0;  // 0: no scales

  constexpr WeightFormat(DType t = DType::kF32, int k_per_scale = 0) : type(t), group(k_per_scale) {}
  constexpr bool scaled() const { return group > 0; }
  constexpr int64_t groups(int64_t slice_k) const { return scaled() ? (slice_k + group - 1) / group : 0; }
  constexpr int64_t scales(int64_t k, int k_slices) const { return k_slices * groups(k / k_slices); }  // of one output
  constexpr double bytes() const { return size_of(type) + (scaled() ? 4.0 / group : 0.0); }  // of one weight
  bool operator==(const WeightFormat&) const = default;
};

// A weight on its way to a backend, on the host: as it is to be kept, or in float32 or bfloat16 for the backend to
// round to an eight-bit format (ops/quantise.h).
struct WeightMatrix {
  WeightMatrix(Tensor v) : values(v), kept(v.dtype) {}  // stays what it is
  WeightMatrix(Tensor v, const WeightFormat& f) : values(v), kept(f) {}
  WeightMatrix(Tensor v, Tensor s, const WeightFormat& f) : values(v), scales(s), kept(f) {}

  Tensor values;  // [n, k]
  Tensor scales;  // float32 [n, scales of k]; empty unless values are eight bits wide
  WeightFormat kept;
};

}  // namespace braid
