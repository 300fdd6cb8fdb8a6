// The plan's wire form: what goes in comes out, and nothing malformed gets in.
#include "sched/plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/error.h"

namespace braid {
namespace {

StepPlan sample_plan() {
  StepPlan plan;
  plan.step = 12;
  plan.forget = {RequestId(3), RequestId(900)};
  plan.sequences.push_back({RequestId(5), TokenPos(40), {7}, {BlockId(2), BlockId(0)}, true, false, false});
  plan.sequences.push_back({RequestId(6), TokenPos(0), {1, 2, 3}, {BlockId(9)}, false, true, true});
  return plan;
}

TEST(StepPlan, CountsTokens) {
  EXPECT_EQ(sample_plan().n_tokens(), 4);
  EXPECT_EQ(StepPlan().n_tokens(), 0);
  EXPECT_TRUE(StepPlan().empty());
}

TEST(StepPlan, RoundTrip) {
  EXPECT_EQ(deserialize_plan(serialize(sample_plan())), sample_plan());
  EXPECT_EQ(deserialize_plan(serialize(StepPlan())), StepPlan());
}

TEST(StepPlan, EveryCutAndEveryAdditionIsRefused) {
  auto bytes = serialize(sample_plan());
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_THROW(deserialize_plan(std::span(bytes).first(n)), RuntimeFailure) << n;
  }
  bytes.push_back(std::byte{0});
  EXPECT_THROW(deserialize_plan(bytes), RuntimeFailure);
}

TEST(StepPlan, ValuesOutOfRangeAreRefused) {
  const auto refused = [](auto change) {
    StepPlan plan = sample_plan();
    change(plan);
    EXPECT_THROW(deserialize_plan(serialize(plan)), RuntimeFailure);
  };
  refused([](StepPlan& p) { p.step = -1; });
  refused([](StepPlan& p) { p.forget[0] = RequestId(-1); });
  refused([](StepPlan& p) { p.sequences[0].id = RequestId(-1); });
  refused([](StepPlan& p) { p.sequences[0].start = TokenPos(-1); });
  refused([](StepPlan& p) { p.sequences[0].start = TokenPos(INT64_MAX); });
  refused([](StepPlan& p) { p.sequences[0].tokens[0] = -1; });
  refused([](StepPlan& p) { p.sequences[0].tokens.clear(); });
  refused([](StepPlan& p) { p.sequences[0].blocks.clear(); });
  refused([](StepPlan& p) { p.sequences[0].blocks[1] = BlockId(-1); });
}

// A changed byte gives a refusal or a valid plan that says exactly what the bytes say.
RC_GTEST_PROP(StepPlan, AnyBytesAreRefusedOrReadExactly, ()) {
  auto bytes = serialize(sample_plan());
  const auto changes =
      *rc::gen::container<std::vector<std::pair<size_t, uint8_t>>>(rc::gen::arbitrary<std::pair<size_t, uint8_t>>());
  for (const auto& [at, value] : changes) bytes[at % bytes.size()] = std::byte{value};
  try {
    RC_ASSERT(serialize(deserialize_plan(bytes)) == bytes);
  } catch (const RuntimeFailure&) {
  }
}

TEST(FinishReason, HasNames) {
  EXPECT_STREQ(name_of(FinishReason::kStop), "stop");
  EXPECT_STREQ(name_of(FinishReason::kLength), "length");
  EXPECT_STREQ(name_of(FinishReason::kAborted), "aborted");
  EXPECT_STREQ(name_of(FinishReason::kRejected), "rejected");
  EXPECT_STREQ(name_of(FinishReason::kError), "error");
  EXPECT_STREQ(name_of(FinishReason::kNone), "none");
}

}  // namespace
}  // namespace braid
