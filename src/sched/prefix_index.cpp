// The prefix index's hash, table and chain walk; see the header.
#include "sched/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace braid {

PrefixIndex::PrefixIndex(int64_t n_blocks, int64_t block_tokens, uint64_t seed, uint64_t key_mask)
    : seed_(seed), key_mask_(key_mask), block_tokens_(static_cast<size_t>(block_tokens)) {
  static_assert(kSecretBytes == XXH_SECRET_DEFAULT_SIZE);
  BRAID_CHECK(n_blocks > 0 && block_tokens > 0, "{} blocks of {} tokens", n_blocks, block_tokens);
  XXH3_generateSecret_fromSeed(secret_.data(), seed);
  slots_.resize(std::bit_ceil(static_cast<size_t>(n_blocks) * 2));
  slot_mask_ = slots_.size() - 1;
  entries_.resize(static_cast<size_t>(n_blocks));
  // Not zeroed: pages that no published block touches stay unmapped.
  tokens_ = std::make_unique_for_overwrite<int32_t[]>(static_cast<size_t>(n_blocks) * block_tokens_);
}

// The tokens' hash does not wait for the parent's, so that the processor works on several blocks at once.
uint64_t PrefixIndex::next_key(uint64_t key, std::span<const int32_t> tokens) const {
  const uint64_t own = XXH3_64bits_withSecret(tokens.data(), tokens.size_bytes(), secret_.data(), secret_.size());
  const uint64_t pair[2] = {key, own};
  return XXH3_64bits_withSeed(pair, sizeof pair, seed_) & key_mask_;
}

int32_t PrefixIndex::lookup(uint64_t key, uint64_t parent, std::span<const int32_t> tokens) const {
  for (size_t i = key & slot_mask_;; i = (i + 1) & slot_mask_) {
    const Slot& slot = slots_[i];
    if (slot.block < 0) return -1;
    if (slot.key != key || entries_[slot.block].parent != parent) continue;
    const int32_t* stored = tokens_.get() + static_cast<size_t>(slot.block) * block_tokens_;
    if (std::memcmp(stored, tokens.data(), tokens.size_bytes()) == 0) return slot.block;
  }
}

PrefixIndex::Node PrefixIndex::find(std::span<const int32_t> tokens, int64_t max_blocks,
                                    std::vector<BlockId>& hits) const {
  constexpr size_t kBatch = 16;  // keys computed ahead of the walk, while their slots are fetched
  const size_t n = std::min(static_cast<size_t>(max_blocks), tokens.size() / block_tokens_);
  const auto block_at = [&](size_t i) { return tokens.subspan(i * block_tokens_, block_tokens_); };
  Node node;
  uint64_t keys[kBatch];
  for (size_t first = 0; first < n; first += kBatch) {
    const size_t batch = std::min(kBatch, n - first);
    uint64_t key = node.key;
    for (size_t i = 0; i < batch; ++i) {
      keys[i] = key = next_key(key, block_at(first + i));
      __builtin_prefetch(&slots_[key & slot_mask_]);
    }
    for (size_t i = 0; i < batch; ++i) {
      const int32_t block = lookup(keys[i], node.serial, block_at(first + i));
      if (block < 0) return node;
      node = {keys[i], entries_[block].serial, BlockId(block)};
      hits.push_back(node.block);
    }
  }
  return node;
}

bool PrefixIndex::publish(Node& chain, std::span<const int32_t> tokens, BlockId block) {
  BRAID_CHECK(tokens.size() == block_tokens_ && alive(chain), "{} tokens", tokens.size());
  const uint64_t key = next_key(chain.key, tokens);
  if (const int32_t there = lookup(key, chain.serial, tokens); there >= 0) {
    chain = {key, entries_[there].serial, BlockId(there)};
    return false;
  }
  remove(block);  // an entry whose parent is gone
  size_t i = key & slot_mask_;
  while (slots_[i].block >= 0) i = (i + 1) & slot_mask_;
  const auto b = static_cast<int32_t>(block.value);
  slots_[i] = {key, b};
  entries_[b] = {key, ++last_serial_, chain.serial, static_cast<int32_t>(chain.block.value)};
  std::copy(tokens.begin(), tokens.end(), tokens_.get() + static_cast<size_t>(b) * block_tokens_);
  chain = {key, last_serial_, block};
  ++size_;
  return true;
}

bool PrefixIndex::reachable(const Node& node) const {
  uint64_t serial = node.serial;
  for (auto block = static_cast<size_t>(node.block.value); serial != 0;) {
    const Entry& e = entries_[block];
    if (e.serial != serial) return false;
    serial = e.parent;
    block = static_cast<size_t>(e.parent_block);
  }
  return true;
}

void PrefixIndex::remove(BlockId block) {
  Entry& gone = entries_[static_cast<size_t>(block.value)];
  if (gone.serial == 0) return;
  size_t hole = gone.key & slot_mask_;
  while (slots_[hole].block != block.value) hole = (hole + 1) & slot_mask_;
  // Close the hole: a later entry of the same run moves back unless that would put it before its home slot.
  for (size_t i = (hole + 1) & slot_mask_; slots_[i].block >= 0; i = (i + 1) & slot_mask_) {
    const size_t home = slots_[i].key & slot_mask_;
    if (((i - home) & slot_mask_) < ((i - hole) & slot_mask_)) continue;
    slots_[hole] = slots_[i];
    hole = i;
  }
  slots_[hole] = {};
  gone = {};
  --size_;
}

void PrefixIndex::clear() {
  std::fill(slots_.begin(), slots_.end(), Slot{});
  std::fill(entries_.begin(), entries_.end(), Entry{});
  size_ = 0;
}

}  // namespace braid
