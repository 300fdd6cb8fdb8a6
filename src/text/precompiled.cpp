#include "text/precompiled.h"

#include <cstring>

#include "base/error.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace braid {

namespace {

std::string decode_base64(const std::string& text) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int n_bits = 0;
  for (size_t i = 0; i < text.size() && text[i] != '='; ++i) {
    const size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) throw Error("precompiled_charsmap is not base64 at character {}", i);
    bits = bits << 6 | static_cast<uint32_t>(digit);
    n_bits += 6;
    if (n_bits >= 8) {
      n_bits -= 8;
      out += static_cast<char>(bits >> n_bits & 0xFF);
    }
  }
  return out;
}

// The fields of one unit of the double array.
bool has_leaf(uint32_t unit) { return unit >> 8 & 1; }
uint32_t leaf_value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t child_offset(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

}  // namespace

CharsMap::CharsMap(const std::string& base64) {
  const std::string blob = decode_base64(base64);
  uint32_t trie_bytes = 0;
  if (blob.size() < 4) throw Error("precompiled_charsmap is cut off");
  std::memcpy(&trie_bytes, blob.data(), 4);
  if (trie_bytes < 4 || trie_bytes > blob.size() - 4) throw Error("precompiled_charsmap has a bad trie size");
  trie_.resize(trie_bytes / 4);
  std::memcpy(trie_.data(), blob.data() + 4, trie_.size() * 4);
  replacements_ = blob.substr(4 + trie_.size() * 4);
  if (!is_valid_utf8(replacements_)) throw Error("precompiled_charsmap holds invalid UTF-8");
  for (size_t c = 0; c < kept_.size(); ++c) kept_[c] = !replacement(std::string(1, static_cast<char>(c)));
  kept_['\r'] = false;  // with a newline it makes one grapheme
}

std::optional<std::string_view> CharsMap::replacement(std::string_view chunk) const {
  uint32_t node = child_offset(trie_[0]);
  for (const char c : chunk) {
    const auto byte = static_cast<unsigned char>(c);
    node ^= byte;
    if (byte == 0 || node >= trie_.size() || label(trie_[node]) != byte) return std::nullopt;
    const uint32_t unit = trie_[node];
    node ^= child_offset(unit);
    if (!has_leaf(unit)) continue;
    const uint32_t at = node < trie_.size() ? leaf_value(trie_[node]) : 0;
    // A crafted file may point into the middle of a character; the original would stop there, we keep the text.
    if (at >= replacements_.size() || (static_cast<unsigned char>(replacements_[at]) & 0xC0) == 0x80)
      return std::nullopt;
    return std::string_view(replacements_.c_str() + at);
  }
  return std::nullopt;
}

std::string CharsMap::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  const auto is_ascii = [&](size_t at) { return static_cast<unsigned char>(text[at]) < 0x80; };
  for (size_t pos = 0; pos < text.size();) {
    // An ASCII character before another is a grapheme of its own.
    if (is_ascii(pos) && kept_[static_cast<size_t>(text[pos])] && (pos + 1 == text.size() || is_ascii(pos + 1))) {
      out += text[pos++];
      continue;
    }
    const size_t end = next_grapheme(text, pos);
    const std::string_view grapheme = text.substr(pos, end - pos);
    const auto whole = grapheme.size() < 6 ? replacement(grapheme) : std::nullopt;
    if (whole) out += *whole;
    for (size_t i = pos; !whole && i < end;) {
      const std::string_view character = text.substr(i, utf8_length(text[i]));
      out += replacement(character).value_or(character);
      i += character.size();
    }
    pos = end;
  }
  return out;
}

}  // namespace braid
