#include "ops/quantise.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "ops/element.h"

namespace braid {
namespace {

// The nearest e4m3 code of |x| <= 448 in integers, since a row of weights is long: normal numbers by rounding the bits,
// the ones below 2^-6 in steps of 2^-9 by an addition that rounds there.
uint8_t nearest_e4m3(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - (120u << 23)) >> 20;
  const float shifted = std::bit_cast<float>(magnitude) + 16384.0f;
  const uint32_t small = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(16384.0f);
  return static_cast<uint8_t>(sign | (magnitude < (121u << 23) ? small : normal));
}

int8_t nearest_int8(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  return static_cast<int8_t>(std::bit_cast<int32_t>(x + kMagic) - std::bit_cast<int32_t>(kMagic));
}

void round_group(const float* x, int64_t n, DType type, uint8_t* to, float& scale) {
  float largest = 0.0f;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    finite &= std::isfinite(x[i]);
  }
  if (!finite) {
    std::fill(to, to + n, uint8_t{0});
    scale = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  const bool float8 = type == DType::kF8E4M3;
  const float most = float8 ? 448.0f : 127.0f;
  scale = std::max(largest / most, std::numeric_limits<float>::min());
  const auto bounded = [&](float v) { return std::clamp(v / scale, -most, most); };
  if (float8) {
    for (int64_t i = 0; i < n; ++i) to[i] = nearest_e4m3(bounded(x[i]));
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<uint8_t>(nearest_int8(bounded(x[i])));
  }
}

}  // namespace

KeptMatrix as_kept(const WeightMatrix& w, int k_slices) {
  if (w.values.dtype == w.kept.type) {
    BRAID_CHECK(w.kept.scaled() == static_cast<bool>(w.scales), "{} weights and their scales", name_of(w.kept.type));
    return {w.values, w.scales, nullptr};
  }
  BRAID_CHECK(w.kept.type == DType::kF8E4M3 || w.kept.type == DType::kI8, "{} kept as {}", name_of(w.values.dtype),
              name_of(w.kept.type));
  BRAID_CHECK(1 <= w.kept.group && w.kept.group <= WeightFormat::kMaxGroup, "groups of {}", w.kept.group);
  const int64_t n = w.values.dim(0), k = w.values.dim(1), slice = k / k_slices;
  const int64_t groups = w.kept.groups(slice), scales = w.kept.scales(k, k_slices);
  KeptMatrix to;
  to.bytes.reset(new std::byte[static_cast<size_t>(n * (scales * 4 + k))]);
  to.scales = Tensor(to.bytes.get(), DType::kF32, {n, scales});
  to.values = Tensor(to.bytes.get() + n * scales * 4, w.kept.type, {n, k});
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t i = 0; i < k; ++i) row[static_cast<size_t>(i)] = load_element(w.values, r * w.values.stride[0] + i);
    for (int64_t g = 0; g < scales; ++g) {
      const int64_t first = g / groups * slice + g % groups * w.kept.group;
      const int64_t end = std::min<int64_t>(g % groups * w.kept.group + w.kept.group, slice) + g / groups * slice;
      round_group(row.data() + first, end - first, w.kept.type, static_cast<uint8_t*>(to.values.data) + r * k + first,
                  to.scales.row<float>(r)[g]);
    }
  }
  return to;
}

}  // namespace braid
