// The table of filters, and those on single values: numbers, defaults, JSON.
#include "text/jinja/filters.h"

#include <cmath>

#include "base/error.h"
#include "text/jinja/builtins.h"
#include "text/jinja/python_text.h"

namespace braid {
namespace {

int64_t whole(double value) {
  if (std::isnan(value) || !(std::fabs(value) < 9.2e18)) throw Error("a float cannot be converted to a 64-bit integer");
  return static_cast<int64_t>(value);
}

Value filter_default(Runtime&, const Value& in, const CallArgs& args) {
  const BoundArgs a("default", args, {"default_value", "boolean"});
  if (in.is_undefined() || (a.flag(1, false) && !truth(in))) return a.get(0, Value(""));
  return in;
}

Value filter_int(Runtime&, const Value& in, const CallArgs& args) {
  const BoundArgs a("int", args, {"default", "base"});
  const Value fallback = a.get(0, Value(0));
  if (in.is_integral()) return in.as_int();
  if (in.is_float()) return std::isfinite(in.as_float()) ? Value(whole(in.as_float())) : fallback;
  if (in.is_undefined()) fail_undefined(in);
  if (!in.is_string()) return fallback;
  if (const auto i = parse_int(in.text(), static_cast<int>(a.integer(1, 10)))) return *i;
  const auto f = parse_float(in.text());
  return f && std::isfinite(*f) ? Value(whole(*f)) : fallback;
}

Value filter_float(Runtime&, const Value& in, const CallArgs& args) {
  const BoundArgs a("float", args, {"default"});
  if (in.is_number()) return in.as_float();
  if (in.is_undefined()) fail_undefined(in);
  const auto f = in.is_string() ? parse_float(in.text()) : std::nullopt;
  return f ? Value(*f) : a.get(0, Value(0.0));
}

Value filter_abs(Runtime&, const Value& in, const CallArgs& args) {
  const BoundArgs a("abs", args, {});
  if (in.is_float()) return std::fabs(in.as_float());
  if (in.is_undefined()) fail_undefined(in);
  if (!in.is_integral()) throw Error("bad operand type for abs(): '{}'", python_type_name(in));
  return in.as_int() < 0 ? negate(in) : Value(in.as_int());
}

// Python's round(): the decimal nearest to the exact binary value, ties to even.
double round_decimal(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits < -308) return std::copysign(0.0, value);
  if (digits >= 0) return *parse_float(fmt::format("{:.{}f}", value, digits));
  const double scale = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / scale) * scale;
}

Value filter_round(Runtime&, const Value& in, const CallArgs& args) {
  const BoundArgs a("round", args, {"precision", "method"});
  const std::string method = a.has(1) ? a.string(1) : "common";
  const int64_t digits = a.integer(0, 0);
  if (method != "common" && method != "ceil" && method != "floor") throw Error("method must be common, ceil or floor");
  if (in.is_undefined()) fail_undefined(in);
  if (!in.is_number()) throw Error("round() needs a number, not '{}'", python_type_name(in));
  if (method == "common") {
    if (in.is_integral() && digits >= 0) return in.as_int();
    const double rounded = round_decimal(in.as_float(), digits);
    return in.is_integral() ? Value(whole(rounded)) : Value(rounded);
  }
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = in.as_float() * scale;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value filter_tojson(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = a.flag(0, false);
  style.sort_keys = a.flag(3, false);
  const Value indent = a.get(1, Value::none());
  if (!indent.is_none()) {
    style.has_indent = true;
    style.item_separator.pop_back();  // "," alone, as json.dumps does with an indent
    if (indent.is_string())
      style.indent = indent.text();
    else if (const int64_t width = a.integer(1, 0); width > 0)
      style.indent = std::string(static_cast<size_t>(std::min<int64_t>(width, 1000)), ' ');
  }
  if (const Value separators = a.get(2, Value::none()); !separators.is_none()) {
    const auto pair = iterate(rt, separators);
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      throw Error("tojson() needs two strings as separators");
    style.item_separator = pair[0].text();
    style.key_separator = pair[1].text();
  }
  return Value(dump_json(rt, in, style));
}

Value filter_length(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("length", args, {});
  return length(rt, in);
}

Value filter_attr(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("attr", args, {"name"}, 1);
  const std::string& name = a.string(0);
  if (in.is_dict() && find_method(in, name) == MethodKind::kNone)
    return Value::undefined(fmt::format("'dict object' has no attribute '{}'", name));
  return get_attribute(rt, in, name);
}

Value filter_filesizeformat(Runtime&, const Value& in, const CallArgs& args) {
  const BoundArgs a("filesizeformat", args, {"binary"});
  const bool binary = a.flag(0, false);
  const auto bytes = in.is_number()   ? std::optional(in.as_float())
                     : in.is_string() ? parse_float(in.text())
                                      : std::nullopt;
  if (!bytes) throw Error("filesizeformat() needs a number, not '{}'", python_type_name(in));
  const double base = binary ? 1024 : 1000;
  if (*bytes == 1) return Value("1 Byte");
  if (*bytes < base) return Value(fmt::format("{} Bytes", whole(*bytes)));
  static constexpr std::string_view kPrefixes = "kMGTPEZY";
  double unit = base;
  for (size_t i = 0;; ++i) {
    unit *= base;
    if (*bytes < unit || i + 1 == kPrefixes.size()) {
      const char prefix = binary && i == 0 ? 'K' : kPrefixes[i];
      return Value(fmt::format("{:.1f} {}{}", base * *bytes / unit, prefix, binary ? "iB" : "B"));
    }
  }
}

constexpr FilterEntry kValueFilters[] = {{"abs", filter_abs},
                                         {"attr", filter_attr},
                                         {"count", filter_length},
                                         {"d", filter_default},
                                         {"default", filter_default},
                                         {"float", filter_float},
                                         {"int", filter_int},
                                         {"length", filter_length},
                                         {"round", filter_round},
                                         {"tojson", filter_tojson},
                                         {"filesizeformat", filter_filesizeformat}};

const std::vector<FilterEntry>& all_filters() {
  static const std::vector<FilterEntry> kAll = [] {
    std::vector<FilterEntry> all(std::begin(kValueFilters), std::end(kValueFilters));
    for (const auto group : {text_filters(), sequence_filters()}) all.insert(all.end(), group.begin(), group.end());
    return all;
  }();
  return kAll;
}

}  // namespace

int find_filter(std::string_view name) {
  const auto& all = all_filters();
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].name == name) return static_cast<int>(i);
  return -1;
}

Value apply_filter(Runtime& rt, int filter, const Value& input, const CallArgs& args) {
  return all_filters()[static_cast<size_t>(filter)].apply(rt, input, args);
}

}  // namespace braid
