#include "runtime/step_parts.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "runtime/lowering.h"

namespace braid {
namespace {

StepPlan plan_of(const std::vector<std::pair<int, int>>& sequences /*cached, new*/, const SequenceShard& shard) {
  StepPlan plan;
  int64_t block = 0;
  for (const auto& [cached, fresh] : sequences) {
    PlannedSequence s;
    s.id = RequestId(static_cast<int64_t>(plan.sequences.size()) + 1);
    s.start = TokenPos(cached);
    s.tokens.resize(static_cast<size_t>(fresh));
    for (int64_t c = 0; c < shard.table_columns(cached + fresh); ++c) s.blocks.push_back(BlockId(++block));
    plan.sequences.push_back(s);
  }
  return plan;
}

// Every cached token of every sequence that attends to rows, in the order in which its windows give them; each is read
// by the slot of its owner and found in the gathered rows.
void check_windows(const StepPlan& plan, const RowRule& rule, const SequenceShard& shard) {
  std::vector<PartStep> steps(static_cast<size_t>(shard.n_ranks));
  std::vector<std::map<int64_t, std::pair<int, int64_t>>> cache(steps.size());  // slot -> (sequence, position)
  for (int r = 0; r < shard.n_ranks; ++r) {
    SequenceShard mine = shard;
    mine.rank = r;
    lower_parts(plan, rule, mine, steps[static_cast<size_t>(r)]);
    for (size_t s = 0; s < plan.sequences.size(); ++s) {
      const PlannedSequence& seq = plan.sequences[s];
      for (int64_t g = 0; g < seq.start.value; ++g) {
        if (!mine.owns(TokenPos(g))) continue;
        const BlockId block = seq.blocks[static_cast<size_t>(mine.table_column(TokenPos(g)))];
        cache[static_cast<size_t>(r)][mine.slot(block, mine.local(TokenPos(g))).value] = {static_cast<int>(s), g};
      }
    }
  }
  const PartStep& first = steps[0];
  std::vector<int64_t> next(plan.sequences.size(), 0);
    int row = 0, seq = 0;
  for (size_t p = 0; p < first.parts.size(); ++p) {
    const PartStep::Part& part = first.parts[p];
    RC_ASSERT(part.first_row == row && part.first_seq == seq);
    row += part.n_rows;
    seq += part.n_seqs;
    for (size_t w = 0; w < part.windows.size(); ++w) {
      const PartStep::Window& window = part.windows[w];
      RC_ASSERT(int64_t{window.rank_rows} * shard.n_ranks <= std::max(rule.window_tokens, shard.round()));
      std::vector<std::pair<int, int64_t>> gathered;
      for (size_t r = 0; r < steps.size(); ++r) {
        const PartStep::Window& same = steps[r].parts[p].windows[w];
        RC_ASSERT(same.rank_rows == window.rank_rows && same.n_tokens == window.n_tokens && same.n_rows == window.n_rows);
        for (int i = 0; i < same.rank_rows; ++i) {
          const int32_t slot = steps[r].ints[static_cast<size_t>(same.slots + i)];
          gathered.push_back(slot < 0 ? std::pair{-1, int64_t{-1}} : cache[r].at(slot));
        }
      }
      std::vector<std::pair<int, int64_t>> tokens;
      for (int j = 0; j < window.n_tokens; ++j) {
        const int32_t from = shard.n_ranks > 1 ? first.ints[static_cast<size_t>(window.order + j)] : j;
        tokens.push_back(gathered.at(static_cast<size_t>(from)));
      }
      int skipped = part.first_seq, rows_before = 0;
      while (rows_before < window.first_row) rows_before += static_cast<int>(plan.sequences[static_cast<size_t>(skipped++)].tokens.size());
      for (int i = 0; i < window.n_seqs; ++i) {
        const auto s = static_cast<size_t>(skipped + i);
        const int32_t* q = first.ints.data() + window.q_start + i;
        const int32_t* kv = first.ints.data() + window.kv_start + i;
        RC_ASSERT(q[1] - q[0] == static_cast<int>(plan.sequences[s].tokens.size()));
        for (int32_t j = kv[0]; j < kv[1]; ++j) {
          const std::pair<int, int64_t> expected{static_cast<int>(s), next[s]++};
          RC_ASSERT(tokens[static_cast<size_t>(j)] == expected);
        }
      }
    }
  }
  if (first.parts.empty()) return;
  RC_ASSERT(row == plan.n_tokens() && seq == static_cast<int>(plan.sequences.size()));
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const PlannedSequence& q = plan.sequences[s];
    RC_ASSERT(next[s] == (rule.chooses(static_cast<int64_t>(q.tokens.size()), q.start.value) ? q.start.value : 0));
  }
}

RC_GTEST_PROP(StepParts, EveryCachedTokenIsInOneWindow, ()) {
  SequenceShard shard;
  shard.n_ranks = *rc::gen::element(1, 2, 3, 4, 8);
  shard.interleave = *rc::gen::element(1, 2, 4);
  shard.block_size = shard.interleave * *rc::gen::inRange(1, 4);
  std::vector<std::pair<int, int>> sequences;
  for (int i = *rc::gen::inRange(1, 7); i > 0; --i) sequences.emplace_back(*rc::gen::inRange(0, 200), *rc::gen::inRange(1, 9));
  RowRule rule;
  rule.form = *rc::gen::element(RowRule::Form::kAuto, RowRule::Form::kAlways);
  rule.per_cached = 20;
  rule.per_pair = 5;
  rule.window_tokens = *rc::gen::inRange(1, 150);
  check_windows(plan_of(sequences, shard), rule, shard);
}

TEST(StepParts, OneSequenceOverSeveralWindows) {
  const SequenceShard shard{4, 1, 2, 1};
  RowRule rule{RowRule::Form::kAlways};
  rule.window_tokens = 16;
  PartStep step;
  lower_parts(plan_of({{37, 1}, {37, 3}}, shard), rule, shard, step);
  ASSERT_EQ(step.parts.size(), 2u);
  EXPECT_FALSE(step.parts[0].from_rows);
  EXPECT_EQ(step.parts[1].first_row, 1);
  ASSERT_EQ(step.n_windows, 3);
  EXPECT_EQ(step.parts[1].windows[2].n_tokens, 5);
  EXPECT_EQ(step.parts[1].windows[2].rank_rows, 2);  // rank 0 holds tokens 32 and 36, the others one
  EXPECT_EQ(step.ints[static_cast<size_t>(step.parts[1].windows[2].slots + 1)], -1);
  EXPECT_EQ(step.row_tokens, 3);
  EXPECT_EQ(step.rows_unread, 1);  // of tokens 37, 38 and 39 rank 1 holds the first
}

TEST(StepParts, TheRuleWeighsExpandingAgainstPairs) {
  RowRule rule{RowRule::Form::kAuto, 170, 0, 1};  // DeepSeek-R1's proportions
  EXPECT_TRUE(rule.chooses(2, 0));
  EXPECT_FALSE(rule.chooses(1, 0));
  EXPECT_FALSE(rule.chooses(150, 10000));
  EXPECT_TRUE(rule.chooses(171, 10000));
  rule.form = RowRule::Form::kNever;
  EXPECT_FALSE(rule.chooses(171, 0));
}

}  // namespace
}  // namespace braid
