// SentencePiece's compiled character map (the normalizer "Precompiled"): a double-array trie from character sequences
// to offsets into a blob of zero-terminated replacements.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

class CharsMap {
 public:
  explicit CharsMap(const std::string& base64);  // throws Error
  std::string apply(std::string_view text) const;

 private:
  // What stands for `chunk`: the replacement of its shortest prefix in the trie (so do the Rust and the C++ original
  // when they ask for a whole grapheme).
  std::optional<std::string_view> replacement(std::string_view chunk) const;

  std::vector<uint32_t> trie_;
  std::string replacements_;
  std::array<bool, 128> kept_{};  // ASCII characters that stand for themselves
};

}  // namespace braid
