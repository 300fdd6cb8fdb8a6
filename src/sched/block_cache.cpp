// Block tables over the pool and the prefix index; see the header.
#include "sched/block_cache.h"

#include "base/error.h"

namespace braid {

BlockCache::BlockCache(int64_t n_blocks, int64_t block_tokens, bool prefix_caching, uint64_t seed)
    : block_tokens_(block_tokens),
      prefix_caching_(prefix_caching),
      pool_(n_blocks),
      index_(n_blocks, block_tokens, seed) {}

BlockId BlockCache::take() {
  const BlockId block = pool_.take();
  index_.remove(block);
  return block;
}

void BlockCache::match(std::span<const int32_t> tokens, Match& match) const {
  match.blocks.clear();
  match.node = {};
  if (!prefix_caching_) return;
  match.node = index_.find(tokens, blocks_for(static_cast<int64_t>(tokens.size())) - 1, match.blocks);
}

int64_t BlockCache::demand(const Match& match, int64_t n_tokens) const {
  int64_t n = blocks_for(n_tokens);
  for (const BlockId block : match.blocks) n -= pool_.refs(block) > 0;
  return n;
}

void BlockCache::allocate(const Match& match, int64_t n_tokens, std::vector<BlockId>& table,
                          PublishedChain& published) {
  BRAID_CHECK(table.empty(), "the sequence holds {} blocks already", table.size());
  for (const BlockId block : match.blocks) pool_.claim(block);
  table = match.blocks;
  published = {match.node, static_cast<int64_t>(match.blocks.size())};
  const bool enough = grow(n_tokens, table);
  BRAID_CHECK(enough, "admitted without enough blocks");
}

bool BlockCache::grow(int64_t n_tokens, std::vector<BlockId>& table) {
  int64_t missing = blocks_for(n_tokens) - static_cast<int64_t>(table.size());
  if (missing > pool_.n_free()) return false;
  for (; missing > 0; --missing) table.push_back(take());
  return true;
}

void BlockCache::publish(std::span<const int32_t> computed, const std::vector<BlockId>& table,
                         PublishedChain& published) {
  const int64_t full = static_cast<int64_t>(computed.size()) / block_tokens_;
  if (!prefix_caching_ || published.n >= full) return;
  // The chain may hang on another sequence's blocks of the same content, evicted since: enter our own from the start.
  if (!index_.reachable(published.node)) published = {};
  const auto n = static_cast<size_t>(block_tokens_);
  for (; published.n < full; ++published.n) {
    const auto i = static_cast<size_t>(published.n);
    index_.publish(published.node, computed.subspan(i * n, n), table[i]);
  }
}

void BlockCache::release(std::vector<BlockId>& table) {
  for (auto block = table.rbegin(); block != table.rend(); ++block) pool_.release(*block, index_.contains(*block));
  table.clear();
}

void BlockCache::retract(const std::vector<BlockId>& table) {
  for (const BlockId block : table) index_.remove(block);
}

void BlockCache::clear() {
  index_.clear();
  pool_.vacate_cached();
}

}  // namespace braid
