// UTF-8 in and out, one character at a time. Everything past `to_valid_utf8` may assume valid UTF-8.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace braid {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

bool is_valid_utf8(std::string_view text);

// Each maximal ill-formed subsequence becomes one U+FFFD, as Python's bytes.decode(errors="replace") has it.
std::string to_valid_utf8(std::string_view text);

// How many bytes at the end of `text` may yet become a character when more bytes follow (0 to 3).
size_t incomplete_utf8_tail(std::string_view text);

void append_utf8(std::string& out, char32_t c);

// Bytes of the character that starts with this byte of valid UTF-8.
inline size_t utf8_length(char first) {
  const auto b = static_cast<unsigned char>(first);
  return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

// The character at `pos` of valid UTF-8; moves `pos` behind it.
inline char32_t next_utf8(std::string_view text, size_t& pos) {
  const auto at = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[pos + i])); };
  const size_t length = utf8_length(text[pos]);
  char32_t c = at(0);
  if (length == 2) c = (c & 0x1F) << 6 | (at(1) & 0x3F);
  if (length == 3) c = (c & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F);
  if (length == 4) c = (c & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 | (at(3) & 0x3F);
  pos += length;
  return c;
}

// Where the character that ends before `pos` of valid UTF-8 starts; `pos` must not be 0.
inline size_t previous_utf8(std::string_view text, size_t pos) {
  do --pos;
  while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80);
  return pos;
}

}  // namespace braid
