// Python's two ways to format: '%5.1f' % x and '{:>5}'.format(x).
#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "text/jinja/python_text.h"
#include "text/jinja/runtime.h"

namespace braid {
namespace {

struct FormatSpec {
  std::string fill = " ";
  char align = 0;   // < > ^ =
  char sign = '-';  // + - or blank
  bool alternate = false, zero = false;
  char grouping = 0;  // , or _
  int64_t width = 0, precision = -1;
  char type = 0;
};

constexpr int64_t kMaxWidth = 10'000;   // of a field: more is a mistake or an attack
constexpr int64_t kMaxPrecision = 300;  // digits that a double can have

int64_t read_number(std::string_view text, size_t& at) {
  int64_t n = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    n = n * 10 + (text[at] - '0');
    if (n > kMaxWidth) throw Error("a format is wider than {} characters", kMaxWidth);
  }
  return n;
}

std::string digits_in_base(int64_t value, char type, bool alternate) {
  const uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  switch (type) {
    case 'x':
      return alternate ? fmt::format("0x{:x}", magnitude) : fmt::format("{:x}", magnitude);
    case 'X':
      return alternate ? fmt::format("0X{:X}", magnitude) : fmt::format("{:X}", magnitude);
    case 'o':
      return alternate ? fmt::format("0o{:o}", magnitude) : fmt::format("{:o}", magnitude);
    case 'b':
      return alternate ? fmt::format("0b{:b}", magnitude) : fmt::format("{:b}", magnitude);
    default:
      return fmt::format("{}", magnitude);
  }
}

std::string group_digits(const std::string& digits, char separator) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % 3 == 0) out += separator;
    out += digits[i];
  }
  return out + digits.substr(whole);
}

// The magnitude of a float in style e, f, g or % without its sign.
std::string float_digits(double magnitude, FormatSpec spec) {
  const bool percent = spec.type == '%';
  if (percent) magnitude *= 100;
  const char type = percent ? 'f' : spec.type;
  const auto precision = static_cast<int>(std::min(spec.precision < 0 ? 6 : spec.precision, kMaxPrecision));
  std::string digits;
  if (std::isnan(magnitude) || std::isinf(magnitude)) {
    digits = std::isnan(magnitude) ? "nan" : "inf";
    if (type >= 'A' && type <= 'Z') digits = upper(digits);
  } else {
    char pattern[] = {'%', '.', '*', type, 0, 0};
    if (spec.alternate) std::copy_n("%#.*", 4, pattern), pattern[4] = type;
    char buffer[700];  // 309 digits before the point, 300 after
    const int n = std::snprintf(buffer, sizeof buffer, pattern, precision, magnitude);
    digits.assign(buffer, static_cast<size_t>(n));
  }
  return percent ? digits + "%" : digits;
}

std::string pad(std::string body, const std::string& sign, const FormatSpec& spec, char default_align) {
  const int64_t missing = spec.width - count_code_points(body) - static_cast<int64_t>(sign.size());
  const char align = spec.align != 0 ? spec.align : default_align;
  if (missing <= 0) return sign + body;
  auto fill = [&](int64_t n) {
    std::string out;
    for (int64_t i = 0; i < n; ++i) out += spec.fill;
    return out;
  };
  switch (align) {
    case '<':
      return sign + body + fill(missing);
    case '^':
      return fill(missing / 2) + sign + body + fill(missing - missing / 2);
    case '=':
      return sign + fill(missing) + body;
    default:
      return fill(missing) + sign + body;
  }
}

std::string sign_text(bool negative, char sign) { return negative ? "-" : sign == '-' ? "" : std::string(1, sign); }

std::string format_integer(int64_t value, FormatSpec spec) {
  std::string digits = digits_in_base(value, spec.type, spec.alternate);
  if (static_cast<int64_t>(digits.size()) < spec.precision)
    digits.insert(0, static_cast<size_t>(std::min(spec.precision, kMaxPrecision)) - digits.size(), '0');
  if (spec.grouping != 0) digits = group_digits(digits, spec.grouping);
  return pad(std::move(digits), sign_text(value < 0, spec.sign), spec, '>');
}

std::string format_float(double value, FormatSpec spec) {
  std::string digits = float_digits(std::fabs(value), spec);
  if (spec.grouping != 0) digits = group_digits(digits, spec.grouping);
  return pad(std::move(digits), sign_text(std::signbit(value) && !std::isnan(value), spec.sign), spec, '>');
}

std::string format_string(std::string text, const FormatSpec& spec) {
  if (spec.precision >= 0) text.resize(byte_offset(text, spec.precision));
  return pad(std::move(text), "", spec, '<');
}

// ---- '%'
class PercentFormatter {
 public:
  PercentFormatter(Runtime& rt, const std::string& format, const Value& args) : rt_(rt), format_(format), args_(args) {}

  std::string run() {
    while (at_ < format_.size()) {
      const char c = format_[at_++];
      if (c != '%') {
        out_ += c;
        continue;
      }
      field();
      if (out_.size() > rt_.limits.output_bytes) rt_.charge(out_.size());
    }
    const bool is_tuple = args_.is_list() && args_.list_data().type == ListData::Type::kTuple;
    const bool is_mapping = args_.is_dict() || args_.is_undefined() || (args_.is_list() && !is_tuple);
    const size_t available = is_tuple ? args_.list_data().items.size() : 1;
    if (used_ < available && !is_mapping) throw Error("not all arguments converted during string formatting");
    rt_.charge(out_.size());
    return std::move(out_);
  }

 private:
  const Value& next() {
    if (args_.is_list() && args_.list_data().type == ListData::Type::kTuple) {
      if (used_ >= args_.list_data().items.size()) throw Error("not enough arguments for format string");
      return args_.list_data().items[used_++];
    }
    if (used_++ > 0) throw Error("not enough arguments for format string");
    return args_;
  }

  int64_t number_or_star() {
    if (at_ < format_.size() && format_[at_] == '*') {
      ++at_;
      const Value& v = next();
      if (!v.is_integral()) throw Error("* wants int");
      if (v.as_int() > kMaxWidth || v.as_int() < -kMaxWidth)
        throw Error("a format is wider than {} characters", kMaxWidth);
      return v.as_int();
    }
    return read_number(format_, at_);
  }

  void field() {
    FormatSpec spec;
    std::optional<Value> keyed;
    if (at_ < format_.size() && format_[at_] == '(') keyed = keyed_argument();
    for (; at_ < format_.size(); ++at_) {
      const char c = format_[at_];
      if (c == '-')
        spec.align = '<';
      else if (c == '0')
        spec.zero = true;
      else if (c == '+')
        spec.sign = '+';
      else if (c == ' ')
        spec.sign = spec.sign == '+' ? '+' : ' ';
      else if (c == '#')
        spec.alternate = true;
      else
        break;
    }
    spec.width = number_or_star();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (at_ < format_.size() && format_[at_] == '.') {
      ++at_;
      spec.precision = std::max<int64_t>(0, number_or_star());
    }
    while (at_ < format_.size() && (format_[at_] == 'l' || format_[at_] == 'h' || format_[at_] == 'L')) ++at_;
    if (at_ >= format_.size()) throw Error("incomplete format");
    spec.type = format_[at_++];
    if (spec.type == '%') {
      out_ += '%';
      return;
    }
    convert(spec, keyed ? *keyed : next());
  }

  Value keyed_argument() {
    const size_t close = format_.find(')', at_);
    if (close == std::string::npos) throw Error("incomplete format key");
    if (!args_.is_dict()) throw Error("format requires a mapping");
    const std::string key = format_.substr(at_ + 1, close - at_ - 1);
    const Value* found = args_.find(key);
    if (found == nullptr) throw Error("a format names the key '{}', which is missing", key);
    at_ = close + 1;
    return *found;
  }

  void convert(FormatSpec spec, const Value& value) {
    const bool is_text = spec.type == 's' || spec.type == 'r' || spec.type == 'a' || spec.type == 'c';
    if (spec.zero && spec.align == 0 && !is_text) {
      spec.fill = "0";
      spec.align = '=';
    }
    if (is_text && spec.align == 0) spec.align = '>';
    switch (spec.type) {
      case 's':
        out_ += format_string(to_text(rt_, value), spec);
        return;
      case 'r':
      case 'a':
        out_ += format_string(repr(rt_, value), spec);
        return;
      case 'c':
        out_ += format_string(character(value), spec);
        return;
      case 'd':
      case 'i':
      case 'u':
        spec.type = 'd';
        if (!value.is_number()) throw Error("%d format: a number is required, not {}", python_type_name(value));
        out_ += format_integer(value.is_float() ? truncated(value.as_float()) : value.as_int(), spec);
        return;
      case 'x':
      case 'X':
      case 'o':
        if (!value.is_integral()) throw Error("%{} format: an integer is required", spec.type);
        out_ += format_integer(value.as_int(), spec);
        return;
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (!value.is_number()) throw Error("must be real number, not {}", python_type_name(value));
        out_ += format_float(value.as_float(), spec);
        return;
      default:
        throw Error("unsupported format character '{}'", spec.type);
    }
  }

  static int64_t truncated(double value) {
    if (!(std::fabs(value) < 9e18)) throw Error("a float beyond 64 bits cannot be formatted as an integer");
    return static_cast<int64_t>(value);
  }

  std::string character(const Value& value) {
    std::string out;
    if (value.is_string() && count_code_points(value.text()) == 1) return value.text();
    if (!value.is_integral() || value.as_int() < 0 || value.as_int() > 0x10FFFF) throw Error("%c requires int or char");
    append_utf8(out, static_cast<char32_t>(value.as_int()));
    return out;
  }

  Runtime& rt_;
  const std::string& format_;
  const Value& args_;
  size_t at_ = 0, used_ = 0;
  std::string out_;
};

// ---- '{}'
FormatSpec parse_spec(std::string_view text) {
  FormatSpec spec;
  size_t at = 0;
  auto is_align = [&](size_t i) {
    return i < text.size() && std::string_view("<>^=").find(text[i]) != std::string_view::npos;
  };
  if (!text.empty()) {
    size_t after = 0;
    next_code_point(text, after);
    if (is_align(after)) {
      spec.fill = text.substr(0, after);
      spec.align = text[after];
      at = after + 1;
    } else if (is_align(0)) {
      spec.align = text[0];
      at = 1;
    }
  }
  if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) spec.sign = text[at++];
  if (at < text.size() && text[at] == '#') spec.alternate = ++at > 0;
  if (at < text.size() && text[at] == '0') {
    ++at;
    spec.zero = true;
    if (spec.align == 0) {
      spec.fill.assign(1, '0');
      spec.align = '=';
    }
  }
  spec.width = read_number(text, at);
  if (at < text.size() && (text[at] == ',' || text[at] == '_')) spec.grouping = text[at++];
  if (at < text.size() && text[at] == '.') {
    const size_t digits = ++at;
    spec.precision = read_number(text, at);
    if (at == digits) throw Error("Format specifier missing precision");
  }
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) throw Error("Invalid format specifier");
  return spec;
}

std::string format_value(Runtime& rt, const Value& value, std::string_view text) {
  if (text.empty()) return to_text(rt, value);
  FormatSpec spec = parse_spec(text);
  if (value.is_string()) {
    if (spec.type != 0 && spec.type != 's') throw Error("Unknown format code '{}' for object of type 'str'", spec.type);
    if (spec.align == '=' && !spec.zero) throw Error("'=' alignment not allowed in string format specifier");
    if (spec.align == '=') spec.align = '<';
    return format_string(value.text(), spec);
  }
  if (!value.is_number()) throw Error("unsupported format string passed to {}", python_type_name(value));
  const std::string_view float_types = "eEfFgG%";
  if (value.is_float() || float_types.find(spec.type == 0 ? ' ' : spec.type) != std::string_view::npos) {
    if (spec.type == 0) {
      if (spec.precision >= 0) throw Error("a float format with a precision needs a type");
      const double d = value.as_float();
      std::string digits = float_repr(std::fabs(d));
      if (spec.grouping != 0) digits = group_digits(digits, spec.grouping);
      return pad(std::move(digits), sign_text(std::signbit(d), spec.sign), spec, '>');
    }
    if (float_types.find(spec.type) == std::string_view::npos)
      throw Error("Unknown format code '{}' for object of type 'float'", spec.type);
    return format_float(value.as_float(), spec);
  }
  if (std::string_view("dxXobn").find(spec.type == 0 ? 'd' : spec.type) == std::string_view::npos ||
      spec.precision >= 0)
    throw Error("this format does not fit an integer");
  return format_integer(value.as_int(), spec);
}

class BraceFormatter {
 public:
  BraceFormatter(Runtime& rt, const CallArgs& args) : rt_(rt), args_(args) {}

  std::string run(std::string_view format, int level) {
    if (level > 2) throw Error("Max string recursion exceeded");
    std::string out;
    for (size_t at = 0; at < format.size();) {
      const char c = format[at++];
      if ((c == '{' || c == '}') && at < format.size() && format[at] == c) {
        out += c;
        ++at;
      } else if (c == '}') {
        throw Error("Single '}}' encountered in format string");
      } else if (c == '{') {
        const size_t end = field_end(format, at);
        out += field(format.substr(at, end - at), level);
        at = end + 1;
      } else {
        out += c;
      }
      if (out.size() > rt_.limits.output_bytes) rt_.charge(out.size());
    }
    rt_.charge(out.size());
    return out;
  }

 private:
  static size_t field_end(std::string_view format, size_t at) {
    for (int open = 1; at < format.size(); ++at) {
      open += format[at] == '{' ? 1 : format[at] == '}' ? -1 : 0;
      if (open == 0) return at;
    }
    throw Error("expected '}}' before end of string");
  }

  std::string field(std::string_view text, int level) {
    const size_t end = std::min(text.find_first_of("!:"), text.size());
    Value value = lookup(text.substr(0, end));
    size_t at = end;
    if (at < text.size() && text[at] == '!') {
      if (at + 1 >= text.size()) throw Error("end of string while looking for conversion specifier");
      const char conversion = text[at + 1];
      if (conversion == 's')
        value = Value(to_text(rt_, value));
      else if (conversion == 'r' || conversion == 'a')
        value = Value(repr(rt_, value));
      else
        throw Error("Unknown conversion specifier '{}'", conversion);
      at += 2;
      if (at < text.size() && text[at] != ':') throw Error("expected ':' after conversion specifier");
    }
    return format_value(rt_, value, at < text.size() ? run(text.substr(at + 1), level + 1) : "");
  }

  Value lookup(std::string_view path) {
    const size_t end = std::min(path.find_first_of(".["), path.size());
    Value value = root(path.substr(0, end));
    for (size_t at = end; at < path.size();) {
      if (path[at] == '.') {
        const size_t stop = std::min(path.find_first_of(".[", at + 1), path.size());
        value = get_attribute(rt_, value, std::string(path.substr(at + 1, stop - at - 1)));
        at = stop;
      } else {
        const size_t stop = path.find(']', at);
        if (stop == std::string_view::npos) throw Error("Missing ']' in format string");
        const auto key = path.substr(at + 1, stop - at - 1);
        const auto index = parse_int(key, 10);
        value = get_item(rt_, value, index ? Value(*index) : Value(key));
        at = stop + 1;
      }
    }
    return value;
  }

  Value root(std::string_view name) {
    size_t index = next_;
    if (name.empty()) {
      ++next_;
    } else if (const auto number = parse_int(name, 10)) {
      index = static_cast<size_t>(*number);
    } else {
      for (const auto& [key, value] : args_.named)
        if (key == name) return value;
      throw Error("a format names '{}', which was not given", name);
    }
    if (index >= args_.positional.size()) throw Error("Replacement index {} out of range for positional args", index);
    return args_.positional[index];
  }

  Runtime& rt_;
  const CallArgs& args_;
  size_t next_ = 0;
};

}  // namespace

std::string format_percent(Runtime& rt, const std::string& format, const Value& args) {
  return PercentFormatter(rt, format, args).run();
}

std::string format_braces(Runtime& rt, const std::string& format, const CallArgs& args) {
  return BraceFormatter(rt, args).run(format, 0);
}

}  // namespace braid
