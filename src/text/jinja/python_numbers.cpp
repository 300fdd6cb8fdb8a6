// Numbers to text and back, and Python's quoting of strings.
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "text/jinja/python_text.h"

namespace braid {

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view shortest(buffer, static_cast<size_t>(end - buffer));
  const size_t e = shortest.find('e');
  int exponent = 0;
  const char* digits_of_exponent = shortest.data() + e + (shortest[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits_of_exponent, end, exponent);
  std::string sign, digits;
  for (const char c : shortest.substr(0, e)) {
    if (c == '-') sign += c;
    if (c >= '0' && c <= '9') digits += c;
  }
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, 1);
    if (digits.size() > 1) mantissa.append(".").append(digits, 1);
    return fmt::format("{}{}e{}{:02}", sign, mantissa, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return fmt::format("{}0.{:0>{}}", sign, digits, static_cast<int>(digits.size()) - exponent - 1);
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return fmt::format("{}{:0<{}}.0", sign, digits, whole);
  return fmt::format("{}{}.{}", sign, digits.substr(0, whole), digits.substr(whole));
}

std::string string_repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const char32_t c = next_code_point(text, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out += text.substr(start, at - start);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  return out + quote;
}

std::string html_escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

namespace {

// Removes the underscores that Python allows between digits; nothing when one is misplaced.
std::optional<std::string> without_underscores(std::string_view text, bool leading_allowed) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const bool before = i > 0 ? std::isalnum(static_cast<unsigned char>(text[i - 1])) != 0 : leading_allowed;
    const bool after = i + 1 < text.size() && std::isalnum(static_cast<unsigned char>(text[i + 1])) != 0;
    if (!before || !after) return std::nullopt;
  }
  return out;
}

}  // namespace

std::optional<int64_t> parse_int(std::string_view text, int base) {
  text = strip(text);
  bool negative = false;
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  bool prefixed = false;
  if (text.size() > 1 && text[0] == '0' && (base == 0 || base == 2 || base == 8 || base == 16)) {
    const char mark = static_cast<char>(text[1] | 0x20);
    const int named = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (named != 0 && (base == 0 || base == named)) {
      base = named;
      text.remove_prefix(2);
      prefixed = true;
    }
  }
  const auto digits = without_underscores(text, prefixed);
  if (!digits || digits->empty()) return std::nullopt;
  if (base == 0) {
    if ((*digits)[0] == '0' && digits->find_first_not_of('0') != std::string::npos) return std::nullopt;
    base = 10;
  }
  if (base < 2 || base > 36 || (*digits)[0] == '-') return std::nullopt;
  int64_t value = 0;
  const std::string signed_digits = (negative ? "-" : "") + *digits;
  const char* end = signed_digits.data() + signed_digits.size();
  const auto [stop, code] = std::from_chars(signed_digits.data(), end, value, base);
  if (code != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip(text);
  const auto clean = without_underscores(text, false);
  if (!clean || clean->empty()) return std::nullopt;
  std::string_view body = *clean;
  const bool negative = body[0] == '-';
  if (body[0] == '+' || body[0] == '-') body.remove_prefix(1);
  if (body.empty() || body[0] == '+' || body[0] == '-') return std::nullopt;
  const std::string folded = lower(body);
  double value = 0;
  if (folded == "inf" || folded == "infinity") {
    value = HUGE_VAL;
  } else if (folded == "nan") {
    value = std::nan("");
  } else {
    if (folded.find_first_not_of("0123456789.e+-") != std::string::npos) return std::nullopt;
    const auto [stop, code] = std::from_chars(body.data(), body.data() + body.size(), value);
    if (stop != body.data() + body.size() || code == std::errc::invalid_argument) return std::nullopt;
    if (code == std::errc::result_out_of_range) value = std::strtod(std::string(body).c_str(), nullptr);
  }
  return negative ? -value : value;
}

}  // namespace braid
