// Rotary angles: from a RopeConfig to the float32 table that kernels read.
#pragma once
#include <cstdint>
#include <vector>

#include "model/config.h"

namespace braid {

// yarn's length correction 0.1 s ln f + 1; 1 for factors up to 1.
double yarn_mscale(double factor, double s);

// First and last lane pair of yarn's ramp between unscaled and scaled frequencies.
struct YarnRange {
  double low = 0, high = 0;
};
YarnRange yarn_range(const RopeConfig&);

// Angle per position of each lane pair, [dim / 2].
std::vector<float> rope_inverse_frequencies(const RopeConfig&);

// What cos and sin are multiplied by; 1 unless yarn.
double rope_attention_factor(const RopeConfig&);

// Host table [n_positions, dim / 2, 2] of (cos, sin), the attention factor multiplied in.
std::vector<float> make_rope_table(const RopeConfig&, int64_t n_positions);

}  // namespace braid
