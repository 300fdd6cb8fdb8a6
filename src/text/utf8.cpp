#include "text/utf8.h"

#include <cstring>

namespace braid {

namespace {

// Length of the well-formed character at `pos`, or 0 with `bad` set to the length of the ill-formed start there.
// `open` tells that the text ended inside a character that was well-formed so far.
struct Scan {
  size_t good = 0, bad = 0;
  bool open = false;
};

Scan scan_character(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[pos + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {.good = 1};
  if (first < 0xC2 || first > 0xF4) return {.bad = 1};
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // Overlong forms, surrogates and code points past U+10FFFF show in the second byte.
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (pos + i >= text.size()) return {.bad = i, .open = true};
    const bool fits = i == 1 ? byte(1) >= low && byte(1) <= high : (byte(i) & 0xC0) == 0x80;
    if (!fits) return {.bad = i};
  }
  return {.good = length};
}

size_t skip_ascii(std::string_view text, size_t pos) {
  for (; pos + 8 <= text.size(); pos += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + pos, 8);
    if (word & 0x8080808080808080ull) break;
  }
  while (pos < text.size() && static_cast<unsigned char>(text[pos]) < 0x80) ++pos;
  return pos;
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
  for (size_t pos = skip_ascii(text, 0); pos < text.size(); pos = skip_ascii(text, pos)) {
    const Scan scan = scan_character(text, pos);
    if (!scan.good) return false;
    pos += scan.good;
  }
  return true;
}

std::string to_valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Scan scan = scan_character(text, pos);
    if (scan.good)
      out.append(text, pos, scan.good);
    else
      out += kReplacementCharacter;
    pos += scan.good + scan.bad;
  }
  return out;
}

size_t incomplete_utf8_tail(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t pos = text.size() - back;
    if ((static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) continue;
    const Scan scan = scan_character(text, pos);
    return scan.open ? back : 0;
  }
  return 0;
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

}  // namespace braid
