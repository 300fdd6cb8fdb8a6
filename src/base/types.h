// Strong integer types, so that a global position can not be used where a rank-local one is meant. Only
// base/sequence_shard.h turns one into the other. No implicit conversions; `.value` is the way out.
#pragma once
#include <compare>
#include <cstdint>

namespace braid {

template <typename Tag>
struct Strong {
  int64_t value = 0;
  constexpr Strong() = default;
  explicit constexpr Strong(int64_t v) : value(v) {}
  constexpr auto operator<=>(const Strong&) const = default;
  constexpr Strong operator+(int64_t n) const { return Strong(value + n); }
  constexpr Strong operator-(int64_t n) const { return Strong(value - n); }
  constexpr int64_t operator-(Strong other) const { return value - other.value; }
};

using TokenPos = Strong<struct TokenPosTag>;  // position of a token in its sequence, the same number on every rank
using LocalPos = Strong<struct LocalPosTag>;  // index of a KV row among those that one rank holds of a sequence
using SlotId = Strong<struct SlotIdTag>;      // KV row in a rank's pool: block * block_size + offset; -1: not held here
using BlockId = Strong<struct BlockIdTag>;    // entry of a block table; the same id names one block on every rank
using RequestId = Strong<struct RequestIdTag>;

inline constexpr SlotId kNoSlot{-1};

}  // namespace braid
