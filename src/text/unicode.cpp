#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <new>

#include "base/error.h"
#include "text/unicode_exceptions.h"
#include "text/utf8.h"

namespace braid {

namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

template <size_t kSize>
bool is_in(const CharacterRange (&ranges)[kSize], char32_t c) {
  const auto at = std::partition_point(ranges, ranges + kSize, [c](const CharacterRange& r) { return r.last < c; });
  return at != ranges + kSize && at->first <= c;
}

std::string map_normal_form(std::string_view text, utf8proc_option_t options) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                               static_cast<utf8proc_ssize_t>(text.size()), &mapped, options);
  if (length == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  BRAID_CHECK(length >= 0, "utf8proc: {}", utf8proc_errmsg(length));
  std::string out(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
  std::free(mapped);
  return out;
}

}  // namespace

bool is_whitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  const auto k = category(c);
  return (k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO) != is_in(kPunctuationExceptions, c);
}

bool is_mark(char32_t c) {
  if (c < 0x80) return false;
  const auto k = category(c);
  return (k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME) != is_in(kMarkExceptions, c);
}

bool is_nonspacing_mark(char32_t c) {
  return c >= 0x80 && (category(c) == UTF8PROC_CATEGORY_MN) != is_in(kNonspacingMarkExceptions, c);
}

bool is_word(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  const auto k = category(c);
  if (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_ME) return true;
  if (k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_PC) return true;
  // The rest of Alphabetic (circled and squared letters), and the two joiners.
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D;
}

bool is_other(char32_t c) {
  if (c < 0x80) return c < 0x20 || c == 0x7F;
  const auto k = category(c);
  return (k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO) !=
         is_in(kOtherExceptions, c);
}

std::string to_normal_form(std::string_view text, NormalForm form) {
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::kC || form == NormalForm::kKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kKC || form == NormalForm::kKD) options |= UTF8PROC_COMPAT;
  std::string out;
  out.reserve(text.size());
  // ASCII is normal in every form, and nothing composes across an ASCII character that is followed by another; so only
  // the stretches around other characters are worked on. A character that is left alone separates stretches too.
  size_t begin = 0;
  const auto work_on = [&](size_t end) {
    if (begin < end) out += map_normal_form(text.substr(begin, end - begin), static_cast<utf8proc_option_t>(options));
  };
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    const char32_t c = next_utf8(text, pos);
    const bool inert =
        c < 0x80 ? pos >= text.size() || static_cast<unsigned char>(text[pos]) < 0x80 : is_in(kNotNormalized, c);
    if (!inert) continue;
    work_on(at);
    out.append(text, at, pos - at);
    begin = pos;
  }
  work_on(text.size());
  return out;
}

size_t next_grapheme(std::string_view text, size_t pos) {
  utf8proc_int32_t state = 0;
  auto previous = static_cast<utf8proc_int32_t>(next_utf8(text, pos));
  while (pos < text.size()) {
    size_t next = pos;
    const auto c = static_cast<utf8proc_int32_t>(next_utf8(text, next));
    if (utf8proc_grapheme_break_stateful(previous, c, &state)) break;
    previous = c;
    pos = next;
  }
  return pos;
}

void append_lowercase(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  } else if (c == 0x130) {  // the only character whose lower case is two
    out += "i\xCC\x87";
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

}  // namespace braid
