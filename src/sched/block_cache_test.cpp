// Prefix index and block cache: the rules of reuse one by one, then random sequences of calls against a naive model
// that knows no hashing, also when every hash collides.
#include "sched/block_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <optional>

#include "sched/prefix_index.h"

namespace braid {
namespace {

constexpr int64_t kBlock = 4;

std::vector<int32_t> iota(int64_t n, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A sequence that holds blocks in a cache.
struct Holder {
  std::vector<int32_t> tokens;
  std::vector<BlockId> table = {};
  PublishedChain published = {};
  int64_t hit = 0;  // blocks

  void admit(BlockCache& cache) {
    BlockCache::Match match;
    cache.match(tokens, match);
    hit = static_cast<int64_t>(match.blocks.size());
    ASSERT_LE(cache.demand(match, static_cast<int64_t>(tokens.size())), cache.n_free());
    cache.allocate(match, static_cast<int64_t>(tokens.size()), table, published);
  }
  void publish(BlockCache& cache) { cache.publish(tokens, table, published); }
};

int64_t n_hits(const BlockCache& cache, const std::vector<int32_t>& tokens) {
  BlockCache::Match match;
  cache.match(tokens, match);
  return static_cast<int64_t>(match.blocks.size());
}

TEST(BlockCache, ReusesPublishedFullBlocksButNeverAPromptsLast) {
  BlockCache cache(16, kBlock, true, 7);
  Holder a{iota(10)};
  a.admit(cache);
  EXPECT_EQ(n_hits(cache, iota(10)), 0) << "not published yet";
  a.publish(cache);
  EXPECT_EQ(n_hits(cache, iota(10)), 2);
  EXPECT_EQ(n_hits(cache, iota(9)), 2);
  EXPECT_EQ(n_hits(cache, iota(8)), 1) << "the last block of an exactly aligned prompt is computed again";
  EXPECT_EQ(n_hits(cache, iota(4)), 0);
  EXPECT_EQ(n_hits(cache, iota(100)), 2) << "the third was not full";
  EXPECT_EQ(n_hits(cache, iota(10, 1)), 0);
}

TEST(BlockCache, NothingIsFoundWhenCachingIsOff) {
  BlockCache cache(16, kBlock, false, 7);
  Holder a{iota(10)};
  a.admit(cache);
  a.publish(cache);
  EXPECT_EQ(n_hits(cache, iota(10)), 0);
  cache.release(a.table);
  EXPECT_EQ(cache.pool().n_vacant(), 16);
}

TEST(BlockCache, DemandCountsHitsThatLieInTheFreePool) {
  BlockCache cache(4, kBlock, true, 7);
  Holder a{iota(12)};
  a.admit(cache);
  a.publish(cache);
  BlockCache::Match match;
  cache.match(iota(16), match);
  ASSERT_EQ(match.blocks.size(), 3u);
  EXPECT_EQ(cache.demand(match, 16), 1) << "three are held by a";
  cache.release(a.table);
  EXPECT_EQ(cache.demand(match, 16), 4) << "all four come out of the free pool";
  EXPECT_EQ(cache.demand(match, 20), 5);
  EXPECT_EQ(cache.n_free(), 4);
}

TEST(BlockCache, AClaimedBlockKeepsItsEntryForASecondClaimer) {
  BlockCache cache(8, kBlock, true, 7);
  Holder a{iota(9)};
  a.admit(cache);
  a.publish(cache);
  cache.release(a.table);
  Holder b{iota(9)}, c{iota(9)};
  b.admit(cache);
  c.admit(cache);
  EXPECT_EQ(b.hit, 2);
  EXPECT_EQ(c.hit, 2);
  EXPECT_EQ(b.table[1], c.table[1]);
  EXPECT_NE(b.table[2], c.table[2]);
  EXPECT_EQ(cache.pool().refs(b.table[0]), 2);
}

TEST(BlockCache, EvictsAtHandOutAndTheTailOfAChainFirst) {
  BlockCache cache(4, kBlock, true, 7);
  Holder a{iota(16)};
  a.admit(cache);
  a.publish(cache);
  cache.release(a.table);
  EXPECT_EQ(cache.n_free(), 4);
  EXPECT_EQ(n_hits(cache, iota(20)), 4) << "free blocks are still found";
  Holder b{iota(8, 100)};
  b.admit(cache);
  EXPECT_EQ(n_hits(cache, iota(20)), 2) << "the last two were taken";
  EXPECT_EQ(cache.index().size(), 2);
}

TEST(BlockCache, GrowsAllOrNothing) {
  BlockCache cache(3, kBlock, true, 7);
  std::vector<BlockId> table;
  EXPECT_TRUE(cache.grow(5, table));
  EXPECT_EQ(table.size(), 2u);
  EXPECT_TRUE(cache.grow(8, table));
  EXPECT_EQ(table.size(), 2u);
  EXPECT_FALSE(cache.grow(13, table));
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(cache.n_free(), 1);
}

TEST(BlockCache, EqualContentIsEnteredOnceAndAgainWhenTheFirstIsGone) {
  BlockCache cache(6, kBlock, true, 7);
  Holder a{iota(8)}, b{iota(8)};
  a.admit(cache);
  b.admit(cache);
  a.publish(cache);
  b.publish(cache);  // its chain hangs on a's blocks
  EXPECT_EQ(cache.index().size(), 2);
  cache.release(a.table);
  Holder other{iota(16, 100)};  // two vacant blocks and both of a's
  other.admit(cache);
  EXPECT_EQ(cache.index().size(), 0);
  EXPECT_EQ(n_hits(cache, iota(20)), 0);
  cache.release(other.table);
  b.tokens = iota(12);
  ASSERT_TRUE(cache.grow(12, b.table));
  b.publish(cache);
  EXPECT_EQ(n_hits(cache, iota(20)), 3) << "b's own blocks from the first on";
}

TEST(BlockCache, RetractedBlocksAreNotFoundAndNotKept) {
  BlockCache cache(4, kBlock, true, 7);
  Holder a{iota(12)};
  a.admit(cache);
  a.publish(cache);
  cache.retract(a.table);
  EXPECT_EQ(n_hits(cache, iota(12)), 0);
  cache.release(a.table);
  EXPECT_EQ(cache.pool().n_vacant(), 4);
}

TEST(BlockCache, ClearForgetsButLeavesTablesAlone) {
  BlockCache cache(8, kBlock, true, 7);
  Holder a{iota(8)}, b{iota(8, 50)};
  a.admit(cache);
  a.publish(cache);
  b.admit(cache);
  b.publish(cache);
  cache.release(b.table);
  cache.clear();
  EXPECT_EQ(n_hits(cache, iota(9)) + n_hits(cache, iota(9, 50)), 0);
  EXPECT_EQ(cache.pool().n_vacant(), 6);
  cache.release(a.table);
  EXPECT_EQ(cache.pool().n_vacant(), 8);
}

TEST(PrefixIndex, TheSeedChangesTheKeysOnly) {
  PrefixIndex one(4, kBlock, 1), two(4, kBlock, 2);
  PrefixIndex::Node a, b;
  one.publish(a, iota(4), BlockId(0));
  two.publish(b, iota(4), BlockId(0));
  EXPECT_NE(a.key, b.key);
  std::vector<BlockId> hits;
  EXPECT_TRUE(two.find(iota(4), 1, hits).serial != 0);
}

// With a hash of no bits at all every entry collides with every other; only the comparison is left.
TEST(PrefixIndex, ACollisionNeverServesOtherTokensOrAnotherHistory) {
  PrefixIndex index(8, kBlock, 1, 0);
  PrefixIndex::Node x, y;
  EXPECT_TRUE(index.publish(x, iota(4, 0), BlockId(0)));
  EXPECT_TRUE(index.publish(y, iota(4, 10), BlockId(1)));
  EXPECT_TRUE(index.publish(x, iota(4, 20), BlockId(2)));  // [0..3][20..23]
  EXPECT_TRUE(index.publish(y, iota(4, 20), BlockId(3)));  // [10..13][20..23]
  auto prompt = iota(4, 10);
  const auto tail = iota(4, 20);
  prompt.insert(prompt.end(), tail.begin(), tail.end());
  std::vector<BlockId> hits;
  index.find(prompt, 2, hits);
  EXPECT_EQ(hits, (std::vector<BlockId>{BlockId(1), BlockId(3)}));
  hits.clear();
  index.find(tail, 1, hits);
  EXPECT_TRUE(hits.empty()) << "those tokens do not begin any prompt";
  index.remove(BlockId(1));
  index.find(prompt, 2, hits);
  EXPECT_TRUE(hits.empty());
  EXPECT_EQ(index.size(), 3);
}

// Entries as a plain list; identity of the parent entry instead of any hash.
struct NaiveIndex {
  struct Entry {
    int64_t block, serial, parent;
    std::vector<int32_t> tokens;
  };
  std::vector<Entry> entries;
  int64_t serials = 0;

  const Entry* child(int64_t parent, const std::vector<int32_t>& tokens) const {
    for (const Entry& e : entries) {
      if (e.parent == parent && e.tokens == tokens) return &e;
    }
    return nullptr;
  }
  std::vector<BlockId> find(const std::vector<int32_t>& tokens) const {
    std::vector<BlockId> hits;
    int64_t parent = 0;
    for (size_t i = 0; (i + 1) * kBlock <= tokens.size(); ++i) {
      const Entry* e = child(parent, {tokens.begin() + i * kBlock, tokens.begin() + (i + 1) * kBlock});
      if (e == nullptr) break;
      hits.push_back(BlockId(e->block));
      parent = e->serial;
    }
    return hits;
  }
  void remove(int64_t block) {
    std::erase_if(entries, [block](const Entry& e) { return e.block == block; });
  }
};

RC_GTEST_PROP(PrefixIndex, BehavesAsTheNaiveModelForAnyHashWidth, ()) {
  constexpr int64_t kBlocks = 10;
  const auto key_mask = *rc::gen::element<uint64_t>(0, 1, 7, ~uint64_t{0});
  // (operation, block, depth, branch): publish the block below the hit for a prompt of that depth; remove; look up.
  const auto ops = *rc::gen::container<std::vector<std::tuple<int, int64_t, int, uint32_t>>>(
      rc::gen::tuple(rc::gen::inRange(0, 4), rc::gen::inRange<int64_t>(0, kBlocks), rc::gen::inRange(1, 6),
                     rc::gen::arbitrary<uint32_t>()));
  PrefixIndex index(kBlocks, kBlock, 99, key_mask);
  NaiveIndex model;
  for (const auto& [op, block, depth, branch] : ops) {
    std::vector<int32_t> prompt;  // few distinct blocks, so that prompts share prefixes
    for (int i = 0; i < depth; ++i) {
      const auto more = iota(kBlock, static_cast<int32_t>(branch >> i & 1));
      prompt.insert(prompt.end(), more.begin(), more.end());
    }
    std::vector<BlockId> hits;
    PrefixIndex::Node node = index.find(prompt, depth, hits);
    const auto expected = model.find(prompt);
    RC_ASSERT(hits == expected);
    if (op == 0) {
      index.remove(BlockId(block));
      model.remove(block);
    } else if (op < 3 && hits.size() < static_cast<size_t>(depth) &&
               std::find(hits.begin(), hits.end(), BlockId(block)) == hits.end()) {
      const size_t at = hits.size() * kBlock;
      int64_t parent = 0;
      for (const auto& e : model.entries) {
        if (!hits.empty() && BlockId(e.block) == hits.back()) parent = e.serial;
      }
      const std::vector<int32_t> tokens(prompt.begin() + at, prompt.begin() + at + kBlock);
      RC_ASSERT(index.publish(node, tokens, BlockId(block)));
      model.remove(block);
      model.entries.push_back({block, ++model.serials, parent, tokens});
      RC_ASSERT(index.alive(node));
    }
    RC_ASSERT(index.size() == static_cast<int64_t>(model.entries.size()));
  }
}

// Sequences come, publish, grow and go; blocks carry the content that a forward would have written.
RC_GTEST_PROP(BlockCache, NoBlockIsLostSharedWronglyOrFoundWithOtherContent, ()) {
  constexpr int64_t kBlocks = 12;
  const auto ops = *rc::gen::container<std::vector<std::tuple<int, uint32_t, int64_t>>>(
      rc::gen::tuple(rc::gen::inRange(0, 5), rc::gen::arbitrary<uint32_t>(), rc::gen::inRange<int64_t>(1, 6 * kBlock)));
  BlockCache cache(kBlocks, kBlock, true, 5);
  std::vector<std::optional<std::vector<int32_t>>> content(kBlocks);  // everything up to the block's end
  std::vector<Holder> holders;
  for (const auto& [op, branch, n] : ops) {
    if (op <= 1) {
      Holder h;
      for (int64_t i = 0; i < n; ++i) h.tokens.push_back(static_cast<int32_t>(branch >> (i / kBlock) & 1));
      BlockCache::Match match;
      cache.match(h.tokens, match);
      for (size_t i = 0; i < match.blocks.size(); ++i) {
        const auto& found = content[static_cast<size_t>(match.blocks[i].value)];
        RC_ASSERT(found.has_value());
        RC_ASSERT(*found == std::vector<int32_t>(h.tokens.begin(), h.tokens.begin() + (i + 1) * kBlock));
      }
      RC_ASSERT(static_cast<int64_t>(match.blocks.size()) < cache.blocks_for(n));
      const int64_t demand = cache.demand(match, n), before = cache.n_free();
      if (demand > before) continue;
      cache.allocate(match, n, h.table, h.published);
      RC_ASSERT(cache.n_free() == before - demand);
      h.hit = static_cast<int64_t>(match.blocks.size());
      for (size_t i = match.blocks.size(); i < h.table.size(); ++i) {
        content[static_cast<size_t>(h.table[i].value)].reset();
      }
      holders.push_back(std::move(h));
    } else if (!holders.empty()) {
      Holder& h = holders[branch % holders.size()];
      if (op == 2) {  // a forward wrote everything
        for (size_t i = 0; i < h.tokens.size() / kBlock; ++i) {
          content[static_cast<size_t>(h.table[i].value)].emplace(h.tokens.begin(), h.tokens.begin() + (i + 1) * kBlock);
        }
        const bool news = h.published.n < static_cast<int64_t>(h.tokens.size()) / kBlock;
        h.publish(cache);
        if (!news) continue;
        RC_ASSERT(n_hits(cache, h.tokens) >= cache.blocks_for(static_cast<int64_t>(h.tokens.size())) - 1);
      } else if (op == 3) {
        std::vector<int32_t> longer = h.tokens;
        longer.resize(longer.size() + static_cast<size_t>(n % kBlock) + 1, 1);
        const size_t had = h.table.size();
        if (!cache.grow(static_cast<int64_t>(longer.size()), h.table)) continue;
        for (size_t i = had; i < h.table.size(); ++i) content[static_cast<size_t>(h.table[i].value)].reset();
        h.tokens = longer;
      } else {
        cache.release(h.table);
        holders.erase(holders.begin() + (branch % holders.size()));
      }
    }
    std::vector<int> held(kBlocks, 0);
    for (const Holder& h : holders) {
      for (const BlockId b : h.table) ++held[static_cast<size_t>(b.value)];
    }
    int64_t n_used = 0;
    for (int64_t b = 0; b < kBlocks; ++b) {
      RC_ASSERT(cache.pool().refs(BlockId(b)) == held[static_cast<size_t>(b)]);
      n_used += held[static_cast<size_t>(b)] > 0;
    }
    RC_ASSERT(cache.n_free() == kBlocks - n_used);
  }
}

}  // namespace
}  // namespace braid
