#include "text/byte_alphabet.h"

#include "text/utf8.h"

namespace braid {

namespace {

constexpr bool is_printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Tables {
  std::array<char32_t, 256> to{};
  std::array<int16_t, 512> from{};
};

constexpr Tables make_tables() {
  Tables t;
  t.from.fill(-1);
  char32_t next = 256;  // bytes without a printable form are numbered from U+0100 on
  for (int b = 0; b < 256; ++b) {
    t.to[b] = is_printable(b) ? static_cast<char32_t>(b) : next++;
    t.from[t.to[b]] = static_cast<int16_t>(b);
  }
  return t;
}

constexpr Tables kTables = make_tables();

}  // namespace

char32_t byte_to_alphabet(unsigned char byte) { return kTables.to[byte]; }

std::optional<unsigned char> alphabet_to_byte(char32_t c) {
  if (c >= kTables.from.size() || kTables.from[c] < 0) return std::nullopt;
  return static_cast<unsigned char>(kTables.from[c]);
}

void append_as_alphabet(std::string& out, std::string_view bytes) {
  for (const char b : bytes) append_utf8(out, byte_to_alphabet(static_cast<unsigned char>(b)));
}

std::optional<std::string> bytes_of_alphabet(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const auto byte = alphabet_to_byte(next_utf8(text, pos));
    if (!byte) return std::nullopt;
    out += static_cast<char>(*byte);
  }
  return out;
}

}  // namespace braid
