// Filters from text to text.
#include <algorithm>

#include "base/error.h"
#include "text/jinja/builtins.h"
#include "text/jinja/filters.h"
#include "text/jinja/python_text.h"

namespace braid {
namespace {

template <std::string (*F)(std::string_view)>
Value filter_mapped(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("this filter", args, {});
  return like(rt, in, F(to_text(rt, in)));
}

// Jinja's title, unlike str.title: words start after blanks and -([{<.
std::string title_words(std::string_view text) {
  std::string out;
  bool at_start = true;
  for (const std::string_view c : code_points(text)) {
    size_t at = 0;
    const bool separates = c.find_first_of("-({[<") == 0 || is_python_space(next_code_point(c, at));
    out += separates ? std::string(c) : at_start ? upper(c) : lower(c);
    at_start = separates;
  }
  return out;
}

Value filter_string(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("string", args, {});
  return in.is_string() ? in : Value(to_text(rt, in));
}

Value filter_safe(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("safe", args, {});
  return in.is_markup() ? in : Value::markup(to_text(rt, in));
}

Value filter_escape(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("escape", args, {});
  if (in.is_markup()) return in;
  std::string escaped = html_escape(to_text(rt, in));
  rt.charge(escaped.size());
  return Value::markup(std::move(escaped));
}

Value filter_forceescape(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("forceescape", args, {});
  std::string escaped = html_escape(to_text(rt, in));
  rt.charge(escaped.size());
  return Value::markup(std::move(escaped));
}

Value filter_trim(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("trim", args, {"chars"});
  const std::string text = to_text(rt, in);
  const bool blank = !a.has(0) || a.at(0).is_none();
  return like(rt, in, std::string(blank ? strip(text) : strip_of(text, a.string(0), Side::kBoth)));
}

Value filter_replace(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("replace", args, {"old", "new", "count"}, 2);
  const std::string text = to_text(rt, in), from = to_text(rt, a.at(0)), to = to_text(rt, a.at(1));
  return rt.text(replace(text, from, to, a.integer(2, -1), rt.limits.output_bytes));
}

Value filter_indent(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("indent", args, {"width", "first", "blank"});
  if (in.is_undefined()) fail_undefined(in);
  if (!in.is_string()) throw Error("indent needs a string, not '{}'", python_type_name(in));
  const Value width = a.get(0, Value(4));
  std::string indention;
  if (width.is_string())
    indention = width.text();
  else
    indention = std::string(static_cast<size_t>(std::clamp<int64_t>(a.integer(0, 4), 0, 10'000)), ' ');
  const std::string text = in.text() + "\n";  // so that a text without lines has one
  std::string out;
  size_t n = 0;
  for (const std::string_view line : split_lines(text, false)) {
    if (n > 0) out += '\n';
    const bool indents = n == 0 ? a.flag(1, false) : a.flag(2, false) || !line.empty();
    if (indents) out += indention;
    out += line;
    if (out.size() > rt.limits.output_bytes) rt.charge(out.size());
    ++n;
  }
  return like(rt, in, std::move(out));
}

Value filter_center(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("center", args, {"width"});
  return call_method(rt, in.is_string() ? in : Value(to_text(rt, in)), "center", {{Value(a.integer(0, 80))}, {}});
}

Value filter_format(Runtime& rt, const Value& in, const CallArgs& args) {
  if (!args.positional.empty() && !args.named.empty())
    throw Error("format() takes positional or named values, not both");
  const std::string text = to_text(rt, in);
  if (args.named.empty()) return like(rt, in, format_percent(rt, text, Value::tuple(args.positional)));
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, value] : args.named) items.emplace_back(Value(key), value);
  return like(rt, in, format_percent(rt, text, Value::dict(std::move(items))));
}

Value filter_truncate(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("truncate", args, {"length", "killwords", "end", "leeway"});
  const std::string end = a.has(2) ? a.string(2) : "...";
  const int64_t limit = a.integer(0, 255), leeway = a.integer(3, 5), end_length = count_code_points(end);
  if (limit < end_length) throw Error("truncate() needs a length of at least {}", end_length);
  if (leeway < 0) throw Error("truncate() needs a leeway of at least 0");
  if (length(rt, in) <= limit + leeway) return in;
  if (!in.is_string()) throw Error("truncate() needs a string, not '{}'", python_type_name(in));
  std::string kept = in.text().substr(0, byte_offset(in.text(), limit - end_length));
  if (!a.flag(1, false))
    if (const size_t blank = kept.rfind(' '); blank != std::string::npos) kept.resize(blank);
  return like(rt, in, kept + end);
}

Value filter_wordcount(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("wordcount", args, {});
  const std::string text = to_text(rt, in);
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    const bool part = c == '_' || is_alnum(c);
    words += part && !inside;
    inside = part;
  }
  return words;
}

std::string url_quote(std::string_view text, bool query) {
  std::string out;
  for (const char c : text) {
    const bool plain = (static_cast<unsigned char>(c) < 128 && is_alnum(static_cast<unsigned char>(c))) ||
                       std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !query);
    if (plain)
      out += c;
    else if (c == ' ' && query)
      out += '+';
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

Value filter_urlencode(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("urlencode", args, {});
  if (in.is_string() || !is_iterable(in)) return rt.text(url_quote(to_text(rt, in), false));
  const Value pairs = in.is_dict() ? call_method(rt, in, "items", {}) : in;
  std::string out;
  for (const Value& pair : iterate(rt, pairs)) {
    const auto parts = iterate(rt, pair);
    if (parts.size() != 2) throw Error("urlencode() needs pairs");
    if (!out.empty()) out += '&';
    out += fmt::format("{}={}", url_quote(to_text(rt, parts[0]), true), url_quote(to_text(rt, parts[1]), true));
  }
  return rt.text(std::move(out));
}

Value filter_striptags(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("striptags", args, {});
  std::string text = to_text(rt, in);
  for (size_t open = text.find("<!--"); open != std::string::npos; open = text.find("<!--")) {
    const size_t close = text.find("-->", open);
    if (close == std::string::npos) break;
    text.erase(open, close + 3 - open);
  }
  std::string kept;
  for (size_t at = 0; at < text.size();) {
    const size_t open = std::min(text.find('<', at), text.size());
    const size_t close = text.find('>', open);
    kept += text.substr(at, open - at);
    if (close == std::string::npos) {
      kept += text.substr(open);
      break;
    }
    at = close + 1;
  }
  std::string out;
  for (const std::string_view word : split_space(kept, -1)) {
    if (!out.empty()) out += ' ';
    out += word;
  }
  for (const auto& [entity, plain] :
       {std::pair{"&lt;", "<"}, {"&gt;", ">"}, {"&#34;", "\""}, {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}})
    out = replace(out, entity, plain, -1, rt.limits.output_bytes);
  return rt.text(std::move(out));
}

constexpr FilterEntry kFilters[] = {{"capitalize", filter_mapped<capitalize>},
                                    {"center", filter_center},
                                    {"e", filter_escape},
                                    {"escape", filter_escape},
                                    {"forceescape", filter_forceescape},
                                    {"format", filter_format},
                                    {"indent", filter_indent},
                                    {"lower", filter_mapped<lower>},
                                    {"replace", filter_replace},
                                    {"safe", filter_safe},
                                    {"string", filter_string},
                                    {"striptags", filter_striptags},
                                    {"title", filter_mapped<title_words>},
                                    {"trim", filter_trim},
                                    {"truncate", filter_truncate},
                                    {"upper", filter_mapped<upper>},
                                    {"urlencode", filter_urlencode},
                                    {"wordcount", filter_wordcount}};

}  // namespace

std::span<const FilterEntry> text_filters() { return kFilters; }

}  // namespace braid
