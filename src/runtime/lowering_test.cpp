#include "runtime/lowering.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace braid {
namespace {

StepPlan random_plan(const SequenceShard& shard) {
  StepPlan plan;
  const int n = *rc::gen::inRange(1, 5);
  int64_t next_block = 0;
  for (int i = 0; i < n; ++i) {
    PlannedSequence s;
    s.id = RequestId(i + 1);
    s.start = TokenPos(*rc::gen::inRange(0, 60));
    s.tokens.resize(static_cast<size_t>(*rc::gen::inRange(1, 20)));
    for (size_t t = 0; t < s.tokens.size(); ++t) s.tokens[t] = static_cast<int32_t>(100 * i + static_cast<int>(t));
    const int64_t length = s.start.value + static_cast<int64_t>(s.tokens.size());
    for (int64_t c = 0; c < shard.table_columns(length); ++c) s.blocks.push_back(BlockId(next_block++));
    s.sample = *rc::gen::arbitrary<bool>();
    s.all_logits = *rc::gen::arbitrary<bool>();
    plan.sequences.push_back(s);
  }
  return plan;
}

// Over the ranks of a group every new token is stored exactly once, in a slot of its sequence's own blocks.
RC_GTEST_PROP(Lowering, EveryTokenIsStoredOnce, ()) {
  SequenceShard shard;
  shard.n_ranks = *rc::gen::inRange(1, 5);
  shard.interleave = *rc::gen::inRange(1, 4);
  shard.block_size = 2 * shard.interleave;
  const StepPlan plan = random_plan(shard);
  std::vector<int> stored(static_cast<size_t>(plan.n_tokens()), 0);
  int64_t rows = 0;
  for (shard.rank = 0; shard.rank < shard.n_ranks; ++shard.rank) {
    RankStep step;
    lower(plan, shard, step);
    RC_ASSERT(step.n_tokens == plan.n_tokens());
    rows += step.rows_written;
    int row = 0;
    for (size_t s = 0; s < plan.sequences.size(); ++s) {
      const PlannedSequence& seq = plan.sequences[s];
      for (size_t i = 0; i < seq.tokens.size(); ++i, ++row) {
        const TokenPos g = seq.start + static_cast<int64_t>(i);
        RC_ASSERT(step.ints[static_cast<size_t>(step.token_ids + row)] == seq.tokens[i]);
        RC_ASSERT(step.ints[static_cast<size_t>(step.positions + row)] == g.value);
        const int32_t slot = step.ints[static_cast<size_t>(step.slots + row)];
        RC_ASSERT((slot >= 0) == shard.owns(g));
        if (slot < 0) continue;
        ++stored[static_cast<size_t>(row)];
        RC_ASSERT(BlockId(slot / shard.block_size) == seq.blocks[static_cast<size_t>(shard.table_column(g))]);
      }
    }
  }
  RC_ASSERT(rows == plan.n_tokens());
  for (int n : stored) RC_ASSERT(n == 1);
}

// However long a sequence grows, its rows on any two ranks differ by an interleave at most.
RC_GTEST_PROP(Lowering, RanksStayBalanced, ()) {
  SequenceShard shard;
  shard.n_ranks = *rc::gen::inRange(2, 9);
  shard.interleave = *rc::gen::inRange(1, 17);
  shard.block_size = 2 * shard.interleave;
  PlannedSequence s;
  s.id = RequestId(1);
  s.tokens.assign(1, 7);
  for (int64_t c = 0; c < shard.table_columns(10'000); ++c) s.blocks.push_back(BlockId(c));
  StepPlan plan;
  plan.sequences.push_back(s);
  std::vector<int64_t> rows(static_cast<size_t>(shard.n_ranks), 0);
  RankStep step;
  for (int64_t g = 0; g < 10'000; ++g) {
    plan.sequences[0].start = TokenPos(g);
    for (shard.rank = 0; shard.rank < shard.n_ranks; ++shard.rank) {
      lower(plan, shard, step);
      rows[static_cast<size_t>(shard.rank)] += step.rows_written;
    }
    const auto [least, most] = std::minmax_element(rows.begin(), rows.end());
    RC_ASSERT(*most - *least <= shard.interleave);
  }
}

RC_GTEST_PROP(Lowering, LogitRowsAreTheAskedOnes, ()) {
  const SequenceShard shard;
  const StepPlan plan = random_plan(shard);
  RankStep step;
  lower(plan, shard, step);
  std::vector<int32_t> expected;
  int32_t row = 0;
  for (const PlannedSequence& s : plan.sequences) {
    const auto n = static_cast<int32_t>(s.tokens.size());
    for (int32_t i = 0; i < n; ++i) {
      if (s.every_row() || (s.sample && i == n - 1)) expected.push_back(row + i);
    }
    row += n;
  }
  const BatchMeta b = batch_of(step, shard, Tensor(step.ints.data(), DType::kI32, {static_cast<int64_t>(step.ints.size())}));
  RC_ASSERT(b.n_logit_rows == static_cast<int>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) RC_ASSERT(b.logit_rows.as<int32_t>()[i] == expected[i]);
  RC_ASSERT(step.logit_row_start.back() == b.n_logit_rows);
}

}  // namespace
}  // namespace braid
