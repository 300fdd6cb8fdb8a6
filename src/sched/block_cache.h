// The rules that tie the block pool to the prefix index: what a prefix hit costs, how a sequence gets, grows and
// returns its block table, and when its blocks become findable. A block is shared only once it is full, computed and
// published. Tokens per block are those of one *virtual* block (block_size * dcp): ranks do not exist here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"
#include "sched/block_pool.h"
#include "sched/prefix_index.h"

namespace braid {

// How far a sequence's blocks have been published.
struct PublishedChain {
  PrefixIndex::Node node;  // the entry of block n - 1 (maybe another sequence's block of the same content)
  int64_t n = 0;
};

class BlockCache {
 public:
  struct Match {
    std::vector<BlockId> blocks;  // the prefix hit
    PrefixIndex::Node node;       // its last entry
  };

  BlockCache(int64_t n_blocks, int64_t block_tokens, bool prefix_caching, uint64_t seed);

  int64_t n_blocks() const { return pool_.n_blocks(); }
  int64_t n_free() const { return pool_.n_free(); }
  int64_t block_tokens() const { return block_tokens_; }
  int64_t blocks_for(int64_t n_tokens) const { return (n_tokens + block_tokens_ - 1) / block_tokens_; }

  // The longest reusable prefix of `tokens`. Their last block is never reused, or nothing would be left to compute.
  void match(std::span<const int32_t> tokens, Match& match) const;
  // Free blocks that a table for `n_tokens` takes: the fresh ones, and the hits that nobody holds at the moment.
  int64_t demand(const Match& match, int64_t n_tokens) const;
  // Claims the hits, then takes fresh blocks. Requires demand() <= n_free().
  void allocate(const Match& match, int64_t n_tokens, std::vector<BlockId>& table, PublishedChain& published);
  // Room for n_tokens in all; false, with the table unchanged, when the pool cannot give it.
  bool grow(int64_t n_tokens, std::vector<BlockId>& table);
  // Publishes the full blocks of `computed`, the tokens whose KV a finished forward has written.
  void publish(std::span<const int32_t> computed, const std::vector<BlockId>& table, PublishedChain& published);
  // Returns the table, last block first, so that a chain loses its tail before its head.
  void release(std::vector<BlockId>& table);
  // Makes the table's blocks unfindable: their contents are not to be trusted. Prefix hits included, for the fault may
  // have come with them.
  void retract(const std::vector<BlockId>& table);
  void clear();  // nothing is findable any more; tables stay as they are

  const BlockPool& pool() const { return pool_; }
  const PrefixIndex& index() const { return index_; }

 private:
  BlockId take();

  int64_t block_tokens_;
  bool prefix_caching_;
  BlockPool pool_;
  PrefixIndex index_;
};

}  // namespace braid
