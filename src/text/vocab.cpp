#include "text/vocab.h"

#include <bit>

#include "base/error.h"

namespace braid {

void Vocab::reserve(size_t n_tokens) {
  entries_.reserve(n_tokens);
  arena_.reserve(n_tokens * 8);
  if (n_tokens * 2 > slots_.size()) grow(std::bit_ceil(n_tokens * 2));
}

size_t Vocab::slot_of(std::string_view token) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_bytes(token) & mask;
  while (slots_[slot] >= 0 && string_of(slots_[slot]) != token) slot = (slot + 1) & mask;
  return slot;
}

void Vocab::grow(size_t n_slots) {
  slots_.assign(std::max<size_t>(n_slots, 16), -1);
  for (size_t i = 0; i < entries_.size(); ++i)
    slots_[slot_of(string_of(static_cast<int32_t>(i)))] = static_cast<int32_t>(i);
}

void Vocab::add(std::string_view token, int32_t id) {
  BRAID_CHECK(id >= 0 && id <= kMaxTokenId, "token id {}", id);
  if ((entries_.size() + 1) * 2 > slots_.size()) grow(slots_.size() * 2);
  int32_t& entry = slots_[slot_of(token)];
  if (entry < 0) {
    entry = static_cast<int32_t>(entries_.size());
    entries_.push_back({arena_.size(), static_cast<uint32_t>(token.size()), id});
    arena_ += token;
    longest_ = std::max(longest_, token.size());
  }
  entries_[entry].id = id;
  if (static_cast<size_t>(id) >= by_id_.size()) by_id_.resize(static_cast<size_t>(id) + 1, -1);
  by_id_[id] = entry;
}

int32_t Vocab::find(std::string_view token) const {
  if (slots_.empty()) return -1;
  const int32_t entry = slots_[slot_of(token)];
  return entry < 0 ? -1 : entries_[entry].id;
}

}  // namespace braid
