// Jinja's tokenizer. The rules mirror jinja2/lexer.py: text up to the next tag, then the tag's tokens up to its end,
// with brackets balanced so that `}}` inside a dict literal does not end a print.
#include "text/jinja/lexer.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "text/jinja/python_text.h"

namespace braid {
namespace {

bool is_name_start(char32_t c) { return c == '_' || is_alpha(c); }
bool is_name_part(char32_t c) { return c == '_' || is_alnum(c); }

class Lexer {
 public:
  explicit Lexer(const TemplateSource& source) : source_(source), text_(source.text) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) lex_text();
    tokens_.push_back({TokenKind::kEnd, text_.size(), ""});
    return std::move(tokens_);
  }

 private:
  bool looking_at(std::string_view what, size_t at) const { return text_.compare(at, what.size(), what) == 0; }

  size_t skip_space(size_t at) const {
    while (at < text_.size()) {
      size_t next = at;
      if (!is_python_space(next_code_point(text_, next))) break;
      at = next;
    }
    return at;
  }

  // {% raw %} with its white space; the offset after it, or npos when no raw tag starts at `at`.
  size_t raw_tag_end(size_t at, std::string_view word) const {
    at += 2;
    if (at < text_.size() && (text_[at] == '-' || text_[at] == '+')) ++at;
    at = skip_space(at);
    if (!looking_at(word, at)) return std::string::npos;
    return skip_space(at + word.size());
  }

  void push_text(size_t begin, size_t end) {
    if (begin < end) tokens_.push_back({TokenKind::kText, begin, text_.substr(begin, end - begin)});
  }

  // The end of the text before a tag at `tag`, after what `-`, `+` and lstrip_blocks take off.
  size_t text_end(size_t begin, size_t tag, bool is_print) const {
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    const std::string_view before(text_.data() + begin, tag - begin);
    if (sign == '-') return begin + strip(before, Side::kRight).size();
    if (sign == '+' || is_print) return tag;
    const size_t newline = before.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if (line == 0 && !line_starting_) return tag;
    return strip(before.substr(line)).empty() ? begin + line : tag;
  }

  void lex_text() {
    const size_t begin = at_;
    size_t tag = begin;
    while (true) {
      tag = text_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= text_.size()) {
        push_text(begin, text_.size());
        at_ = text_.size();
        return;
      }
      const char kind = text_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
      ++tag;
    }
    push_text(begin, text_end(begin, tag, text_[tag + 1] == '{'));
    at_ = tag + 2;
    const bool signed_tag = at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+');
    switch (text_[tag + 1]) {
      case '#':
        at_ += signed_tag;
        lex_comment(tag);
        return;
      case '{':
        at_ += signed_tag;
        tokens_.push_back({TokenKind::kPrintBegin, tag, ""});
        lex_tag(tag, false);
        return;
      default:
        break;
    }
    if (const size_t raw = raw_tag_end(tag, "raw"); raw != std::string::npos && lex_raw(tag, raw)) return;
    at_ += signed_tag;
    tokens_.push_back({TokenKind::kBlockBegin, tag, ""});
    lex_tag(tag, true);
  }

  // What follows a tag's closing mark at `at`: `-` before it eats white space, a bare one eats a newline.
  void finish_tag(size_t mark, size_t length, bool trims_newline) {
    at_ = mark + length;
    if (text_[mark] == '-')
      at_ = skip_space(at_);
    else if (text_[mark] != '+' && trims_newline && at_ < text_.size() && text_[at_] == '\n')
      ++at_;
    line_starting_ = text_[at_ - 1] == '\n';
  }

  void lex_comment(size_t tag) {
    const size_t end = text_.find("#}", at_);
    if (end == std::string::npos) source_.fail(tag, "missing end of comment tag");
    const bool is_signed = end > at_ && (text_[end - 1] == '-' || text_[end - 1] == '+');
    finish_tag(is_signed ? end - 1 : end, is_signed ? 3 : 2, true);
  }

  bool lex_raw(size_t tag, size_t at) {
    if (looking_at("-%}", at))
      at = skip_space(at + 3);
    else if (looking_at("%}", at))
      at += 2;
    else
      return false;
    line_starting_ = text_[at - 1] == '\n';
    for (size_t end = text_.find("{%", at); end != std::string::npos; end = text_.find("{%", end + 1)) {
      size_t close = raw_tag_end(end, "endraw");
      if (close == std::string::npos) continue;
      const bool is_signed = close < text_.size() && (text_[close] == '-' || text_[close] == '+');
      if (!looking_at("%}", close + is_signed)) continue;
      push_text(at, text_end(at, end, false));
      finish_tag(close, is_signed ? 3 : 2, true);
      return true;
    }
    source_.fail(tag, "missing end of raw block");
  }

  // The length of the closing mark at `at_`, sign included; 0 when there is none.
  size_t closing_mark(bool is_block) const {
    if (!is_block) return looking_at("}}", at_) ? 2 : looking_at("-}}", at_) ? 3 : 0;
    return looking_at("%}", at_) ? 2 : looking_at("-%}", at_) || looking_at("+%}", at_) ? 3 : 0;
  }

  void lex_tag(size_t tag, bool is_block) {
    std::string open;
    while (true) {
      at_ = skip_space(at_);
      if (at_ >= text_.size())
        source_.fail(tag, is_block ? "this block tag is not closed" : "this print is not closed");
      if (open.empty()) {
        if (const size_t length = closing_mark(is_block); length != 0) {
          tokens_.push_back({is_block ? TokenKind::kBlockEnd : TokenKind::kPrintEnd, at_, ""});
          finish_tag(at_, length, is_block);
          return;
        }
      }
      lex_token(open);
    }
  }

  void lex_token(std::string& open) {
    const size_t start = at_;
    const char c = text_[at_];
    if (c >= '0' && c <= '9') return lex_number();
    if (c == '\'' || c == '"') return lex_string(c);
    size_t next = at_;
    if (is_name_start(next_code_point(text_, next))) {
      while (next < text_.size()) {
        size_t after = next;
        if (!is_name_part(next_code_point(text_, after))) break;
        next = after;
      }
      tokens_.push_back({TokenKind::kName, start, text_.substr(start, next - start)});
      at_ = next;
      return;
    }
    for (const std::string_view two : {"//", "**", "==", "!=", ">=", "<="})
      if (looking_at(two, at_)) {
        tokens_.push_back({TokenKind::kOperator, start, std::string(two)});
        at_ += 2;
        return;
      }
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos || c == '\0')
      source_.fail(start, "unexpected character");
    balance(c, open);
    tokens_.push_back({TokenKind::kOperator, start, std::string(1, c)});
    ++at_;
  }

  void balance(char c, std::string& open) {
    if (c == '(') open += ')';
    if (c == '[') open += ']';
    if (c == '{') open += '}';
    if (c != ')' && c != ']' && c != '}') return;
    if (open.empty()) source_.fail(at_, fmt::format("unexpected '{}'", c));
    if (open.back() != c) source_.fail(at_, fmt::format("unexpected '{}', expected '{}'", c, open.back()));
    open.pop_back();
  }

  size_t digits_end(size_t at) const {  // digits with single underscores between them
    while (at < text_.size() && text_[at] >= '0' && text_[at] <= '9') {
      ++at;
      if (at + 1 < text_.size() && text_[at] == '_' && text_[at + 1] >= '0' && text_[at + 1] <= '9') ++at;
    }
    return at;
  }

  void lex_number() {
    const size_t start = at_;
    size_t end = digits_end(at_);
    bool is_float = false;
    const bool after_dot = start > 0 && text_[start - 1] == '.';  // x.0.1 is two subscripts
    if (!after_dot && end < text_.size() && text_[end] == '.' && digits_end(end + 1) > end + 1) {
      is_float = true;
      end = digits_end(end + 1);
    }
    if (!after_dot && end < text_.size() && (text_[end] | 0x20) == 'e') {
      size_t digits = end + 1;
      if (digits < text_.size() && (text_[digits] == '+' || text_[digits] == '-')) ++digits;
      if (digits_end(digits) > digits) {
        is_float = true;
        end = digits_end(digits);
      }
    }
    if (!is_float) end = integer_end(start, end);
    std::string digits = text_.substr(start, end - start);
    std::erase(digits, '_');
    if (is_float) {
      tokens_.push_back({TokenKind::kNumber, start, "", *parse_float(digits)});
    } else {
      const auto value = parse_int(digits, 0);
      if (!value) source_.fail(start, "an integer beyond 64 bits");
      tokens_.push_back({TokenKind::kNumber, start, "", *value});
    }
    at_ = end;
  }

  // 0x1F, 0b1, 0o7; a decimal that starts with 0 ends after its zeros.
  size_t integer_end(size_t start, size_t decimal_end) const {
    if (text_[start] != '0') return decimal_end;
    if (start + 2 < text_.size()) {
      const char mark = static_cast<char>(text_[start + 1] | 0x20);
      const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
      size_t end = start + 2;
      while (base != 0 && end < text_.size()) {
        const size_t digit = text_[end] == '_' ? end + 1 : end;
        int value = 0;
        if (digit >= text_.size() || std::from_chars(&text_[digit], &text_[digit] + 1, value, base).ec != std::errc())
          break;
        end = digit + 1;
      }
      if (end > start + 2) return end;
    }
    size_t end = start;
    while (end < decimal_end && (text_[end] == '0' || text_[end] == '_')) ++end;
    return text_[end - 1] == '_' ? end - 1 : end;
  }

  void lex_string(char quote) {
    const size_t start = at_++;
    std::string out;
    while (true) {
      if (at_ >= text_.size()) source_.fail(start, "this string is not closed");
      const char c = text_[at_++];
      if (c == quote) break;
      if (c == '\\')
        lex_escape(start, out);
      else
        out += c;
    }
    tokens_.push_back({TokenKind::kString, start, std::move(out)});
  }

  void lex_escape(size_t start, std::string& out) {
    if (at_ >= text_.size()) source_.fail(start, "this string is not closed");
    static constexpr std::string_view kLetters = "\\'\"abfnrtv", kMeaning = "\\'\"\a\b\f\n\r\t\v";
    const char c = text_[at_++];
    if (c == '\n') return;
    if (const size_t known = kLetters.find(c); known != std::string_view::npos) {
      out += kMeaning[known];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      append_utf8(out, hex_escape(c == 'x' ? 2 : c == 'u' ? 4 : 8));
    } else if (c >= '0' && c <= '7') {
      char32_t value = static_cast<char32_t>(c - '0');
      for (int i = 0; i < 2 && at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '7'; ++i)
        value = value * 8 + static_cast<char32_t>(text_[at_++] - '0');
      append_utf8(out, value);
    } else {
      out += '\\';  // Python keeps an escape that it does not know
      out += c;
    }
  }

  char32_t hex_escape(size_t digits) {
    uint32_t value = 0;
    const char* begin = text_.data() + at_;
    const char* end = begin + std::min(digits, text_.size() - at_);
    const auto [stop, code] = std::from_chars(begin, end, value, 16);
    if (stop != begin + digits || code != std::errc()) source_.fail(at_, "a truncated character escape");
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) source_.fail(at_, "an escape that is no character");
    at_ += digits;
    return value;
  }

  const TemplateSource& source_;
  const std::string& text_;
  size_t at_ = 0;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

TemplateSource::TemplateSource(std::string_view raw) {
  text.reserve(raw.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] == '\r') {
      text += '\n';
      if (i + 1 < raw.size() && raw[i + 1] == '\n') ++i;
    } else {
      text += raw[i];
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (const auto bad = find_invalid_utf8(text)) fail(*bad, "a byte that is not UTF-8");
}

int TemplateSource::line_of(size_t offset) const {
  return 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n'));
}

void TemplateSource::fail(size_t offset, const std::string& what) const {
  const size_t newline = offset == 0 ? std::string::npos : text.rfind('\n', offset - 1);
  const size_t line_start = newline == std::string::npos ? 0 : newline + 1;
  const int64_t column = 1 + count_code_points(std::string_view(text).substr(line_start, offset - line_start));
  throw Error("chat template, line {}, column {}: {}", line_of(offset), column, what);
}

std::vector<Token> tokenize(const TemplateSource& source) { return Lexer(source).run(); }

}  // namespace braid
