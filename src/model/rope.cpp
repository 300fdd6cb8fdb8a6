// Rotary tables with the roundings of the reference implementation.
//
// transformers computes inverse frequencies and the product position * frequency in float32, and models are trained and
// measured that way. Against exact arithmetic that moves a 64-lane head's cosines by 5e-5 at position 4,000 and by 2e-4
// at 16,000, which is as much as logits may differ from the reference. So every step below rounds where transformers
// rounds, and only pow, cos and sin may differ from it, by their last bit.
#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace braid {
namespace {

// The lane at which a wave turns `rotations` times over the original length.
double correction_lane(const RopeConfig& c, double rotations) {
  return c.dim * std::log(static_cast<double>(c.original_max_position) / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(c.theta));
}

void scale_yarn(const RopeConfig& c, const std::vector<float>& wavelengths, std::vector<float>& inverse) {
  const YarnRange range = yarn_range(c);
  const float low = static_cast<float>(range.low), width = static_cast<float>(range.high - range.low);
  for (size_t i = 0; i < inverse.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - low) / width, 0.0f, 1.0f);
    const float keep = 1.0f - ramp;
    const float scaled = 1.0f / (static_cast<float>(c.factor) * wavelengths[i]);
    inverse[i] = scaled * (1.0f - keep) + inverse[i] * keep;
  }
}

void scale_llama3(const RopeConfig& c, std::vector<float>& inverse) {
  const float length = static_cast<float>(c.original_max_position);
  const float low = static_cast<float>(c.low_freq_factor), high = static_cast<float>(c.high_freq_factor);
  const float factor = static_cast<float>(c.factor);
  for (float& f : inverse) {
    const float wavelength = static_cast<float>(2.0 * std::numbers::pi) / f;
    if (wavelength < length / high) continue;
    if (wavelength > length / low) {
      f /= factor;
      continue;
    }
    const float smooth = (length / wavelength - low) / (high - low);
    f = (1.0f - smooth) * f / factor + smooth * f;
  }
}

}  // namespace

double yarn_mscale(double factor, double s) { return factor <= 1.0 ? 1.0 : 0.1 * s * std::log(factor) + 1.0; }

YarnRange yarn_range(const RopeConfig& c) {
  double low = correction_lane(c, c.beta_fast), high = correction_lane(c, c.beta_slow);
  if (c.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, c.dim - 1.0);
  if (low == high) high += 0.001;
  return {low, high};
}

std::vector<float> rope_inverse_frequencies(const RopeConfig& c) {
  BRAID_CHECK(c.dim > 0 && c.dim % 2 == 0, "rope dim {}", c.dim);
  std::vector<float> wavelengths(static_cast<size_t>(c.dim / 2)), inverse(wavelengths.size());
  for (size_t i = 0; i < inverse.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(c.dim);
    wavelengths[i] = static_cast<float>(std::pow(c.theta, static_cast<double>(exponent)));
    inverse[i] = 1.0f / wavelengths[i];
  }
  switch (c.kind) {
    case RopeKind::kDefault:
      break;
    case RopeKind::kLinear:
      for (float& f : inverse) f /= static_cast<float>(c.factor);
      break;
    case RopeKind::kYarn:
      scale_yarn(c, wavelengths, inverse);
      break;
    case RopeKind::kLlama3:
      scale_llama3(c, inverse);
      break;
  }
  return inverse;
}

double rope_attention_factor(const RopeConfig& c) {
  if (c.kind != RopeKind::kYarn) return 1.0;
  if (c.attention_factor) return *c.attention_factor;
  if (c.mscale != 0.0 && c.mscale_all_dim != 0.0)
    return yarn_mscale(c.factor, c.mscale) / yarn_mscale(c.factor, c.mscale_all_dim);
  return yarn_mscale(c.factor, 1.0);
}

std::vector<float> make_rope_table(const RopeConfig& c, int64_t n_positions) {
  const std::vector<float> inverse = rope_inverse_frequencies(c);
  const float scale = static_cast<float>(rope_attention_factor(c));
  std::vector<float> table;
  table.reserve(static_cast<size_t>(n_positions) * inverse.size() * 2);
  for (int64_t p = 0; p < n_positions; ++p) {
    for (const float f : inverse) {
      const float angle = static_cast<float>(p) * f;
      table.push_back(std::cos(angle) * scale);
      table.push_back(std::sin(angle) * scale);
    }
  }
  return table;
}

}  // namespace braid
