#include "base/float_types.h"

#include <gtest/gtest.h>

#include <cmath>

namespace braid {

TEST(FloatTypes, E4M3RoundTripsAll256) {
  for (int i = 0; i < 256; ++i) {
    const Float8E4M3 x{static_cast<uint8_t>(i)};
    const float f = to_float(x);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(to_float(to_float8_e4m3(f))));
    } else {
      EXPECT_EQ(to_float8_e4m3(f).bits, x.bits) << i << " " << f;
    }
  }
  EXPECT_EQ(to_float(to_float8_e4m3(1e9f)), 448.0f);
  EXPECT_EQ(to_float(to_float8_e4m3(-1e9f)), -448.0f);
}

// Every value lies between its two neighbours; the nearer one is chosen, the even code on a tie.
TEST(FloatTypes, E4M3RoundsToNearestEven) {
  for (int i = 0; i + 1 < 0x7f; ++i) {
    const float low = to_float(Float8E4M3{static_cast<uint8_t>(i)}), high = to_float(Float8E4M3{static_cast<uint8_t>(i + 1)});
    const float middle = 0.5f * (low + high);
    EXPECT_EQ(to_float8_e4m3(middle).bits, (i & 1) ? i + 1 : i) << i;
    EXPECT_EQ(to_float8_e4m3(std::nextafter(middle, 0.0f)).bits, i);
    EXPECT_EQ(to_float8_e4m3(std::nextafter(middle, 1e9f)).bits, i + 1);
  }
}

TEST(FloatTypes, BFloat16RoundTripsAll65536) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const BFloat16 x{static_cast<uint16_t>(i)};
    const float f = to_float(x);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(to_float(to_bfloat16(f))));
    } else {
      EXPECT_EQ(to_bfloat16(f).bits, x.bits);
    }
  }
  EXPECT_EQ(to_float(to_bfloat16(1.0f + 1.0f / 256.0f)), 1.0f);                 // tie to even
  EXPECT_EQ(to_float(to_bfloat16(1.0f + 3.0f / 256.0f)), 1.0f + 1.0f / 64.0f);  // tie to even
}

TEST(FloatTypes, HalfRoundTripsAll65536) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const Half x{static_cast<uint16_t>(i)};
    const float f = to_float(x);
    if (!std::isnan(f)) {
      EXPECT_EQ(to_half(f).bits, x.bits);
    }
  }
}

}  // namespace braid
