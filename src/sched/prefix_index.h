// Which block holds the KV of a given prefix. Entries form chains: one entry per full block, named by its parent entry
// and its own tokens, found by a hash of everything up to its end. The hash (XXH3, seeded per process) only proposes:
// a hit is one whose parent is the very entry hit before and whose stored tokens are equal, so that no collision, by
// accident or on purpose, can serve another prompt's KV. At most one entry per block, so the table is bounded by the
// pool.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/types.h"

namespace braid {

class PrefixIndex {
 public:
  // A place in a chain. Serials are never used twice; 0 is the root, before the first block.
  struct Node {
    uint64_t key = 0;
    uint64_t serial = 0;
    BlockId block{-1};
  };

  // `key_mask` narrows the hash; tests use it to force collisions.
  PrefixIndex(int64_t n_blocks, int64_t block_tokens, uint64_t seed, uint64_t key_mask = ~uint64_t{0});

  // The longest chain from the root that `tokens` starts with, at most `max_blocks` long: its blocks are appended to
  // `hits`, its end is returned.
  Node find(std::span<const int32_t> tokens, int64_t max_blocks, std::vector<BlockId>& hits) const;

  // Enters `block`, which holds `tokens` (block_tokens of them), below `chain`, and moves `chain` on to it. When the
  // same content is there already, under another block, that one stays and `chain` moves on to it; returns whether
  // `block` was entered. Requires alive(chain).
  bool publish(Node& chain, std::span<const int32_t> tokens, BlockId block);

  bool alive(const Node& node) const { return node.serial == 0 || entry(node.block).serial == node.serial; }
  // Whether the chain up to `node` can still be found: an entry far above it may have gone with its block.
  bool reachable(const Node& node) const;
  bool contains(BlockId block) const { return entry(block).serial != 0; }
  void remove(BlockId block);  // no-op when it has no entry; entries below it can not be found any more
  void clear();
  int64_t size() const { return size_; }

 private:
  struct Entry {
    uint64_t key = 0;
    uint64_t serial = 0;  // 0: the block has no entry
    uint64_t parent = 0;  // serial of the entry before it
    int32_t parent_block = -1;
  };
  struct Slot {
    uint64_t key = 0;
    int32_t block = -1;  // -1: empty
  };

  const Entry& entry(BlockId block) const { return entries_[static_cast<size_t>(block.value)]; }
  uint64_t next_key(uint64_t key, std::span<const int32_t> tokens) const;
  int32_t lookup(uint64_t key, uint64_t parent, std::span<const int32_t> tokens) const;  // -1: none

  static constexpr size_t kSecretBytes = 192;
  std::array<std::byte, kSecretBytes> secret_;
  uint64_t seed_, key_mask_;
  size_t block_tokens_;
  size_t slot_mask_ = 0;
  std::vector<Slot> slots_;  // open addressing, linear probing; equal keys may stand beside each other
  std::vector<Entry> entries_;
  std::unique_ptr<int32_t[]> tokens_;  // [block][block_tokens], written when published
  uint64_t last_serial_ = 0;
  int64_t size_ = 0;
};

}  // namespace braid
