// Rounding to eight bits against its definition, one element at a time.
#include "ops/quantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/element.h"

namespace braid {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Tensor matrix(std::vector<float>& values, int64_t n) {
  return Tensor(values.data(), DType::kF32, {n, static_cast<int64_t>(values.size()) / n});
}

// What the definition says that x becomes.
float rounded(DType type, float x, float scale) {
  if (type == DType::kF8E4M3) return to_float(to_float8_e4m3(x / scale));
  return std::nearbyint(x / scale);
}

TEST(Quantise, EveryElementIsTheNearestOfItsGroup) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const DType type : {DType::kF8E4M3, DType::kI8}) {
    for (const auto& [k, slices, group] : {std::tuple{300, 1, 128}, {8 * 21, 8, 16}, {7, 1, 3}}) {
      std::vector<float> values(static_cast<size_t>(5 * k));
      for (float& v : values) v = std::ldexp(normal(random), static_cast<int>(random() % 12) - 9);
      const Tensor w = matrix(values, 5);
      const WeightFormat format(type, group);
      const KeptMatrix kept = as_kept({w, format}, slices);
      const int64_t slice = k / slices;
      ASSERT_EQ(kept.scales.dim(1), slices * ((slice + group - 1) / group));
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t i = 0; i < k; ++i) {
          const int64_t first = i / slice * slice + i % slice / group * group,
                        end = std::min(first + group, (i / slice + 1) * slice);
          float largest = 0.0f;
          for (int64_t j = first; j < end; ++j) largest = std::max(largest, std::fabs(w.row<float>(r)[j]));
          const float scale = largest / (type == DType::kI8 ? 127.0f : 448.0f);
          ASSERT_EQ(kept.scales.row<float>(r)[i / slice * format.groups(slice) + i % slice / group], scale);
          ASSERT_EQ(load_element(kept.values, r * k + i), rounded(type, w.row<float>(r)[i], scale))
              << w.row<float>(r)[i] << " / " << scale;
        }
      }
    }
  }
}

TEST(Quantise, TiesGoToEvenAndNothingOverflows) {
  // The scale is 1, so that the values between two elements are ties.
  std::vector<float> f8 = {448.0f}, i8 = {127.0f};
  for (int i = 0; i < 0x7e; ++i) {
    const float a = to_float(Float8E4M3{static_cast<uint8_t>(i)}),
                b = to_float(Float8E4M3{static_cast<uint8_t>(i + 1)});
    f8.insert(f8.end(), {a, -a, 0.5f * (a + b), -0.5f * (a + b)});
    i8.insert(i8.end(), {static_cast<float>(i) + 0.5f, static_cast<float>(-i) - 0.5f});
  }
  for (auto& [values, type] : {std::pair{f8, DType::kF8E4M3}, {i8, DType::kI8}}) {
    for (size_t at = 1; at < values.size(); at += 127) {  // groups of at most 128, each with its largest value first
      std::vector<float> row = {values[0]};
      row.insert(row.end(), values.begin() + static_cast<std::ptrdiff_t>(at),
                 values.begin() + static_cast<std::ptrdiff_t>(std::min(at + 127, values.size())));
      const KeptMatrix kept = as_kept({matrix(row, 1), {type, 128}}, 1);
      ASSERT_EQ(kept.scales.as<float>()[0], 1.0f);
      for (size_t i = 0; i < row.size(); ++i) {
        ASSERT_EQ(load_element(kept.values, static_cast<int64_t>(i)), rounded(type, row[i], 1.0f)) << row[i];
      }
    }
  }
}

TEST(Quantise, ZerosAndWhatIsNoNumber) {
  for (const DType type : {DType::kF8E4M3, DType::kI8}) {
    std::vector<float> values = {0.0f, -0.0f, 1.0f, std::nanf(""), kInfinity, 2.0f, 1e-40f, 0.0f};
    const KeptMatrix kept = as_kept({matrix(values, 1), {type, 2}}, 1);
    const float* scales = kept.scales.as<float>();
    EXPECT_GT(scales[0], 0.0f);
    EXPECT_EQ(load_element(kept.values, 0) * scales[0], 0.0f);
    EXPECT_TRUE(std::isnan(scales[1]));
    EXPECT_TRUE(std::isnan(scales[2]));
    EXPECT_LE(std::fabs(load_element(kept.values, 6) * scales[3]), 1e-40f);
  }
}

TEST(Quantise, WhatIsKeptAlreadyIsLeftAlone) {
  std::vector<float> values = {1.0f, 2.0f};
  const KeptMatrix kept = as_kept(matrix(values, 1), 1);
  EXPECT_EQ(kept.values.data, values.data());
  EXPECT_FALSE(kept.scales);
}

}  // namespace
}  // namespace braid
