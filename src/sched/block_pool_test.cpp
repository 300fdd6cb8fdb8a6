// BlockPool against a naive model: sets and a list.
#include "sched/block_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <deque>
#include <map>
#include <set>

namespace braid {
namespace {

TEST(BlockPool, HandsOutVacantLowestFirstThenCachedInReleaseOrder) {
  BlockPool pool(5);
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(pool.take(), BlockId(i));
  pool.release(BlockId(3), true);
  pool.release(BlockId(0), true);
  pool.release(BlockId(4), false);
  pool.release(BlockId(1), false);
  EXPECT_EQ(pool.n_vacant(), 2);
  EXPECT_EQ(pool.n_cached(), 2);
  for (const int64_t expected : {1, 4, 3, 0}) EXPECT_EQ(pool.take(), BlockId(expected));
  EXPECT_EQ(pool.n_free(), 0);
}

TEST(BlockPool, AClaimedBlockLeavesTheFreePoolAndIsHeldByEachClaimer) {
  BlockPool pool(2);
  const BlockId block = pool.take();
  pool.release(block, true);
  pool.claim(block);
  pool.claim(block);
  EXPECT_EQ(pool.n_free(), 1);
  EXPECT_EQ(pool.refs(block), 2);
  pool.release(block, true);
  EXPECT_EQ(pool.n_free(), 1);
  pool.release(block, true);
  EXPECT_EQ(pool.n_free(), 2);
}

TEST(BlockPoolDeathTest, MisuseIsCaught) {
  BlockPool pool(1);
  EXPECT_DEATH(pool.release(BlockId(0), false), "free already");
  EXPECT_DEATH(pool.claim(BlockId(0)), "vacant");
  EXPECT_DEATH(pool.claim(BlockId(1)), "block 1 of 1");
  pool.take();
  EXPECT_DEATH(pool.take(), "no free block");
}

struct NaivePool {
  std::set<int64_t> vacant;
  std::deque<int64_t> cached;
  std::map<int64_t, int> held;

  int64_t take() {
    int64_t block = 0;
    if (!vacant.empty()) {
      block = *vacant.begin();
      vacant.erase(vacant.begin());
    } else {
      block = cached.front();
      cached.pop_front();
    }
    held[block] = 1;
    return block;
  }
  void release(int64_t block, bool keep) {
    if (--held[block] > 0) return;
    held.erase(block);
    if (keep) {
      cached.push_back(block);
    } else {
      vacant.insert(block);
    }
  }
};

RC_GTEST_PROP(BlockPool, BehavesAsTheNaiveModel, ()) {
  const auto n = *rc::gen::inRange<int64_t>(1, 12);
  const auto ops = *rc::gen::container<std::vector<std::pair<int, int64_t>>>(
      rc::gen::pair(rc::gen::inRange(0, 9), rc::gen::inRange<int64_t>(0, 12)));
  BlockPool pool(n);
  NaivePool model;
  for (int64_t i = 0; i < n; ++i) model.vacant.insert(i);
  for (const auto& [op, pick] : ops) {
    const int64_t block = pick % n;
    if (op < 4) {
      if (pool.n_free() > 0) RC_ASSERT(pool.take() == BlockId(model.take()));
    } else if (op < 7) {
      if (!model.held.contains(block)) continue;
      pool.release(BlockId(block), op % 2 == 0);
      model.release(block, op % 2 == 0);
    } else if (op == 7) {
      if (model.vacant.contains(block)) continue;
      pool.claim(BlockId(block));
      std::erase(model.cached, block);
      ++model.held[block];
    } else if (pick == 0) {
      pool.vacate_cached();
      model.vacant.insert(model.cached.begin(), model.cached.end());
      model.cached.clear();
    }
    RC_ASSERT(pool.n_vacant() == static_cast<int64_t>(model.vacant.size()));
    RC_ASSERT(pool.n_cached() == static_cast<int64_t>(model.cached.size()));
    for (int64_t b = 0; b < n; ++b) RC_ASSERT(pool.refs(BlockId(b)) == (model.held.contains(b) ? model.held[b] : 0));
  }
}

}  // namespace
}  // namespace braid
