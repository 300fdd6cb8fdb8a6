// The choice of experts: ties, groups, weights, and that NaNs can not make ids repeat.
#include "ops/route.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <set>

namespace braid {
namespace {

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
Choice choose(const std::vector<float>& scores, const std::vector<float>& bias, const RouterSpec& spec) {
  Choice c{std::vector<int32_t>(static_cast<size_t>(spec.top_k)), std::vector<float>(static_cast<size_t>(spec.top_k))};
  choose_experts(c.ids, c.weights.data(), scores, bias.empty() ? nullptr : bias.data(), spec);
  return c;
}

TEST(Route, TiesGoToTheLowestIdAndIdsAscend) {
  RouterSpec spec;
  spec.top_k = 3;
  EXPECT_EQ(choose({0.5f, 0.9f, 0.5f, 0.5f, 0.5f}, {}, spec).ids, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(choose({0.1f, 0.2f, 0.3f, 0.4f, 0.5f}, {}, spec).ids, (std::vector<int32_t>{2, 3, 4}));
}

TEST(Route, TheBiasTakesPartInTheChoiceOnly) {
  RouterSpec spec;
  spec.top_k = 2;
  spec.scale = 2.0f;
  const Choice c = choose({0.5f, 0.1f, 0.4f}, {0.0f, 1.0f, 0.0f}, spec);
  EXPECT_EQ(c.ids, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(c.weights, (std::vector<float>{1.0f, 0.2f}));
  spec.renormalise = true;
  EXPECT_NEAR(choose({0.5f, 0.1f, 0.4f}, {}, spec).weights[0], 2.0f * 0.5f / 0.9f, 1e-6);
}

TEST(Route, GroupsAreRankedBeforeTheirMembers) {
  RouterSpec spec;
  spec.n_groups = 3;
  spec.top_groups = 1;
  spec.top_k = 2;
  const std::vector<float> scores{0.9f, 0.0f, 0.1f, 0.5f, 0.5f, 0.2f, 0.3f, 0.3f, 0.3f};
  spec.group_score = GroupScore::kMax;
  EXPECT_EQ(choose(scores, {}, spec).ids, (std::vector<int32_t>{0, 2}));
  spec.group_score = GroupScore::kTopTwoSum;  // 1.0, 1.0, 0.6: the lower group on a tie
  EXPECT_EQ(choose(scores, {}, spec).ids, (std::vector<int32_t>{0, 2}));
  const std::vector<float> bias{-0.1f, 0, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(choose(scores, bias, spec).ids, (std::vector<int32_t>{3, 4}));
}

RC_GTEST_PROP(Route, IdsAreDistinctAscendingAndInRangeWhateverTheScores, (std::vector<float> tail)) {
  std::vector<float> scores(16, std::nanf(""));
  for (size_t i = 0; i < std::min<size_t>(16, tail.size()); ++i) scores[i] = tail[i];
  RouterSpec spec{RouterScore::kSigmoid, GroupScore::kTopTwoSum, 4, 2, 5, true, 1.0f};
  const Choice c = choose(scores, {}, spec);
  for (size_t i = 0; i < c.ids.size(); ++i) {
    RC_ASSERT(c.ids[i] >= 0 && c.ids[i] < 16);
    if (i > 0) RC_ASSERT(c.ids[i] > c.ids[i - 1]);
  }
}

}  // namespace
}  // namespace braid
