// The scheduler's rules, one by one.
#include "sched/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "sched/scheduler_simulation.h"

namespace braid {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

SchedulerConfig config(int budget = 256, int64_t n_blocks = 100, int64_t block_tokens = 16) {
  SchedulerConfig c;
  c.block_tokens = block_tokens;
  c.n_blocks = n_blocks;
  c.max_num_seqs = 8;
  c.max_num_batched_tokens = budget;
  c.max_model_len = 1000;
  return c;
}

SamplingParams up_to(int max_tokens) {
  SamplingParams s;
  s.max_tokens = max_tokens;
  return s;
}

// Different first tokens, so that no two share a prefix.
std::vector<int32_t> prompt(int64_t n, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = (first + static_cast<int32_t>(i) * 7) % FakeModel::kVocab;
  return tokens;
}

// "id:tokens" of each row.
std::vector<std::string> rows(const StepPlan& plan) {
  std::vector<std::string> out;
  for (const PlannedSequence& row : plan.sequences)
    out.push_back(fmt::format("{}:{}", row.id.value, row.tokens.size()));
  return out;
}

TEST(SchedulerAdd, RejectsWhatCanNeverRunWithTheReason) {
  SchedulerConfig c = config(256, 10);
  c.max_model_len = 200;
  c.vocab_size = 50;
  c.max_waiting = 1;
  Simulation sim(c);
  EXPECT_THAT(*sim.add(1, {}), HasSubstr("empty"));
  EXPECT_EQ(*sim.add(1, std::vector<int32_t>(200, 1)),
            "the prompt has 200 tokens; the context of 200 tokens leaves room for at most 199");
  EXPECT_EQ(*sim.add(1, std::vector<int32_t>(160, 1)),
            "the prompt has 160 tokens, 11 blocks with the first of the answer; the KV pool has 10 (160 tokens)");
  EXPECT_THAT(*sim.add(1, {1, 2, 50}), HasSubstr("token 50 at position 2 is outside the vocabulary of 50"));
  EXPECT_THAT(*sim.add(1, {1, -1}), HasSubstr("token -1 at position 1"));
  EXPECT_THAT(*sim.add(1, {1}, up_to(-2)), HasSubstr("max_tokens is -2"));
  EXPECT_FALSE(sim.add(1, std::vector<int32_t>(159, 1), up_to(1)));
  EXPECT_THAT(*sim.add(2, {1}), HasSubstr("queue is full: 1 requests wait, 1 may"));
  EXPECT_EQ(sim.scheduler.stats().rejected, 7);
  sim.run();
  EXPECT_EQ(sim.outcomes[1].finish, FinishReason::kLength);
}

TEST(SchedulerAdd, WithoutChunksAPromptMustFitAStep) {
  SchedulerConfig c = config(100);
  c.chunked_prefill = false;
  Simulation sim(c);
  EXPECT_THAT(*sim.add(1, prompt(101)), HasSubstr("101 tokens; without chunked prefill a step takes at most 100"));
  EXPECT_FALSE(sim.add(1, prompt(100), up_to(1)));
  EXPECT_THAT(rows(sim.step()), ElementsAre("1:100"));
}

TEST(SchedulerConfigTest, RefusesValuesThatCannotWork) {
  const auto refused = [](auto change) {
    SchedulerConfig c = config(100);
    change(c);
    EXPECT_THROW(Scheduler{c}, Error);
  };
  refused([](SchedulerConfig& c) { c.exact_chunk = 101; });
  refused([](SchedulerConfig& c) { c.exact_chunk = -1; });
  refused([](SchedulerConfig& c) { c.exact_chunk = 5, c.chunked_prefill = false; });
  refused([](SchedulerConfig& c) { c.max_num_seqs = 0; });
  refused([](SchedulerConfig& c) { c.max_num_batched_tokens = 0; });
  refused([](SchedulerConfig& c) { c.long_prefill_token_threshold = -1; });
}

TEST(SchedulerPlan, DecodesComeFirstAndPrefillsGetTheRest) {
  Simulation sim(config(130));
  sim.add(1, prompt(20, 1));
  sim.add(2, prompt(20, 2));
  EXPECT_THAT(rows(sim.step()), ElementsAre("1:20", "2:20"));
  sim.add(3, prompt(400, 3));
  const StepPlan plan = sim.step();
  EXPECT_THAT(rows(plan), ElementsAre("1:1", "2:1", "3:128"));
  EXPECT_TRUE(plan.sequences[0].sample);
  EXPECT_FALSE(plan.sequences[2].sample) << "a middle chunk";
}

TEST(SchedulerPlan, ChunksEndAtMultiplesOfTheUnit) {
  Simulation sim(config(100));
  sim.add(1, prompt(300), up_to(1));
  EXPECT_THAT(rows(sim.step()), ElementsAre("1:64"));
  EXPECT_THAT(rows(sim.step()), ElementsAre("1:64"));
  Simulation large(config(300, 100, 128));
  large.add(1, prompt(600), up_to(1));
  EXPECT_THAT(rows(large.step()), ElementsAre("1:256"));
}

TEST(SchedulerPlan, ASliverWaitsUnlessItIsTheStepsFirstPrefill) {
  Simulation sim(config(100));
  sim.add(1, prompt(60, 1), up_to(1));
  sim.add(2, prompt(300, 2), up_to(1));
  EXPECT_THAT(rows(sim.step()), ElementsAre("1:60")) << "40 left, less than a unit";
  Simulation small(config(40));
  small.add(1, prompt(300), up_to(1));
  EXPECT_THAT(rows(small.step()), ElementsAre("1:40"));
  EXPECT_THAT(rows(small.step()), ElementsAre("1:24")) << "on the grid again";
}

TEST(SchedulerPlan, ExactChunksAreExact) {
  SchedulerConfig c = config(100);
  c.exact_chunk = 7;
  Simulation sim(c);
  sim.add(1, prompt(17), up_to(1));
  for (const char* expected : {"1:7", "1:7", "1:3"}) EXPECT_THAT(rows(sim.step()), ElementsAre(expected));
  EXPECT_TRUE(sim.scheduler.idle());
}

TEST(SchedulerPlan, APrefillThatCannotBeCutGetsAStepOfItsOwnBesideDecodesEveryOtherStep) {
  SchedulerConfig c = config(10);
  c.exact_chunk = 10;
  Simulation sim(c);
  sim.add(1, prompt(5, 1));
  sim.step();
  sim.add(2, prompt(30, 2));
  for (const char* expected : {"2:10", "1:1", "2:10", "1:1", "2:10"}) {
    EXPECT_THAT(rows(sim.step()), ElementsAre(expected));
  }
  EXPECT_THAT(rows(sim.step()), ElementsAre("1:1", "2:1"));
}

TEST(SchedulerPlan, AShortPromptWaitsForOneChunkOfALongOneAtMost) {
  Simulation sim(config(256, 200));
  sim.add(1, prompt(900, 1), up_to(1));
  EXPECT_THAT(rows(sim.step()), ElementsAre("1:256"));
  sim.add(2, prompt(100, 2), up_to(1));
  EXPECT_THAT(rows(sim.step()), ElementsAre("2:100", "1:128")) << "and the long one still gets half or more";
  EXPECT_EQ(sim.outcomes[2].first_token_step, 2);
  sim.run();
}

TEST(SchedulerPlan, AShortPromptPassesSeveralLongOnesAndTheyGoOneByOne) {
  Simulation sim(config(256, 300));
  for (int64_t id = 1; id <= 4; ++id) sim.add(id, prompt(900, static_cast<int32_t>(id)), up_to(1));
  sim.add(5, prompt(100, 5), up_to(1));
  EXPECT_THAT(rows(sim.step()), ElementsAre("5:100", "1:128"));
  EXPECT_EQ(sim.scheduler.stats().n_waiting, 3);
  sim.run();
  EXPECT_LT(sim.outcomes[1].first_token_step, sim.outcomes[2].first_token_step);
  EXPECT_LT(sim.outcomes[2].first_token_step, sim.outcomes[3].first_token_step);
  EXPECT_LT(sim.outcomes[3].first_token_step, sim.outcomes[4].first_token_step);
}

TEST(SchedulerPlan, AStreamOfShortPromptsDoesNotStarveALongOne) {
  SchedulerConfig c = config(128, 200);
  Simulation sim(c);
  sim.add(1, prompt(900, 1), up_to(1));
  int64_t id = 2;
  int n_steps = 0;
  for (; sim.outcomes[1].finish == FinishReason::kNone; ++n_steps) {
    ASSERT_LT(n_steps, 40) << "900 tokens at 64 or so a step";
    for (; sim.scheduler.stats().n_waiting < 5; ++id) sim.add(id, prompt(40, static_cast<int32_t>(id)), up_to(2));
    sim.step();
  }
  EXPECT_GT(id, 10);
}

TEST(SchedulerPlan, ALongPromptMostlyInTheCacheCountsAsShort) {
  Simulation sim(config(256, 300));
  sim.add(1, prompt(800, 1), up_to(1));
  sim.run();
  sim.add(2, prompt(900, 2), up_to(1));
  sim.step();
  sim.add(3, prompt(800, 1), up_to(1));
  EXPECT_THAT(rows(sim.step()), ElementsAre("3:16", "2:192"));
}

TEST(SchedulerPlan, TheThresholdLimitsEachPrefill) {
  SchedulerConfig c = config(256);
  c.long_prefill_token_threshold = 64;
  Simulation sim(c);
  sim.add(1, prompt(300, 1), up_to(1));
  sim.add(2, prompt(200, 2), up_to(1));
  sim.add(3, prompt(30, 3), up_to(1));
  EXPECT_THAT(rows(sim.step()), ElementsAre("3:30", "1:64", "2:64"));
}

TEST(SchedulerPlan, NobodyOvertakesARequestWhoseTurnItIsButThatLacksBlocks) {
  Simulation sim(config(256, 10));
  sim.add(1, prompt(100, 1), up_to(5));  // 7 blocks
  sim.step();
  sim.add(2, prompt(60, 2), up_to(1));  // 4
  sim.add(3, prompt(10, 3), up_to(1));
  for (int i = 0; i < 4; ++i) EXPECT_THAT(rows(sim.step()), ElementsAre("1:1"));
  EXPECT_THAT(rows(sim.step()), ElementsAre("2:60", "3:10"));
}

TEST(SchedulerPlan, NobodyOvertakesAShortRequestThatLacksBlocksBesideALongOne) {
  Simulation sim(config(256, 61));
  sim.add(1, prompt(900, 1), up_to(1));  // 57 blocks
  sim.step();
  sim.add(2, prompt(100, 2), up_to(1));  // 7
  sim.add(3, prompt(10, 3), up_to(1));   // 1
  EXPECT_THAT(rows(sim.step()), ElementsAre("1:256"));
  sim.run();
  EXPECT_LE(sim.outcomes[2].first_token_step, sim.outcomes[3].first_token_step);
}

TEST(SchedulerPlan, AnAdmissionBesideOthersLeavesAFewBlocksFree) {
  SchedulerConfig c = config(256, 200);  // 2 stay free
  c.max_model_len = 4000;
  Simulation sim(c);
  sim.add(1, prompt(160, 1), up_to(3));  // 11 blocks with its second token
  sim.step();
  sim.add(2, prompt(3000, 2), up_to(1));  // 188 of the 189 left
  for (int i = 0; i < 2; ++i) EXPECT_THAT(rows(sim.step()), ElementsAre("1:1"));
  EXPECT_THAT(rows(sim.step()), ElementsAre("2:256")) << "alone it may have them all";
}

TEST(SchedulerPlan, ARequestThatLacksBlocksStartsOnceEnoughOfItsPrefixIsHeldByAnother) {
  SchedulerConfig c = config(256, 30);
  c.long_prefill_token_threshold = 64;
  Simulation sim(c);
  sim.add(1, prompt(320), up_to(1));  // 20 blocks each: the second needs 10 of the first's
  sim.add(2, prompt(320), up_to(1));
  for (int i = 0; i < 3; ++i) EXPECT_THAT(rows(sim.step()), ElementsAre("1:64"));
  const StepPlan plan = sim.step();
  EXPECT_THAT(rows(plan), ElementsAre("1:64", "2:64"));
  EXPECT_EQ(plan.sequences[1].start, TokenPos(192));
}

TEST(SchedulerPlan, EqualLongPromptsAreComputedOnce) {
  Simulation sim(config(256, 300));
  for (int64_t id = 1; id <= 3; ++id) sim.add(id, prompt(800), up_to(1));
  sim.run();
  EXPECT_EQ(sim.outcomes[1].cached_tokens, 0);
  // They start beside the first one's last chunk and find all that the steps before had computed.
  EXPECT_EQ(sim.outcomes[2].cached_tokens, 768);
  EXPECT_EQ(sim.outcomes[3].cached_tokens, 768);
}

TEST(SchedulerPreemption, TheLastRunningGivesWayAndResumesWithItsOutput) {
  Simulation sim(config(256, 8));
  sim.add(1, prompt(40, 1), up_to(40));
  sim.add(2, prompt(40, 2), up_to(40));
  bool seen = false;
  sim.on_plan = [&](const StepPlan& plan) {
    for (const RequestId id : plan.forget) seen |= id == RequestId(2) && sim.outcomes[2].finish == FinishReason::kNone;
  };
  sim.run();
  EXPECT_TRUE(seen) << "ranks are told to forget";
  EXPECT_GE(sim.scheduler.stats().preemptions, 1);
  for (const int64_t id : {1, 2}) {
    EXPECT_EQ(sim.outcomes[id].tokens, FakeModel::continuation(sim.outcomes[id].prompt, 40)) << id;
    EXPECT_EQ(sim.outcomes[id].finish, FinishReason::kLength);
    EXPECT_EQ(sim.outcomes[id].cached_tokens, 0) << "its own blocks found again are not cached tokens of the prompt";
  }
  EXPECT_EQ(sim.scheduler.stats().prompt_tokens, 80) << "counted once";
}

TEST(SchedulerPreemption, GoesToTheFrontOfTheQueue) {
  Simulation sim(config(256, 7));
  sim.add(1, prompt(47, 1), up_to(5));
  sim.add(2, prompt(47, 2), up_to(5));
  sim.step();
  sim.add(3, prompt(20, 3), up_to(1));
  StepPlan plan;
  while (plan.sequences.empty() || plan.sequences.back().id != RequestId(3)) plan = sim.step();
  EXPECT_EQ(sim.scheduler.stats().preemptions, 1);
  EXPECT_EQ(plan.sequences.front().id, RequestId(2)) << "it resumes before the third starts";
  sim.run();
}

TEST(SchedulerPreemption, IsNotOvertakenByShortRequests) {
  SchedulerConfig c = config(128, 65);
  c.prefix_caching = false;
  Simulation sim(c);
  sim.add(1, prompt(900, 1), up_to(1));  // 57 blocks, a chunk a step
  sim.add(2, prompt(60, 2), up_to(10));  // 4, and a fifth for its sixth token
  sim.step();
  sim.add(3, prompt(60, 3), up_to(10));  // the last 4
  sim.step();
  sim.add(4, prompt(10, 4), up_to(1));
  for (int i = 0; i < 3; ++i) sim.step();
  EXPECT_THAT(rows(sim.step()), ElementsAre("2:1", "1:64"));
  EXPECT_EQ(sim.scheduler.stats().preemptions, 1);
  EXPECT_EQ(sim.scheduler.stats().n_waiting, 2) << "the third left blocks enough for the fourth, but goes first";
  sim.run();
  EXPECT_EQ(sim.scheduler.stats().preemptions, 1);
}

TEST(SchedulerPreemption, RecomputationMayBeChunkedThoughPromptsAreNot) {
  SchedulerConfig c = config(50, 7);
  c.chunked_prefill = false;
  c.prefix_caching = false;
  Simulation sim(c);
  sim.add(1, prompt(40, 1), up_to(50));
  sim.add(2, prompt(40, 2), up_to(50));
  sim.run();
  EXPECT_GE(sim.scheduler.stats().preemptions, 1);
  for (const int64_t id : {1, 2})
    EXPECT_EQ(sim.outcomes[id].tokens, FakeModel::continuation(sim.outcomes[id].prompt, 50));
}

TEST(SchedulerAbort, WaitingRunningAndInFlight) {
  SchedulerConfig c = config(64, 100);
  c.max_num_seqs = 2;
  Simulation sim(c);
  for (int64_t id = 1; id <= 3; ++id) sim.add(id, prompt(20, static_cast<int32_t>(id)));
  sim.step();
  sim.scheduler.abort(RequestId(3));  // waits
  EXPECT_EQ(sim.scheduler.stats().n_waiting, 0);
  sim.scheduler.abort(RequestId(1));  // runs, between steps: its blocks are free at once
  EXPECT_EQ(sim.scheduler.stats().blocks_used, 2);
  sim.on_plan = [&](const StepPlan& plan) { sim.scheduler.abort(RequestId(2)); };  // in flight
  EXPECT_THAT(rows(sim.step()), ElementsAre("2:1"));
  for (int64_t id = 1; id <= 3; ++id) EXPECT_EQ(sim.outcomes[id].finish, FinishReason::kAborted) << id;
  EXPECT_EQ(sim.outcomes[2].tokens.size(), 1u) << "the token of the aborted step is dropped";
  EXPECT_TRUE(sim.scheduler.idle());
  EXPECT_EQ(sim.scheduler.stats().aborted, 3);
  EXPECT_EQ(sim.scheduler.stats().blocks_used, 0);
  sim.scheduler.abort(RequestId(2));
  sim.scheduler.abort(RequestId(77));
  EXPECT_TRUE(sim.scheduler.idle()) << "unknown and ended requests are none of its business";
}

TEST(SchedulerAbort, TheReportComesWithAnEmptyStepWhenNothingElseRuns) {
  Simulation sim(config());
  sim.add(1, prompt(20));
  sim.scheduler.abort(RequestId(1));
  EXPECT_FALSE(sim.scheduler.idle());
  EXPECT_TRUE(sim.step().empty());
  EXPECT_EQ(sim.outcomes[1].finish, FinishReason::kAborted);
  EXPECT_TRUE(sim.scheduler.idle());
}

TEST(SchedulerPrefix, HitsAreReportedAndAFollowUpReusesTheAnswer) {
  Simulation sim(config());
  sim.add(1, prompt(40), up_to(30));
  sim.run();
  EXPECT_EQ(sim.outcomes[1].cached_tokens, 0);
  auto next = sim.outcomes[1].prompt;
  next.insert(next.end(), sim.outcomes[1].tokens.begin(), sim.outcomes[1].tokens.end());
  next.insert(next.end(), {5, 6, 7});
  sim.add(2, next, up_to(1));
  sim.run();
  EXPECT_EQ(sim.outcomes[2].cached_tokens, 64) << "69 of the 70 were computed; four whole blocks";
  EXPECT_EQ(sim.scheduler.stats().cached_tokens, 64);
  ASSERT_TRUE(sim.scheduler.reset_prefix_cache());
  sim.add(3, next, up_to(1));
  sim.run();
  EXPECT_EQ(sim.outcomes[3].cached_tokens, 0);
}

TEST(SchedulerPrefix, SharedBlocksAreHeldOnce) {
  Simulation sim(config(256, 100, 16));
  HeldTokens held;
  const auto distinct = [&] {  // tokens in held blocks
    sim.scheduler.held_tokens(held);
    return std::accumulate(held.computed.begin(), held.computed.end(), int64_t{0}) - 16 * held.n_shared;
  };
  EXPECT_EQ(distinct(), 0);
  sim.add(1, prompt(50));
  sim.step();
  EXPECT_EQ(distinct(), 50);
  sim.add(2, prompt(50));  // three of its four blocks are those of the first
  sim.step();
  EXPECT_EQ(distinct(), 51 + 2);
  EXPECT_THAT(held.computed, ElementsAre(51, 50));
  EXPECT_EQ(held.n_shared, 3);
  sim.scheduler.abort(RequestId(1));
  sim.scheduler.abort(RequestId(2));
  sim.step();
  EXPECT_EQ(distinct(), 0);
  EXPECT_EQ(sim.scheduler.stats().blocks_used, 0);
  EXPECT_EQ(sim.scheduler.stats().blocks_cached, 3);
}

TEST(SchedulerPrefix, CannotBeResetWhileRequestsRun) {
  Simulation sim(config());
  sim.add(1, prompt(40), up_to(2));
  sim.step();
  EXPECT_FALSE(sim.scheduler.reset_prefix_cache());
}

TEST(SchedulerPrefix, PromptLogprobsNeedEveryRowAndAllLogitsDoNot) {
  Simulation sim(config(30));
  sim.add(1, prompt(40), up_to(1));
  sim.run();
  SamplingParams scored = up_to(1);
  scored.prompt_logprobs = true;
  sim.add(2, prompt(40), scored);
  sim.run();
  const Outcome& o = sim.outcomes[2];
  EXPECT_EQ(o.cached_tokens, 0);
  ASSERT_EQ(o.prompt_logprobs.size(), 39u);
  for (size_t i = 0; i < 39; ++i) EXPECT_EQ(o.prompt_logprobs[i].token, o.prompt[i + 1]) << i;
  sim.add(3, prompt(40), up_to(1), [](Request& r) { r.all_logits = true; });
  EXPECT_TRUE(sim.step().sequences[0].all_logits);
  EXPECT_EQ(sim.outcomes[3].cached_tokens, 32);
}

TEST(SchedulerPrefix, PromptLogprobsComeOnceThoughAPreemptionComputesThemAgain) {
  SchedulerConfig c = config(64, 8);
  c.prefix_caching = false;
  Simulation sim(c);
  SamplingParams scored = up_to(40);
  scored.prompt_logprobs = true;
  sim.add(1, prompt(40, 1), scored);
  sim.add(2, prompt(40, 2), scored);
  sim.run();
  EXPECT_GE(sim.scheduler.stats().preemptions, 1);
  for (const int64_t id : {1, 2}) EXPECT_EQ(sim.outcomes[id].prompt_logprobs.size(), 39u);
}

// The fake model's answer to prompt(10), to place stops in it.
std::vector<int32_t> answer(int64_t n) { return FakeModel::continuation(prompt(10), n); }

Outcome run_one(const SchedulerConfig& c, const SamplingParams& sampling) {
  Simulation sim(c);
  EXPECT_FALSE(sim.add(1, prompt(10), sampling));
  sim.run();
  return sim.outcomes[1];
}

TEST(SchedulerStop, EndTokensStopAndArePartOfTheOutput) {
  SchedulerConfig c = config();
  c.eos_token_ids = {answer(5)[4]};
  SamplingParams s = up_to(20);
  Outcome o = run_one(c, s);
  EXPECT_EQ(o.finish, FinishReason::kStop);
  EXPECT_EQ(o.tokens, answer(5));
  s.min_tokens = 6;
  o = run_one(c, s);
  EXPECT_GE(o.tokens.size(), 6u);
  s.min_tokens = 5;
  EXPECT_EQ(run_one(c, s).tokens.size(), 5u);
  s.min_tokens = 0;
  s.ignore_eos = true;
  o = run_one(c, s);
  EXPECT_EQ(o.finish, FinishReason::kLength);
  EXPECT_EQ(o.tokens, answer(20));
}

TEST(SchedulerStop, StopTokensHoldEvenWhenEndTokensAreIgnored) {
  SamplingParams s = up_to(20);
  s.ignore_eos = true;
  s.stop_token_ids = {answer(3)[2]};
  const Outcome o = run_one(config(), s);
  EXPECT_EQ(o.finish, FinishReason::kStop);
  EXPECT_EQ(o.tokens, answer(3));
}

TEST(SchedulerStop, LengthLimits) {
  SchedulerConfig c = config();
  c.max_model_len = 30;
  EXPECT_EQ(run_one(c, up_to(-1)).tokens, answer(20)) << "what is left of the context";
  EXPECT_EQ(run_one(c, up_to(50)).tokens, answer(20));
  EXPECT_EQ(run_one(c, up_to(7)).tokens, answer(7));
  const Outcome none = run_one(c, up_to(0));
  EXPECT_TRUE(none.tokens.empty());
  EXPECT_EQ(none.finish, FinishReason::kLength);
}

TEST(SchedulerStop, AFullPoolEndsTheOneThatFillsItAndSaysSo) {
  const Outcome o = run_one(config(256, 2), up_to(-1));
  EXPECT_EQ(o.finish, FinishReason::kLength);
  EXPECT_EQ(o.tokens, answer(23)) << "32 rows, and the token that the last of them yields";
  EXPECT_EQ(o.message, "the KV pool holds no more than 32 tokens");
}

TEST(SchedulerError, ABadRowEndsItsRequestAloneAndItsBlocksAreNotReused) {
  Simulation sim(config());
  sim.add(1, prompt(40, 1), up_to(5));
  sim.add(2, prompt(40, 2), up_to(5));
  sim.step();
  sim.poisoned = {2};
  sim.step();
  EXPECT_EQ(sim.outcomes[2].finish, FinishReason::kError);
  EXPECT_EQ(sim.outcomes[2].tokens.size(), 1u);
  EXPECT_THAT(sim.outcomes[2].message, HasSubstr("tokens 40 to 40"));
  EXPECT_EQ(sim.scheduler.stats().blocks_used, 3);
  sim.add(3, prompt(40, 2), up_to(1));
  sim.run();
  EXPECT_EQ(sim.outcomes[1].finish, FinishReason::kLength);
  EXPECT_EQ(sim.outcomes[3].cached_tokens, 0);
  EXPECT_EQ(sim.scheduler.stats().finished, 2);
}

class CountingConstraint : public Constraint {
 public:
  std::span<const uint32_t> mask() override { return {}; }
  void advance(int32_t token) override { seen.push_back(token); }
  std::vector<int32_t> seen;
};

TEST(SchedulerConstraint, AdvancesOncePerTokenThatIsFollowedByAnother) {
  Simulation sim(config(256, 8));
  auto constraint = std::make_shared<CountingConstraint>();
  sim.add(1, prompt(40, 1), up_to(40));
  sim.add(2, prompt(40, 2), up_to(40), [&](Request& r) { r.constraint = constraint; });
  sim.run();
  EXPECT_GE(sim.scheduler.stats().preemptions, 1);
  auto expected = FakeModel::continuation(sim.outcomes[2].prompt, 40);
  expected.pop_back();
  EXPECT_EQ(constraint->seen, expected);
}

TEST(SchedulerDeathTest, PlansAndCommitsAlternate) {
  Scheduler scheduler(config());
  Request request;
  request.id = RequestId(1);
  request.prompt = {1, 2, 3};
  scheduler.add(request);
  EXPECT_DEATH(scheduler.add(request), "request id 1 is in use");
  const StepPlan& plan = scheduler.plan();
  EXPECT_DEATH(scheduler.plan(), "planned but not committed");
  EXPECT_DEATH(scheduler.commit(plan, StepResult{}), "0 results for 1 sequences");
}

}  // namespace
}  // namespace braid
