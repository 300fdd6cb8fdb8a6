// Rounding weights to an eight-bit format: what a backend does with a WeightMatrix that is not yet as it is to be kept.
#pragma once
#include <cstddef>
#include <memory>

#include "ops/weight_format.h"

namespace braid {

// A weight in its kept format, and the memory of what had to be made for that.
struct KeptMatrix {
  Tensor values, scales;
  std::unique_ptr<std::byte[]> bytes;
};

// `w` itself where it is as it shall be kept. Otherwise every group's largest magnitude becomes the largest element of
// the type (448 or 127) and the rest is rounded to the nearest element, ties to even. A group with a NaN or an infinity
// gets NaN as its scale.
KeptMatrix as_kept(const WeightMatrix& w, int k_slices);

}  // namespace braid
