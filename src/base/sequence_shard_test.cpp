#include "base/sequence_shard.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace braid {
namespace {

SequenceShard random_shard() {
  SequenceShard s;
  s.n_ranks = *rc::gen::inRange(1, 9);
  s.interleave = *rc::gen::inRange(1, 17);
  s.block_size = s.interleave * *rc::gen::inRange(1, 5);
  s.rank = *rc::gen::inRange(0, s.n_ranks);
  return s;
}

RC_GTEST_PROP(SequenceShard, LocalAndGlobalAreInverse, ()) {
  const SequenceShard s = random_shard();
  const LocalPos j(*rc::gen::inRange(0, 5000));
  const TokenPos g = s.global(j);
  RC_ASSERT(s.owns(g));
  RC_ASSERT(s.local(g) == j);
}

RC_GTEST_PROP(SequenceShard, RunsOfOneTokenAreDealtInTurn, ()) {
  SequenceShard s = random_shard();
  s.interleave = 1;
  const TokenPos g(*rc::gen::inRange(0, 5000));
  RC_ASSERT(s.owns(g) == (g.value % s.n_ranks == s.rank));
  RC_ASSERT(s.local(g).value == g.value / s.n_ranks);
}

RC_GTEST_PROP(SequenceShard, LocalLengthCountsOwnedPositions, ()) {
  SequenceShard s = random_shard();
  const int64_t n = *rc::gen::inRange(0, 400);
  int64_t owned = 0, total = 0;
  for (int64_t g = 0; g < n; ++g) owned += s.owns(TokenPos(g));
  RC_ASSERT(s.local_length(n) == owned);
  int64_t previous = n;
  for (s.rank = 0; s.rank < s.n_ranks; ++s.rank) {
    total += s.local_length(n);
    RC_ASSERT(s.local_length(n) <= previous);  // rank 0 holds the most
    previous = s.local_length(n);
  }
  RC_ASSERT(total == n);
}

// Local rows are dense, keep global order, and stay inside the entry of their column.
RC_GTEST_PROP(SequenceShard, RowsAreDenseAndInsideTheirBlock, ()) {
  const SequenceShard s = random_shard();
  const int64_t n = *rc::gen::inRange(1, 400);
  int64_t next = 0;
  for (int64_t g = 0; g < n; ++g) {
    if (!s.owns(TokenPos(g))) continue;
    const LocalPos j = s.local(TokenPos(g));
    RC_ASSERT(j.value == next++);
    RC_ASSERT(j.value / s.block_size == s.table_column(TokenPos(g)));
  }
  const SequenceShard first{s.n_ranks, s.interleave, s.block_size, 0};
  RC_ASSERT(s.table_columns(n) == (first.local_length(n) + s.block_size - 1) / s.block_size);
}

// A step's causal windows grow by one row a query, on exactly one rank.
RC_GTEST_PROP(SequenceShard, WindowsGrowOnOneRank, ()) {
  SequenceShard s = random_shard();
  const int64_t n = *rc::gen::inRange(1, 400);
  int grew = 0;
  for (s.rank = 0; s.rank < s.n_ranks; ++s.rank) grew += static_cast<int>(s.local_length(n) - s.local_length(n - 1));
  RC_ASSERT(grew == 1);
}

}  // namespace
}  // namespace braid
