// Byte-pair encoding: the characters of a word (or its bytes) are merged pair by pair, the earliest learned pair first.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/token_model.h"

namespace braid {

using Merges = std::vector<std::pair<std::string_view, std::string_view>>;

class Bpe final : public TokenModel {
 public:
  // With `raw_bytes` words come as bytes and not in the byte alphabet. Throws Error.
  Bpe(const Json& config, const Vocab& vocab, const Merges& merges, bool raw_bytes);

  // Whether raw_bytes may be asked for: not with affixes, which are put to characters of the alphabet.
  static bool takes_raw_bytes(const Json& config);

  void encode(std::string_view word, std::vector<int32_t>& ids) const override;
  size_t part_end(std::string_view word, size_t from) const override;

 private:
  struct Merge {
    uint64_t pair = kNoPair;
    uint32_t rank = kNoRank;
    int32_t id = -1;
  };
  static constexpr uint64_t kNoPair = ~0ull;
  static constexpr uint32_t kNoRank = ~0u;
  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  static uint64_t slot_hash(uint64_t pair) { return (pair ^ pair >> 29) * 0x9E3779B97F4A7C15ull >> 20; }

  void add_merges(const Merges& merges);
  const Merge& find_merge(int32_t left, int32_t right) const;
  std::vector<int32_t> symbols_of(std::string_view word) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  const Vocab& vocab_;
  Vocab raw_vocab_;  // tokens as bytes; only for ignore_merges on raw bytes
  std::vector<Merge> table_;
  std::array<int32_t, 256> first_ids_{};  // raw: of each byte; else of the ASCII characters
  std::vector<int32_t> byte_ids_;         // empty without byte_fallback
  int32_t unknown_ = -1;
  std::string prefix_, suffix_;
  bool fuse_unknown_ = false, ignore_merges_ = false, raw_bytes_ = false, parts_at_space_ = false;
};

}  // namespace braid
