// Code points, character classes, case and splitting, by utf8proc's tables where ASCII does not decide.
#include "text/jinja/python_text.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/error.h"

namespace braid {
namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

char32_t to_upper(char32_t c) { return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))); }
char32_t to_lower(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))); }

template <typename F>
std::string map_code_points(std::string_view text, F&& append) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const char32_t c = next_code_point(text, at);
    append(out, c, text.substr(start, at - start));
  }
  return out;
}

void append_upper(std::string& out, char32_t c, std::string_view bytes) {
  if (c == U'ß') {
    out += "SS";  // the one full mapping that ordinary text meets
  } else if (const char32_t u = to_upper(c); u != c) {
    append_utf8(out, u);
  } else {
    out += bytes;
  }
}

void append_lower(std::string& out, char32_t c, std::string_view bytes) {
  const char32_t l = to_lower(c);
  if (l != c)
    append_utf8(out, l);
  else
    out += bytes;
}

bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT; }

}  // namespace

char32_t next_code_point(std::string_view text, size_t& at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) {
    ++at;
    return first;
  }
  utf8proc_int32_t c = -1;
  const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at),
                                  static_cast<utf8proc_ssize_t>(std::min<size_t>(4, text.size() - at)), &c);
  if (n <= 0) {
    ++at;
    return U'\uFFFD';
  }
  at += static_cast<size_t>(n);
  return static_cast<char32_t>(c);
}

int64_t count_code_points(std::string_view text) {
  int64_t n = 0;
  for (size_t at = 0; at < text.size(); ++n) next_code_point(text, at);
  return n;
}

size_t byte_offset(std::string_view text, int64_t code_points) {
  size_t at = 0;
  while (code_points-- > 0 && at < text.size()) next_code_point(text, at);
  return at;
}

std::vector<std::string_view> code_points(std::string_view text) {
  std::vector<std::string_view> out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    next_code_point(text, at);
    out.push_back(text.substr(start, at - start));
  }
  return out;
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    if (static_cast<unsigned char>(text[at]) >= 0x80) {
      utf8proc_int32_t c = -1;
      const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at),
                                      static_cast<utf8proc_ssize_t>(std::min<size_t>(4, text.size() - at)), &c);
      if (n <= 0) return start;
      at += static_cast<size_t>(n);
    } else {
      ++at;
    }
  }
  return std::nullopt;
}

bool is_python_space(char32_t c) {
  if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 28 && c <= 32);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_alpha(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal_digit(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return category(c) == UTF8PROC_CATEGORY_ND;
}

bool is_alnum(char32_t c) {
  if (is_alpha(c)) return true;
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool is_upper(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z';
  return category(c) == UTF8PROC_CATEGORY_LU;
}

bool is_lower(char32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z';
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA;
}

bool is_printable(char32_t c) {
  if (c < 0x80) return c >= 32 && c < 127;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

namespace {

template <typename Predicate>
std::string_view strip_where(std::string_view text, Side side, Predicate&& strips) {
  size_t begin = 0;
  if (side != Side::kRight)
    while (begin < text.size()) {
      size_t at = begin;
      if (!strips(next_code_point(text, at))) break;
      begin = at;
    }
  size_t end = text.size();
  if (side != Side::kLeft)
    while (end > begin) {
      size_t start = end - 1;  // back to the lead byte
      while (start > begin && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
      size_t at = start;
      if (!strips(next_code_point(text, at)) || at != end) break;
      end = start;
    }
  return text.substr(begin, end - begin);
}

}  // namespace

std::string_view strip(std::string_view text, Side side) { return strip_where(text, side, is_python_space); }

std::string_view strip_of(std::string_view text, std::string_view characters, Side side) {
  std::u32string set;
  for (size_t at = 0; at < characters.size();) set += next_code_point(characters, at);
  return strip_where(text, side, [&](char32_t c) { return set.find(c) != std::u32string::npos; });
}

std::string upper(std::string_view text) { return map_code_points(text, append_upper); }
std::string lower(std::string_view text) { return map_code_points(text, append_lower); }

std::string title(std::string_view text) {
  bool previous_cased = false;
  return map_code_points(text, [&](std::string& out, char32_t c, std::string_view bytes) {
    previous_cased ? append_lower(out, c, bytes) : append_upper(out, c, bytes);
    previous_cased = is_cased(c);
  });
}

std::string capitalize(std::string_view text) {
  bool first = true;
  return map_code_points(text, [&](std::string& out, char32_t c, std::string_view bytes) {
    first ? append_upper(out, c, bytes) : append_lower(out, c, bytes);
    first = false;
  });
}

std::string swapcase(std::string_view text) {
  return map_code_points(text, [](std::string& out, char32_t c, std::string_view bytes) {
    is_upper(c) ? append_lower(out, c, bytes) : append_upper(out, c, bytes);
  });
}

std::vector<std::string_view> split_space(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> out;
  for (text = strip(text, Side::kLeft); !text.empty(); text = strip(text, Side::kLeft)) {
    if (max_splits >= 0 && static_cast<int64_t>(out.size()) == max_splits) {
      out.push_back(text);  // the rest keeps its own white space
      break;
    }
    size_t end = 0;
    for (size_t at = 0; at < text.size(); end = at)
      if (is_python_space(next_code_point(text, at))) break;
    out.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return out;
}

std::vector<std::string_view> rsplit_space(std::string_view text, int64_t max_splits) {
  auto words = split_space(text, -1);
  if (max_splits < 0 || static_cast<int64_t>(words.size()) <= max_splits) return words;
  const size_t kept = static_cast<size_t>(max_splits);
  std::vector<std::string_view> out(words.end() - static_cast<std::ptrdiff_t>(kept), words.end());
  const std::string_view last_joined = words[words.size() - kept - 1];
  const std::string_view head =
      text.substr(0, static_cast<size_t>(last_joined.data() + last_joined.size() - text.data()));
  out.insert(out.begin(), head);
  return out;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> out;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t before = at;
    const char32_t c = next_code_point(text, at);
    const bool ends = (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    out.push_back(text.substr(start, (keep_ends ? at : before) - start));
    start = at;
  }
  if (start < text.size()) out.push_back(text.substr(start));
  return out;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t count,
                    size_t max_bytes) {
  std::string out;
  auto put = [&](std::string_view piece) {
    if (out.size() + piece.size() > max_bytes) throw Error("a string would exceed {} bytes", max_bytes);
    out += piece;
  };
  int64_t left = count < 0 ? INT64_MAX : count;
  size_t at = 0;
  while (left > 0) {
    if (from.empty()) {  // Python puts the replacement before every character and at the end
      put(to);
      --left;
      if (at >= text.size()) break;
      const size_t start = at;
      next_code_point(text, at);
      put(text.substr(start, at - start));
      continue;
    }
    const size_t found = text.find(from, at);
    if (found == std::string_view::npos) break;
    put(text.substr(at, found - at));
    put(to);
    at = found + from.size();
    --left;
  }
  put(text.substr(std::min(at, text.size())));
  return out;
}

}  // namespace braid
