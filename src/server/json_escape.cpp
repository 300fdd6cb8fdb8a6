// See json_escape.h.
#include "server/json_escape.h"

#include <array>
#include <cstdint>

namespace braid {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// 0: copy as it is; 1: needs an escape; 2: starts a multi-byte sequence or is a stray byte.
constexpr std::array<uint8_t, 256> kByteClass = [] {
  std::array<uint8_t, 256> c{};
  for (int i = 0; i < 256; ++i) c[i] = i < 0x20 ? 1 : i >= 0x80 ? 2 : 0;
  c['"'] = c['\\'] = 1;
  return c;
}();

// Length of the valid UTF-8 sequence at `s`, or 0; `bad` is then the length of the maximal invalid prefix.
int sequence_length(std::string_view s, int& bad) {
  const auto byte = [&](size_t i) { return i < s.size() ? static_cast<uint8_t>(s[i]) : 0; };
  const uint8_t b0 = byte(0);
  bad = 1;
  int n = 0;
  uint8_t low = 0x80, high = 0xBF;  // bounds of the second byte: no overlong forms, surrogates or beyond U+10FFFF
  if (b0 >= 0xC2 && b0 <= 0xDF)
    n = 2;
  else if (b0 >= 0xE0 && b0 <= 0xEF)
    n = 3, low = b0 == 0xE0 ? 0xA0 : 0x80, high = b0 == 0xED ? 0x9F : 0xBF;
  else if (b0 >= 0xF0 && b0 <= 0xF4)
    n = 4, low = b0 == 0xF0 ? 0x90 : 0x80, high = b0 == 0xF4 ? 0x8F : 0xBF;
  else
    return 0;
  if (byte(1) < low || byte(1) > high) return 0;
  for (int i = 2; i < n; ++i) {
    bad = i;
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return n;
}

void append_escape(std::string& out, char c) {
  static constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    default:
      out += "\\u00";
      out += kHex[static_cast<uint8_t>(c) >> 4];
      out += kHex[c & 15];
  }
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  size_t copied = 0;
  for (size_t i = 0; i < text.size();) {
    const uint8_t kind = kByteClass[static_cast<uint8_t>(text[i])];
    if (kind == 0) {
      ++i;
      continue;
    }
    int bad = 1;
    if (kind == 2) {
      if (const int n = sequence_length(text.substr(i), bad); n > 0) {
        i += n;
        continue;
      }
    }
    out.append(text, copied, i - copied);
    if (kind == 1)
      append_escape(out, text[i]);
    else
      out += kReplacement;
    i += kind == 1 ? 1 : bad;
    copied = i;
  }
  out.append(text, copied, text.size() - copied);
  out += '"';
}

}  // namespace braid
