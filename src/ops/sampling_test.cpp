// Sampling of one row: greedy choice, log-probabilities, masks and penalties, and that draws follow the distribution.
#include "ops/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace braid {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

SampleResult sample(std::vector<float> logits, const SamplingRow& row) { return sample_row(logits, row); }

// How often each token comes in n draws at positions 0 to n - 1.
std::map<int32_t, int> histogram(const std::vector<float>& logits, SamplingRow row, int n) {
  std::map<int32_t, int> counts;
  for (row.position = 0; row.position < n; ++row.position) ++counts[sample(logits, row).token];
  return counts;
}

TEST(Sampling, GreedyTakesTheLargestAndTheLowestIdOnTies) {
  EXPECT_EQ(sample({1.0f, 3.0f, 2.0f}, {}).token, 1);
  EXPECT_EQ(sample({1.0f, 3.0f, 3.0f, 3.0f}, {}).token, 1);
  EXPECT_EQ(sample({-kInfinity, -5.0f}, {}).token, 1);
}

TEST(Sampling, BadRowsAreMarked) {
  EXPECT_TRUE(sample({1.0f, std::nanf(""), 2.0f}, {}).bad);
  EXPECT_TRUE(sample({-kInfinity, -kInfinity}, {}).bad);
  EXPECT_TRUE(sample({kInfinity, 0.0f}, {}).bad);
  const std::vector<int32_t> all{0, 1};
  SamplingRow row;
  row.banned = all;
  EXPECT_TRUE(sample({1.0f, 2.0f}, row).bad);
  EXPECT_FALSE(sample({1.0f, 2.0f}, {}).bad);
}

TEST(Sampling, LogprobsAreThoseOfTheUnmodifiedLogits) {
  const std::vector<int32_t> banned{2};
  SamplingRow row;
  row.banned = banned;
  row.n_top_logprobs = 2;
  const SampleResult r = sample({1.0f, 2.0f, 4.0f, 2.0f}, row);
  const double lse = std::log(std::exp(1.0) + 2 * std::exp(2.0) + std::exp(4.0));
  EXPECT_EQ(r.token, 1);
  EXPECT_NEAR(r.logprob, 2.0 - lse, 1e-6);
  ASSERT_EQ(r.top.size(), 2u);
  EXPECT_EQ(r.top[0].first, 2);
  EXPECT_NEAR(r.top[0].second, 4.0 - lse, 1e-6);
  EXPECT_EQ(r.top[1].first, 1);  // before its equal, 3
}

TEST(Sampling, MaskBiasAndPenaltiesChangeTheChoice) {
  const std::vector<float> logits{5.0f, 4.0f, 3.0f, -1.0f};
  const std::vector<uint32_t> allowed{0b1110};
  SamplingRow row;
  row.allowed = allowed;
  EXPECT_EQ(sample(logits, row).token, 1);
  const std::vector<std::pair<int32_t, float>> bias{{3, 10.0f}, {99, 50.0f}};
  row.logit_bias = bias;
  EXPECT_EQ(sample(logits, row).token, 3);

  const std::vector<int32_t> prompt{0}, generated{1, 1};
  SamplingRow penalties;
  penalties.prompt = prompt;
  penalties.generated = generated;
  penalties.repetition_penalty = 2.0f;  // 5 -> 2.5, 4 -> 2
  EXPECT_EQ(sample(logits, penalties).token, 2);
  penalties.repetition_penalty = 1.0f;
  penalties.frequency_penalty = 3.0f;  // only what was generated: 4 -> -2
  EXPECT_EQ(sample(logits, penalties).token, 0);
  penalties.frequency_penalty = 0.0f;
  penalties.presence_penalty = -1.5f;  // once, however often: 4 -> 5.5
  EXPECT_EQ(sample(logits, penalties).token, 1);
}

TEST(Sampling, DrawsFollowTheDistribution) {
  const std::vector<float> logits{0.0f, 1.0f, 2.0f, -kInfinity, 0.5f};
  SamplingRow row;
  row.temperature = 0.7f;
  row.seed = 42;
  const int n = 40000;
  const std::map<int32_t, int> counts = histogram(logits, row, n);
  double total = 0.0;
  for (const float x : logits) total += std::exp(x / 0.7);
  for (size_t i = 0; i < logits.size(); ++i) {
    const double p = std::exp(logits[i] / 0.7) / total;
    const auto found = counts.find(static_cast<int32_t>(i));
    const double got = found == counts.end() ? 0.0 : static_cast<double>(found->second) / n;
    EXPECT_NEAR(got, p, 5.0 * std::sqrt(p * (1 - p) / n) + 1e-12) << "token " << i;
  }
}

TEST(Sampling, TruncationKeepsExactlyTheBest) {
  // Probabilities in sixteenths: 8, 4, 2, 1, 1.
  const std::vector<float> logits{std::log(2.0f), std::log(8.0f), std::log(1.0f), std::log(4.0f), std::log(1.0f)};
  auto support = [&](const SamplingRow& row) {
    std::vector<int32_t> ids;
    for (const auto& [id, count] : histogram(logits, row, 2000)) ids.push_back(id);
    return ids;
  };
  SamplingRow row;
  row.temperature = 1.0f;
  EXPECT_EQ(support(row), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  row.top_k = 2;
  EXPECT_EQ(support(row), (std::vector<int32_t>{1, 3}));
  row.top_k = 4;  // of the two equal last, the lower id
  EXPECT_EQ(support(row), (std::vector<int32_t>{0, 1, 2, 3}));
  row.top_k = -1;
  row.top_p = 0.8f;  // 12/16 is not enough
  EXPECT_EQ(support(row), (std::vector<int32_t>{0, 1, 3}));
  row.top_p = 0.0f;
  EXPECT_EQ(support(row), (std::vector<int32_t>{1}));
  row.top_p = 1.0f;
  row.min_p = 0.2f;  // of the best: 2/8 stays, 1/8 does not
  EXPECT_EQ(support(row), (std::vector<int32_t>{0, 1, 3}));
}

TEST(Sampling, ADrawDependsOnSeedAndPositionOnly) {
  // First block of the Philox 4x32-10 known answers: key 0, counter 0.
  EXPECT_EQ(uniform_draw(0, 0), static_cast<double>(0x6627e8d5e169c58dull >> 11) * 0x1.0p-53);
  EXPECT_EQ(uniform_draw(7, 11), uniform_draw(7, 11));
  EXPECT_NE(uniform_draw(7, 11), uniform_draw(7, 12));
  EXPECT_NE(uniform_draw(7, 11), uniform_draw(8, 11));
}

}  // namespace
}  // namespace braid
