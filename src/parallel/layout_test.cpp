#include "parallel/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "parallel/placement.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

const ModelDims kV3{.model_type = "deepseek_v3", .heads = 8, .ffn = 96, .moe_ffn = 32, .shared_ffn = 32};

TEST(Layout, RanksAreOrderedDpPcpTp) {
  const Layout l{.tp = 4, .dcp = 2, .pcp = 2, .dp = 2};
  EXPECT_EQ(l.world(), 16);
  for (int rank = 0; rank < l.world(); ++rank) {
    const RankPlace p = place_of(l, rank);
    EXPECT_EQ((p.dp * l.pcp + p.pcp) * l.tp + p.tp, rank);
    EXPECT_EQ(tp_group(l, rank)[static_cast<size_t>(p.tp)], rank);
    EXPECT_EQ(dcp_group(l, rank)[static_cast<size_t>(p.dcp)], rank);
  }
}

TEST(Layout, EveryProblemIsReportedWithLegalValues) {
  const auto problems = layout_problems({.tp = 3, .dcp = 2}, kV3, true);
  const std::string all = ::testing::PrintToString(problems);
  EXPECT_THAT(all, HasSubstr("does not divide num_attention_heads = 8; use 1, 2, 4 or 8"));
  EXPECT_THAT(all, HasSubstr("--decode-context-parallel-size 2 does not divide --tensor-parallel-size 3; use 1 or 3"));
  EXPECT_THAT(all, HasSubstr("must be 1, 2, 4 or 8, not 3"));
  EXPECT_TRUE(layout_problems({.tp = 8}, kV3, true).empty());
}

TEST(Layout, KvHeadsAreSplitOrReplicated) {
  for (int tp : {1, 2, 4, 8}) {
    for (int64_t kv : {1, 2, 4, 8}) {
      for (int r = 0; r < tp; ++r) {
        const Placement p = place(Role::kKvHeads, {.tp = tp}, r, kv);
        // The query heads of a rank (8 in all) must read exactly the key/value heads that it holds.
        const Range q = part_of(8, r, tp), held = part_of(kv, p.part, p.parts);
        for (int64_t h = q.begin; h < q.end; ++h) {
          EXPECT_GE(h / (8 / kv), held.begin) << tp << " " << kv << " " << r;
          EXPECT_LT(h / (8 / kv), held.end);
        }
      }
    }
  }
}

// A group's ranks must hold the same KV heads, which is what layout_problems promises to see to.
TEST(Layout, ContextGroupsShareTheirKvHeads) {
  for (int tp : {1, 2, 4, 6, 8, 12}) {
    for (int64_t kv : {1, 2, 4, 12}) {
      if (tp % kv != 0 && kv % tp != 0) continue;
      for (int dcp : {1, 2, 3, 4, 6, 8, 12}) {
        if (tp % dcp != 0) continue;
        const Layout l{.tp = tp, .dcp = dcp};
        bool share = true;
        for (int r = 0; r < tp; ++r) {
          const int first = dcp_group(l, r)[0];
          const Placement mine = place(Role::kKvHeads, l, r, kv), theirs = place(Role::kKvHeads, l, first, kv);
          share = share && mine.part == theirs.part && mine.parts == theirs.parts;
        }
        const ModelDims m{.model_type = "llama", .heads = 24, .kv_heads = kv, .ffn = 24};
        EXPECT_EQ(layout_problems(l, m, false).empty(), share) << tp << " " << dcp << " " << kv;
      }
    }
  }
  EXPECT_TRUE(layout_problems({.tp = 8, .dcp = 8}, kV3, true).empty());  // a latent row is every head's
}

TEST(Layout, GroupHeadsAreThoseOfTheGroupsRanks) {
  const Layout l{.tp = 8, .dcp = 4};
  for (int r = 0; r < l.tp; ++r) {
    const Placement p = place(Role::kGroupHeads, l, r);
    const Range group = part_of(16, p.part, p.parts);
    const std::vector<int> ranks = dcp_group(l, r);
    const Placement first = place(Role::kHeads, l, ranks.front()), last = place(Role::kHeads, l, ranks.back());
    EXPECT_EQ(group.begin, part_of(16, first.part, first.parts).begin);
    EXPECT_EQ(group.end, part_of(16, last.part, last.parts).end);
  }
}

RC_GTEST_PROP(Layout, PartsCoverExactlyOnce, ()) {
  const int64_t n = *rc::gen::inRange(0, 1000);
  const int parts = *rc::gen::inRange(1, 17);
  int64_t next = 0;
  for (int i = 0; i < parts; ++i) {
    const Range r = part_of(n, i, parts);
    RC_ASSERT(r.begin == next);
    RC_ASSERT(r.size() == n / parts || r.size() == n / parts + 1);
    next = r.end;
  }
  RC_ASSERT(next == n);
}

}  // namespace
}  // namespace braid
