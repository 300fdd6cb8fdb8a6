// Filters over lists, dicts and other iterables.
#include <algorithm>

#include "base/error.h"
#include "text/jinja/builtins.h"
#include "text/jinja/filters.h"
#include "text/jinja/python_text.h"
#include "text/jinja/stable_sort.h"

namespace braid {
namespace {

// An attribute path such as "function.name" or "0.id": integer parts index.
class AttributePath {
 public:
  explicit AttributePath(const Value& path) {
    if (path.is_string()) {
      std::string_view rest = path.text();
      while (true) {
        const size_t dot = rest.find('.');
        const std::string_view part = rest.substr(0, dot);
        const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
        const auto index = digits ? parse_int(part, 10) : std::nullopt;
        parts_.push_back(index ? Value(*index) : Value(part));
        if (dot == std::string_view::npos) break;
        rest.remove_prefix(dot + 1);
      }
    } else if (!path.is_none()) {
      parts_.push_back(path);
    }
  }

  Value get(Runtime& rt, Value item, const Value& fallback = Value::none()) const {
    for (const Value& part : parts_) {
      item = get_item(rt, item, part);
      if (!fallback.is_none() && item.is_undefined()) item = fallback;
    }
    return item;
  }

 private:
  std::vector<Value> parts_;
};

Value folded(const Value& value, bool case_sensitive) {
  return !case_sensitive && value.is_string() ? Value(lower(value.text())) : value;
}

struct Keyed {
  Value key, item;
};

void sort_keyed(Runtime& rt, std::vector<Keyed>& items, bool reverse) {
  stable_merge_sort(
      items, [&](const Keyed& a, const Keyed& b) { return reverse ? less(rt, b.key, a.key) : less(rt, a.key, b.key); });
}

Value filter_list(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("list", args, {});
  return Value::list(iterate(rt, in));
}

Value filter_join(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("join", args, {"d", "attribute"});
  const std::string separator = a.has(0) ? to_text(rt, a.at(0)) : "";
  const AttributePath path(a.get(1, Value::none()));
  std::string out;
  bool first = true;
  for (const Value& item : iterate(rt, in)) {
    if (!first) out += separator;
    first = false;
    append_text(rt, out, path.get(rt, item));
    if (out.size() > rt.limits.output_bytes) rt.charge(out.size());
  }
  return rt.text(std::move(out));
}

Value filter_first(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("first", args, {});
  auto items = iterate(rt, in);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : std::move(items.front());
}

bool is_reversible(const Value& in) { return in.is_string() || in.is_dict() || (in.is_list() && !in.is_generator()); }

Value filter_last(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("last", args, {});
  if (!is_reversible(in)) {
    if (in.is_undefined()) return Value::undefined("No last item, sequence was empty.");
    throw Error("'{}' object is not reversible", python_type_name(in));
  }
  auto items = iterate(rt, in);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : std::move(items.back());
}

Value filter_reverse(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("reverse", args, {});
  if (in.is_string()) return get_slice(rt, in, Value::none(), Value::none(), Value(-1));
  auto items = iterate(rt, in);
  std::reverse(items.begin(), items.end());
  return is_reversible(in) ? Value::generator(std::move(items)) : Value::list(std::move(items));
}

Value filter_items(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("items", args, {});
  if (in.is_undefined()) return Value::generator({});
  if (!in.is_dict()) throw Error("Can only get item pairs from a mapping.");
  return Value::generator(iterate(rt, call_method(rt, in, "items", {})));
}

Value filter_dictsort(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("dictsort", args, {"case_sensitive", "by", "reverse"});
  const std::string by = a.has(1) ? a.string(1) : "key";
  if (by != "key" && by != "value") throw Error("dictsort() sorts by \"key\" or \"value\"");
  if (in.is_undefined()) fail_undefined(in);
  if (!in.is_dict()) throw Error("dictsort() needs a dict, not '{}'", python_type_name(in));
  std::vector<Keyed> items;
  for (const auto& [key, value] : in.dict_data().items)
    items.push_back({folded(by == "key" ? key : value, a.flag(0, false)), Value::tuple({key, value})});
  sort_keyed(rt, items, a.flag(2, false));
  std::vector<Value> out;
  for (Keyed& k : items) out.push_back(std::move(k.item));
  return rt.list(std::move(out));
}

Value filter_sort(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<AttributePath> paths;
  const Value attribute = a.get(2, Value::none());
  if (attribute.is_string()) {
    for (const Value& part : iterate(rt, call_method(rt, attribute, "split", {{Value(",")}, {}})))
      paths.emplace_back(part);
  } else {
    paths.emplace_back(attribute);
  }
  std::vector<Keyed> items;
  for (Value& item : iterate(rt, in)) {
    std::vector<Value> key;
    for (const AttributePath& path : paths) key.push_back(folded(path.get(rt, item), a.flag(1, false)));
    items.push_back({Value::list(std::move(key)), std::move(item)});
  }
  sort_keyed(rt, items, a.flag(0, false));
  std::vector<Value> out;
  for (Keyed& k : items) out.push_back(std::move(k.item));
  return rt.list(std::move(out));
}

Value filter_unique(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("unique", args, {"case_sensitive", "attribute"});
  const AttributePath path(a.get(1, Value::none()));
  std::vector<Value> seen, out;
  for (const Value& item : iterate(rt, in)) {
    Value key = folded(path.get(rt, item), a.flag(0, false));
    if (!is_hashable(key)) throw Error("unhashable type: '{}'", python_type_name(key));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& s) { return equals(rt, s, key); })) continue;
    seen.push_back(std::move(key));
    out.push_back(item);
  }
  return Value::generator(std::move(out));
}

template <bool kMax>
Value filter_extreme(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a(kMax ? "max" : "min", args, {"case_sensitive", "attribute"});
  const AttributePath path(a.get(1, Value::none()));
  const auto items = iterate(rt, in);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const Value* best = &items[0];
  Value best_key = folded(path.get(rt, *best), a.flag(0, false));
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = folded(path.get(rt, items[i]), a.flag(0, false));
    if (kMax ? less(rt, best_key, key) : less(rt, key, best_key)) {
      best = &items[i];
      best_key = std::move(key);
    }
  }
  return *best;
}

Value filter_sum(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("sum", args, {"attribute", "start"});
  const AttributePath path(a.get(0, Value::none()));
  Value total = a.get(1, Value(0));
  if (total.is_string()) throw Error("sum() cannot sum strings; use join");
  for (const Value& item : iterate(rt, in)) total = binary(rt, Op::kAdd, total, path.get(rt, item));
  return total;
}

Value filter_groupby(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(a.at(0));
  std::vector<Keyed> items;
  for (Value& item : iterate(rt, in)) {
    Value key = folded(path.get(rt, item, a.get(1, Value::none())), a.flag(2, false));
    items.push_back({std::move(key), std::move(item)});
  }
  sort_keyed(rt, items, false);
  std::vector<Value> groups;
  for (size_t i = 0; i < items.size();) {
    std::vector<Value> members;
    const Value grouper = path.get(rt, items[i].item, a.get(1, Value::none()));
    const Value key = items[i].key;
    for (; i < items.size() && equals(rt, items[i].key, key); ++i) members.push_back(items[i].item);
    groups.push_back(Value::tuple({grouper, Value::list(std::move(members))}));
  }
  return rt.list(std::move(groups));
}

Value filter_batch(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("batch", args, {"linecount", "fill_with"}, 1);
  const int64_t size = a.integer(0, 1);
  std::vector<Value> rows, row;
  for (Value& item : iterate(rt, in)) {
    if (static_cast<int64_t>(row.size()) == size) rows.push_back(rt.list(std::exchange(row, {})));
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (const Value fill = a.get(1, Value::none()); !fill.is_none() && size > 0) {
      rt.charge(static_cast<size_t>(size) * sizeof(Value));
      while (static_cast<int64_t>(row.size()) < size) row.push_back(fill);
    }
    rows.push_back(rt.list(std::move(row)));
  }
  return Value::generator(std::move(rows));
}

Value filter_slice(Runtime& rt, const Value& in, const CallArgs& args) {
  const BoundArgs a("slice", args, {"slices", "fill_with"}, 1);
  const auto items = iterate(rt, in);
  const auto n = static_cast<int64_t>(items.size());
  const int64_t slices = a.integer(0, 1);
  if (slices == 0) throw Error("division by zero");
  if (slices < 0) return Value::generator({});
  rt.charge(static_cast<size_t>(std::min<int64_t>(slices, INT32_MAX)) * sizeof(Value));
  std::vector<Value> out;
  auto next = items.begin();
  for (int64_t i = 0; i < slices; ++i) {
    const bool extra = i < n % slices;
    const auto end = next + n / slices + extra;
    std::vector<Value> part(next, end);
    next = end;
    if (const Value fill = a.get(1, Value::none()); !fill.is_none() && !extra) part.push_back(fill);
    out.push_back(rt.list(std::move(part)));
  }
  return Value::generator(std::move(out));
}

// None and 0, which cannot be iterated, count as empty in map, select and their like.
bool yields_nothing(const Value& in) { return !is_iterable(in) && !truth(in); }

Value filter_map(Runtime& rt, const Value& in, const CallArgs& args) {
  if (yields_nothing(in)) return Value::generator({});
  std::vector<Value> out;
  if (args.positional.empty()) {
    const BoundArgs a("map", args, {"attribute", "default"}, 1);
    const AttributePath path(a.at(0));
    for (const Value& item : iterate(rt, in)) out.push_back(path.get(rt, item, a.get(1, Value::none())));
    return Value::generator(std::move(out));
  }
  if (!args.positional[0].is_string()) throw Error("map() needs the name of a filter");
  const int filter = find_filter(args.positional[0].text());
  if (filter < 0) throw Error("no filter named '{}'", args.positional[0].text());
  const CallArgs rest{{args.positional.begin() + 1, args.positional.end()}, args.named};
  const Runtime::Level level(rt);  // 'map' may map over maps
  for (const Value& item : iterate(rt, in)) out.push_back(apply_filter(rt, filter, item, rest));
  return Value::generator(std::move(out));
}

template <bool kKeep, bool kByAttribute>
Value filter_select(Runtime& rt, const Value& in, const CallArgs& args) {
  const size_t offset = kByAttribute ? 1 : 0;
  if (yields_nothing(in)) return Value::generator({});
  if (args.positional.size() < offset) throw Error("this filter needs the name of an attribute");
  const AttributePath path(kByAttribute ? args.positional[0] : Value::none());
  int test = -1;
  CallArgs rest;
  if (args.positional.size() > offset) {
    const Value& name = args.positional[offset];
    test = name.is_string() ? find_test(name.text()) : -1;
    if (test < 0) throw Error("no test named '{}'", to_text(rt, name));
    rest = {{args.positional.begin() + static_cast<std::ptrdiff_t>(offset) + 1, args.positional.end()}, args.named};
  }
  std::vector<Value> out;
  for (const Value& item : iterate(rt, in)) {
    const Value subject = path.get(rt, item);
    const bool holds = test < 0 ? truth(subject) : apply_test(rt, test, subject, rest);
    if (holds == kKeep) out.push_back(item);
  }
  return Value::generator(std::move(out));
}

constexpr FilterEntry kFilters[] = {{"batch", filter_batch},
                                    {"dictsort", filter_dictsort},
                                    {"first", filter_first},
                                    {"groupby", filter_groupby},
                                    {"items", filter_items},
                                    {"join", filter_join},
                                    {"last", filter_last},
                                    {"list", filter_list},
                                    {"map", filter_map},
                                    {"max", filter_extreme<true>},
                                    {"min", filter_extreme<false>},
                                    {"reject", filter_select<false, false>},
                                    {"rejectattr", filter_select<false, true>},
                                    {"reverse", filter_reverse},
                                    {"select", filter_select<true, false>},
                                    {"selectattr", filter_select<true, true>},
                                    {"slice", filter_slice},
                                    {"sort", filter_sort},
                                    {"sum", filter_sum},
                                    {"unique", filter_unique}};

}  // namespace

std::span<const FilterEntry> sequence_filters() { return kFilters; }

}  // namespace braid
