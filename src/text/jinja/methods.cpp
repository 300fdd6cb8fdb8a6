// Methods of str, dict, list and tuple, as Python has them. Those that change a list or dict exist only as names that
// the sandbox refuses.
#include <algorithm>

#include "base/error.h"
#include "text/jinja/builtins.h"
#include "text/jinja/filters.h"
#include "text/jinja/python_text.h"

namespace braid {
namespace {

using Method = Value (*)(Runtime& rt, const Value& self, const CallArgs& args);
struct MethodEntry {
  std::string_view name;
  Method call;
};

std::vector<Value> values_of(Runtime& rt, const std::vector<std::string_view>& pieces, bool markup) {
  std::vector<Value> out;
  out.reserve(pieces.size());
  for (const std::string_view piece : pieces) {
    rt.charge(piece.size() + sizeof(Value));
    out.push_back(markup ? Value::markup(std::string(piece)) : Value(piece));
  }
  return out;
}

// An argument joined into a string: escaped when the string is markup, as markupsafe does.
std::string joined_argument(const Value& self, const std::string& text, bool argument_is_markup) {
  return self.is_markup() && !argument_is_markup ? html_escape(text) : text;
}

template <std::string (*F)(std::string_view)>
Value str_mapped(Runtime& rt, const Value& self, const CallArgs& args) {
  const BoundArgs a("this method", args, {});
  return like(rt, self, F(self.text()));
}

template <Side kSide>
Value str_strip(Runtime& rt, const Value& self, const CallArgs& args) {
  const BoundArgs a("strip", args, {"chars"});
  const bool blank = !a.has(0) || a.at(0).is_none();
  return like(rt, self, std::string(blank ? strip(self.text(), kSide) : strip_of(self.text(), a.string(0), kSide)));
}

template <bool kFromRight>
Value str_split(Runtime& rt, const Value& self, const CallArgs& args) {
  const BoundArgs a("split", args, {"sep", "maxsplit"});
  const std::string& text = self.text();
  const int64_t limit = a.integer(1, -1);
  if (!a.has(0) || a.at(0).is_none())
    return Value::list(
        values_of(rt, kFromRight ? rsplit_space(text, limit) : split_space(text, limit), self.is_markup()));
  const std::string& separator = a.string(0);
  if (separator.empty()) throw Error("empty separator");
  std::vector<std::string_view> pieces;
  std::string_view rest = text;
  while (limit < 0 || static_cast<int64_t>(pieces.size()) < limit) {
    const size_t at = kFromRight ? rest.rfind(separator) : rest.find(separator);
    if (at == std::string_view::npos) break;
    pieces.push_back(kFromRight ? rest.substr(at + separator.size()) : rest.substr(0, at));
    rest = kFromRight ? rest.substr(0, at) : rest.substr(at + separator.size());
  }
  pieces.push_back(rest);
  if (kFromRight) std::reverse(pieces.begin(), pieces.end());
  return Value::list(values_of(rt, pieces, self.is_markup()));
}

Value str_splitlines(Runtime& rt, const Value& self, const CallArgs& args) {
  const BoundArgs a("splitlines", args, {"keepends"});
  return Value::list(values_of(rt, split_lines(self.text(), a.flag(0, false)), self.is_markup()));
}

template <bool kFromRight>
Value str_partition(Runtime& rt, const Value& self, const CallArgs& args) {
  const BoundArgs a("partition", args, {"sep"}, 1);
  const std::string_view text = self.text();
  const std::string& separator = a.string(0);
  if (separator.empty()) throw Error("empty separator");
  const size_t at = kFromRight ? text.rfind(separator) : text.find(separator);
  std::vector<std::string_view> parts = {text, "", ""};
  if (at != std::string_view::npos)
    parts = {text.substr(0, at), text.substr(at, separator.size()), text.substr(at + separator.size())};
  else if (kFromRight)
    parts = {"", "", text};
  return Value::tuple(values_of(rt, parts, self.is_markup()));
}

Value str_join(Runtime& rt, const Value& self, const CallArgs& args) {
  const BoundArgs a("join", args, {"iterable"}, 1);
  std::string out;
  bool first = true;
  for (const Value& item : iterate(rt, a.at(0))) {
    if (!item.is_string()) throw Error("join() needs strings, found '{}'", python_type_name(item));
    if (!first) out += self.text();
    first = false;
    out += joined_argument(self, item.text(), item.is_markup());
    if (out.size() > rt.limits.output_bytes) rt.charge(out.size());
  }
  return like(rt, self, std::move(out));
}

Value str_replace(Runtime& rt, const Value& self, const CallArgs& args) {
  const BoundArgs a("replace", args, {"old", "new", "count"}, 2);
  const std::string from = joined_argument(self, a.string(0), a.at(0).is_markup());
  const std::string to = joined_argument(self, a.string(1), a.at(1).is_markup());
  return like(rt, self, replace(self.text(), from, to, a.integer(2, -1), rt.limits.output_bytes));
}

// The part of the text that [start:end] names, for startswith, endswith, find and count.
struct Window {
  std::string_view text;
  int64_t start;
  bool valid;  // false when start lies beyond the end, where not even "" is found
};

Window window(const Value& self, const BoundArgs& a, size_t first) {
  const std::string& text = self.text();
  const int64_t n = a.has(first) || a.has(first + 1) ? count_code_points(text) : 0;
  auto bound = [&](size_t i, int64_t fallback) {
    const int64_t v = a.integer(i, fallback);
    return v < 0 ? std::max<int64_t>(v + n, 0) : v;
  };
  const int64_t start = bound(first, 0);
  const int64_t end = a.has(first + 1) && !a.at(first + 1).is_none() ? std::min(bound(first + 1, n), n) : INT64_MAX;
  if (a.has(first) && (start > n || start > end)) return {"", start, false};
  const size_t from = byte_offset(text, start);
  const size_t to = end == INT64_MAX ? text.size() : byte_offset(text, end);
  return {std::string_view(text).substr(from, to - std::min(from, to)), start, start <= end};
}

template <bool kEnd>
Value str_affix(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs a(kEnd ? "endswith" : "startswith", args, {"affix", "start", "end"}, 1);
  const Window w = window(self, a, 1);
  auto matches = [&](const Value& affix) {
    if (!affix.is_string())
      throw Error("{} needs a string or a tuple of strings, not '{}'", kEnd ? "endswith" : "startswith",
                  python_type_name(affix));
    return w.valid && (kEnd ? w.text.ends_with(affix.text()) : w.text.starts_with(affix.text()));
  };
  const Value& affix = a.at(0);
  if (affix.is_undefined()) fail_undefined(affix);
  if (!affix.is_list() || affix.list_data().type != ListData::Type::kTuple) return matches(affix);
  const auto& all = affix.list_data().items;
  return std::any_of(all.begin(), all.end(), matches);
}

template <bool kFromRight, bool kMustExist>
Value str_find(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs a("find", args, {"sub", "start", "end"}, 1);
  const Window w = window(self, a, 1);
  const std::string& sub = a.string(0);
  const size_t at = !w.valid ? std::string_view::npos : kFromRight ? w.text.rfind(sub) : w.text.find(sub);
  if (at != std::string_view::npos) return w.start + count_code_points(w.text.substr(0, at));
  if (kMustExist) throw Error("substring not found");
  return -1;
}

Value str_count(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs a("count", args, {"sub", "start", "end"}, 1);
  const Window w = window(self, a, 1);
  const std::string& sub = a.string(0);
  if (!w.valid) return 0;
  if (sub.empty()) return count_code_points(w.text) + 1;
  int64_t n = 0;
  for (size_t at = w.text.find(sub); at != std::string_view::npos; at = w.text.find(sub, at + sub.size())) ++n;
  return n;
}

template <Side kSide>
Value str_justify(Runtime& rt, const Value& self, const CallArgs& args) {
  const BoundArgs a("justify", args, {"width", "fillchar"}, 1);
  const std::string fill = a.has(1) ? a.string(1) : " ";
  if (count_code_points(fill) != 1) throw Error("the fill character must be exactly one character long");
  const int64_t n = count_code_points(self.text());
  const int64_t width = a.integer(0, 0), missing = std::max<int64_t>(width - n, 0);
  rt.charge(static_cast<size_t>(std::min<int64_t>(missing, INT64_MAX / 8)) * fill.size());
  // Python's center puts the odd blank left when the width is odd.
  const int64_t left = kSide == Side::kRight ? missing : kSide == Side::kLeft ? 0 : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += self.text();
  for (int64_t i = left; i < missing; ++i) out += fill;
  return like(rt, self, std::move(out));
}

Value str_zfill(Runtime& rt, const Value& self, const CallArgs& args) {
  const BoundArgs a("zfill", args, {"width"}, 1);
  std::string text = self.text();
  const int64_t missing = a.integer(0, 0) - count_code_points(text);
  if (missing > 0) {
    rt.charge(static_cast<size_t>(missing));
    text.insert(!text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0, static_cast<size_t>(missing), '0');
  }
  return like(rt, self, std::move(text));
}

template <bool kSuffix>
Value str_remove_affix(Runtime& rt, const Value& self, const CallArgs& args) {
  const BoundArgs a("remove", args, {"affix"}, 1);
  std::string_view text = self.text();
  const std::string& affix = a.string(0);
  if (kSuffix && !affix.empty() && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!kSuffix && text.starts_with(affix)) text.remove_prefix(affix.size());
  return like(rt, self, std::string(text));
}

template <bool (*F)(char32_t)>
Value str_all(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs a("this method", args, {});
  const std::string& text = self.text();
  for (size_t at = 0; at < text.size();)
    if (!F(next_code_point(text, at))) return false;
  return !text.empty();
}

template <bool (*F)(char32_t), bool (*Other)(char32_t)>
Value str_cased(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs a("this method", args, {});
  const std::string& text = self.text();
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (Other(c)) return false;
    any = any || F(c);
  }
  return any;
}

Value str_istitle(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs a("istitle", args, {});
  const std::string& text = self.text();
  return upper(text) != lower(text) && title(text) == text;
}

Value str_isidentifier(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs a("isidentifier", args, {});
  const std::string& text = self.text();
  for (size_t at = 0; at < text.size();) {
    const bool first = at == 0;
    const char32_t c = next_code_point(text, at);
    if (!(c == '_' || is_alpha(c) || (!first && is_alnum(c)))) return false;
  }
  return !text.empty();
}

Value str_isascii(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs a("isascii", args, {});
  return std::all_of(self.text().begin(), self.text().end(),
                     [](char c) { return static_cast<unsigned char>(c) < 128; });
}

Value str_expandtabs(Runtime& rt, const Value& self, const CallArgs& args) {
  const BoundArgs a("expandtabs", args, {"tabsize"});
  const int64_t tab = std::clamp<int64_t>(a.integer(0, 8), 0, 1000);
  std::string out;
  int64_t column = 0;
  for (const std::string_view c : code_points(self.text())) {
    if (c == "\t") {
      const int64_t blanks = tab == 0 ? 0 : tab - column % tab;
      out.append(static_cast<size_t>(blanks), ' ');
      column += blanks;
    } else {
      out += c;
      column = c == "\n" || c == "\r" ? 0 : column + 1;
    }
    if (out.size() > rt.limits.output_bytes) rt.charge(out.size());
  }
  return like(rt, self, std::move(out));
}

Value str_format(Runtime& rt, const Value& self, const CallArgs& args) {
  std::string made = format_braces(rt, self.text(), args);
  return self.is_markup() ? Value::markup(std::move(made)) : Value(std::move(made));
}

constexpr MethodEntry kStringMethods[] = {
    {"capitalize", str_mapped<capitalize>},
    {"casefold", str_mapped<lower>},
    {"center", str_justify<Side::kBoth>},
    {"count", str_count},
    {"endswith", str_affix<true>},
    {"expandtabs", str_expandtabs},
    {"find", str_find<false, false>},
    {"format", str_format},
    {"index", str_find<false, true>},
    {"isalnum", str_all<is_alnum>},
    {"isalpha", str_all<is_alpha>},
    {"isascii", str_isascii},
    {"isdecimal", str_all<is_decimal_digit>},
    {"isdigit", str_all<is_decimal_digit>},
    {"isidentifier", str_isidentifier},
    {"islower", str_cased<is_lower, is_upper>},
    {"isnumeric", str_all<is_decimal_digit>},
    {"isprintable", str_all<is_printable>},
    {"isspace", str_all<is_python_space>},
    {"istitle", str_istitle},
    {"isupper", str_cased<is_upper, is_lower>},
    {"join", str_join},
    {"ljust", str_justify<Side::kLeft>},
    {"lower", str_mapped<lower>},
    {"lstrip", str_strip<Side::kLeft>},
    {"partition", str_partition<false>},
    {"removeprefix", str_remove_affix<false>},
    {"removesuffix", str_remove_affix<true>},
    {"replace", str_replace},
    {"rfind", str_find<true, false>},
    {"rindex", str_find<true, true>},
    {"rjust", str_justify<Side::kRight>},
    {"rpartition", str_partition<true>},
    {"rsplit", str_split<true>},
    {"rstrip", str_strip<Side::kRight>},
    {"split", str_split<false>},
    {"splitlines", str_splitlines},
    {"startswith", str_affix<false>},
    {"strip", str_strip<Side::kBoth>},
    {"swapcase", str_mapped<swapcase>},
    {"title", str_mapped<title>},
    {"upper", str_mapped<upper>},
    {"zfill", str_zfill},
};

enum class Part : uint8_t { kKeys, kValues, kItems };

template <Part kPart>
Value dict_view(Runtime& rt, const Value& self, const CallArgs& args) {
  const BoundArgs a("this method", args, {});
  static constexpr const char* kLabels[] = {"dict_keys", "dict_values", "dict_items"};
  const auto& items = self.dict_data().items;
  rt.charge(items.size() * sizeof(Value) * (kPart == Part::kItems ? 4 : 1));
  std::vector<Value> out;
  out.reserve(items.size());
  for (const auto& [key, value] : items)
    out.push_back(kPart == Part::kKeys ? key : kPart == Part::kValues ? value : Value::tuple({key, value}));
  return Value::list(std::move(out), ListData::Type::kView, kLabels[static_cast<size_t>(kPart)]);
}

Value dict_get(Runtime& rt, const Value& self, const CallArgs& args) {
  if (!args.named.empty()) throw Error("get() takes no keyword arguments");
  const BoundArgs a("get", args, {"key", "default"}, 1);
  if (!is_hashable(a.at(0))) throw Error("unhashable type: '{}'", python_type_name(a.at(0)));
  for (const auto& [key, value] : self.dict_data().items)
    if (equals(rt, key, a.at(0))) return value;
  return a.get(1, Value::none());
}

Value dict_copy(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs a("copy", args, {});
  return self;
}

constexpr MethodEntry kDictMethods[] = {{"copy", dict_copy},
                                        {"get", dict_get},
                                        {"items", dict_view<Part::kItems>},
                                        {"keys", dict_view<Part::kKeys>},
                                        {"values", dict_view<Part::kValues>}};

Value list_count(Runtime& rt, const Value& self, const CallArgs& args) {
  const BoundArgs a("count", args, {"value"}, 1);
  const auto& items = self.list_data().items;
  return int64_t{std::count_if(items.begin(), items.end(), [&](const Value& v) { return equals(rt, v, a.at(0)); })};
}

Value list_index(Runtime& rt, const Value& self, const CallArgs& args) {
  const BoundArgs a("index", args, {"value", "start", "stop"}, 1);
  const auto& items = self.list_data().items;
  const auto n = static_cast<int64_t>(items.size());
  auto bound = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + n : v, 0, n); };
  for (int64_t i = bound(a.integer(1, 0)); i < bound(a.integer(2, n)); ++i)
    if (equals(rt, items[static_cast<size_t>(i)], a.at(0))) return i;
  throw Error("{} is not in the list", repr(rt, a.at(0)));
}

Value list_copy(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs a("copy", args, {});
  return self;
}

constexpr MethodEntry kListMethods[] = {{"copy", list_copy}, {"count", list_count}, {"index", list_index}};

// ---- loop, cycler
Value loop_cycle(Runtime&, const Value& self, const CallArgs& args) {
  const auto& loop = static_cast<const Loop&>(*self.object());
  if (args.positional.empty()) throw Error("no items for cycling given");
  return args.positional[static_cast<size_t>(loop.index0) % args.positional.size()];
}

Value loop_changed(Runtime& rt, const Value& self, const CallArgs& args) {
  auto& loop = static_cast<Loop&>(*self.object());
  bool same = loop.changed_before && loop.last_changed.size() == args.positional.size();
  for (size_t i = 0; same && i < args.positional.size(); ++i)
    same = equals(rt, loop.last_changed[i], args.positional[i]);
  loop.changed_before = true;
  loop.last_changed = args.positional;
  return !same;
}

Value cycler_next(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs a("next", args, {});
  auto& cycler = static_cast<Cycler&>(*self.object());
  const Value current = cycler.items[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items.size();
  return current;
}

Value cycler_reset(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs a("reset", args, {});
  static_cast<Cycler&>(*self.object()).position = 0;
  return Value::none();
}

constexpr MethodEntry kLoopMethods[] = {{"changed", loop_changed}, {"cycle", loop_cycle}};
constexpr MethodEntry kCyclerMethods[] = {{"next", cycler_next}, {"reset", cycler_reset}};

std::span<const MethodEntry> methods_of(const Value& v) {
  if (v.is_string()) return kStringMethods;
  if (v.is_dict()) return kDictMethods;
  if (v.is_list()) {
    const auto type = v.list_data().type;
    if (type == ListData::Type::kList) return kListMethods;
    if (type == ListData::Type::kTuple || type == ListData::Type::kRange) return std::span(kListMethods).subspan(1);
  }
  if (dynamic_cast<const Loop*>(v.object()) != nullptr) return kLoopMethods;
  if (dynamic_cast<const Cycler*>(v.object()) != nullptr) return kCyclerMethods;
  return {};
}

const MethodEntry* lookup(const Value& v, std::string_view name) {
  for (const MethodEntry& entry : methods_of(v))
    if (entry.name == name) return &entry;
  return nullptr;
}

}  // namespace

MethodKind find_method(const Value& receiver, std::string_view name) {
  if (lookup(receiver, name) != nullptr) return MethodKind::kSafe;
  static constexpr std::string_view kListMutators[] = {"append", "clear",  "extend",  "insert",
                                                       "pop",    "remove", "reverse", "sort"};
  static constexpr std::string_view kDictMutators[] = {"clear", "pop", "popitem", "setdefault", "update"};
  auto has = [&](std::span<const std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (receiver.is_dict() && has(kDictMutators)) return MethodKind::kUnsafe;
  if (receiver.is_list() && receiver.list_data().type == ListData::Type::kList && has(kListMutators))
    return MethodKind::kUnsafe;
  return MethodKind::kNone;
}

Value call_method(Runtime& rt, const Value& receiver, std::string_view name, const CallArgs& args) {
  const MethodEntry* entry = lookup(receiver, name);
  if (entry == nullptr) throw Error("'{} object' has no method '{}'", python_type_name(receiver), name);
  rt.step();
  if (receiver.is_string()) rt.step(static_cast<int64_t>(receiver.text().size() / 64));
  return entry->call(rt, receiver, args);
}

}  // namespace braid
