// Rotary frequencies against values worked out in float64, and the table against its definition.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace braid {
namespace {

RopeConfig yarn(int dim, double theta, double factor, int64_t length, double fast, double slow) {
  RopeConfig c;
  c.kind = RopeKind::kYarn;
  c.dim = dim;
  c.theta = theta;
  c.factor = factor;
  c.original_max_position = length;
  c.beta_fast = fast;
  c.beta_slow = slow;
  return c;
}

}  // namespace

TEST(Rope, DefaultAndLinear) {
  RopeConfig c;
  c.dim = 8;
  c.theta = 10000.0;
  const std::vector<float> f = rope_inverse_frequencies(c);
  ASSERT_EQ(f.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(f[i], static_cast<float>(std::pow(10.0, -static_cast<double>(i))));
  EXPECT_EQ(rope_attention_factor(c), 1.0);
  c.kind = RopeKind::kLinear;
  c.factor = 4.0;
  EXPECT_FLOAT_EQ(rope_inverse_frequencies(c)[1], 0.025f);
  EXPECT_EQ(rope_attention_factor(c), 1.0);
}

TEST(Rope, YarnOfDeepseekV3) {
  RopeConfig c = yarn(64, 10000.0, 40.0, 4096, 32.0, 1.0);
  c.mscale = c.mscale_all_dim = 1.0;
  EXPECT_EQ(yarn_range(c).low, 10.0);
  EXPECT_EQ(yarn_range(c).high, 23.0);
  const std::vector<float> f = rope_inverse_frequencies(c);
  EXPECT_EQ(f[0], 1.0f);
  EXPECT_FLOAT_EQ(f[10], 0.056234132519034905f);
  EXPECT_FLOAT_EQ(f[15], 0.008334508951020777f);
  EXPECT_FLOAT_EQ(f[22], 0.0001778279410038922f);
  EXPECT_FLOAT_EQ(f[31], 3.3338035804083097e-06f);
  EXPECT_NEAR(yarn_mscale(40.0, 1.0), 1.368888, 1e-6);
  EXPECT_NEAR(yarn_mscale(40.0, 0.707), 1.260804, 1e-6);
  EXPECT_EQ(yarn_mscale(1.0, 1.0), 1.0);
  EXPECT_EQ(rope_attention_factor(c), 1.0);
}

TEST(Rope, YarnRangesOfOtherFamilies) {
  EXPECT_EQ(yarn_range(yarn(64, 160000.0, 16.0, 65536, 32.0, 1.0)).low, 15.0);
  EXPECT_EQ(yarn_range(yarn(64, 160000.0, 16.0, 65536, 32.0, 1.0)).high, 25.0);
  RopeConfig untruncated = yarn(64, 150000.0, 32.0, 4096, 32.0, 1.0);
  untruncated.truncate = false;
  EXPECT_NEAR(yarn_range(untruncated).low, 8.0927791, 1e-6);
  EXPECT_NEAR(yarn_range(untruncated).high, 17.3980245, 1e-6);
  EXPECT_NEAR(rope_attention_factor(untruncated), 1.34657, 1e-5);
  untruncated.attention_factor = 1.25;
  EXPECT_EQ(rope_attention_factor(untruncated), 1.25);
  const RopeConfig tiny = yarn(16, 10000.0, 4.0, 3, 32.0, 1.0);  // both ends at lane 0: no division by zero
  EXPECT_EQ(yarn_range(tiny).high, 0.001);
  EXPECT_EQ(rope_inverse_frequencies(tiny)[0], 1.0f);
  EXPECT_FLOAT_EQ(rope_inverse_frequencies(tiny)[4], 0.01f / 4.0f);
}

TEST(Rope, Llama3) {
  RopeConfig c;
  c.kind = RopeKind::kLlama3;
  c.dim = 128;
  c.theta = 500000.0;
  c.factor = 8.0;
  c.original_max_position = 8192;
  const std::vector<float> f = rope_inverse_frequencies(c);
  EXPECT_EQ(f[0], 1.0f);
  EXPECT_FLOAT_EQ(f[20], 0.016560440080994446f);  // short wave: as it was
  EXPECT_NEAR(f[30] / 0.0013718935677611381, 1.0, 1e-6);
  EXPECT_NEAR(f[33] / 0.00031269375038406517, 1.0, 1e-6);
  EXPECT_FLOAT_EQ(f[40], 3.428102195952591e-05f);  // long wave: divided
  EXPECT_FLOAT_EQ(f[63], 3.068925988914511e-07f);
}

TEST(Rope, TableHoldsCosinesOfFloatProducts) {
  RopeConfig c = yarn(16, 10000.0, 4.0, 64, 32.0, 1.0);
  const std::vector<float> table = make_rope_table(c, 16001), f = rope_inverse_frequencies(c);
  const float factor = static_cast<float>(rope_attention_factor(c));
  EXPECT_GT(factor, 1.1f);
  ASSERT_EQ(table.size(), 16001u * 8 * 2);
  for (const size_t p : {0u, 1u, 77u, 4096u, 16000u}) {
    for (size_t i = 0; i < 8; ++i) {
      const double angle = static_cast<float>(p) * f[i];
      EXPECT_NEAR(table[(p * 8 + i) * 2], factor * std::cos(angle), 2e-7);
      EXPECT_NEAR(table[(p * 8 + i) * 2 + 1], factor * std::sin(angle), 2e-7);
    }
  }
}

}  // namespace braid
