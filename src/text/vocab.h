// A vocabulary: token strings in one arena, ids both ways. Built once, then only read.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

// Ids index arrays here and rows of the embedding later; a file that claims more is damaged.
inline constexpr int64_t kMaxTokenId = (1 << 22) - 1;

inline uint64_t hash_bytes(std::string_view s) {
  const auto mix = [](uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  uint64_t h = 0x9E3779B97F4A7C15ull ^ s.size();
  const char* p = s.data();
  size_t left = s.size();
  for (uint64_t word; left >= 8; p += 8, left -= 8) {
    std::memcpy(&word, p, 8);
    h = mix(h ^ word, 0xE7037ED1A0B428DBull);
  }
  uint64_t tail = 0;
  std::memcpy(&tail, p, left);
  return mix(h ^ tail, 0x8EBC6AF09C88C6E3ull);
}

class Vocab {
 public:
  void reserve(size_t n_tokens);
  void add(std::string_view token, int32_t id);  // a string that is there already gets the new id

  int32_t find(std::string_view token) const;  // -1 if absent
  // The token with this id, empty if there is none; has() tells the two apart.
  std::string_view token(int32_t id) const { return has(id) ? string_of(by_id_[id]) : std::string_view(); }
  bool has(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < by_id_.size() && by_id_[id] >= 0; }

  size_t count() const { return entries_.size(); }   // distinct strings
  size_t id_limit() const { return by_id_.size(); }  // largest id + 1
  size_t longest() const { return longest_; }        // bytes of the longest token

 private:
  struct Entry {
    uint64_t begin;
    uint32_t size;
    int32_t id;
  };
  std::string_view string_of(int32_t entry) const {
    return std::string_view(arena_).substr(entries_[entry].begin, entries_[entry].size);
  }
  size_t slot_of(std::string_view token) const;  // where it is or would go
  void grow(size_t n_slots);

  std::string arena_;
  std::vector<Entry> entries_;
  std::vector<int32_t> slots_;  // entry numbers, -1 for free; a power of two long
  std::vector<int32_t> by_id_;  // entry numbers
  size_t longest_ = 0;
};

}  // namespace braid
