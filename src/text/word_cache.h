// What words were encoded to, per thread: a fixed table in which a new word takes the place of an old one. Text repeats
// its words, and a hit costs one cache line where encoding a word costs dozens.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "text/vocab.h"

namespace braid {

class WordCache {
 public:
  static WordCache& of_this_thread() {
    thread_local WordCache cache;
    return cache;
  }
  static uint32_t new_owner() {  // a number that no tokenizer had before, for its entries
    static std::atomic<uint32_t> last{0};
    return ++last;
  }

  static bool takes(std::string_view word) { return word.size() <= kMaxBytes; }

  // Appends the ids of a word that is in the cache.
  bool find(uint32_t owner, std::string_view word, std::vector<int32_t>& ids) const {
    const Slot& slot = slot_of(owner, word);
    if (slot.owner != owner || slot.n_bytes != word.size() || std::memcmp(slot.word, word.data(), word.size()) != 0)
      return false;
    ids.insert(ids.end(), slot.ids, slot.ids + slot.n_ids);
    return true;
  }

  void put(uint32_t owner, std::string_view word, std::span<const int32_t> ids) {
    if (ids.size() > kMaxIds) return;
    Slot& slot = slot_of(owner, word);
    slot.owner = owner;
    slot.n_bytes = static_cast<uint8_t>(word.size());
    slot.n_ids = static_cast<uint8_t>(ids.size());
    std::copy(word.begin(), word.end(), slot.word);
    std::copy(ids.begin(), ids.end(), slot.ids);
  }

 private:
  static constexpr size_t kMaxBytes = 30, kMaxIds = 7, kSlots = 1 << 15;
  struct alignas(64) Slot {
    uint32_t owner = 0;  // 0: free
    uint8_t n_bytes = 0, n_ids = 0;
    char word[kMaxBytes] = {};
    int32_t ids[kMaxIds] = {};
  };
  static_assert(sizeof(Slot) == 64);

  Slot& slot_of(uint32_t owner, std::string_view word) { return (*slots_)[(hash_bytes(word) ^ owner) % kSlots]; }
  const Slot& slot_of(uint32_t owner, std::string_view word) const {
    return (*slots_)[(hash_bytes(word) ^ owner) % kSlots];
  }

  std::unique_ptr<std::array<Slot, kSlots>> slots_ = std::make_unique<std::array<Slot, kSlots>>();
};

}  // namespace braid
