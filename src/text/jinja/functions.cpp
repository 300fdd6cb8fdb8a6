// The functions of the environment: Jinja's own (range, namespace, dict, cycler, joiner) and those that chat templates
// are promised (raise_exception, strftime_now).
#include <algorithm>
#include <ctime>

#include "base/error.h"
#include "text/jinja/builtins.h"

namespace braid {
namespace {

Value call_range(Runtime& rt, const CallArgs& args) {
  if (!args.named.empty()) throw Error("range() takes no keyword arguments");
  const auto& p = args.positional;
  if (p.empty() || p.size() > 3) throw Error("range() takes 1 to 3 arguments, {} were given", p.size());
  for (const Value& v : p) {
    if (v.is_undefined()) fail_undefined(v);
    if (!v.is_integral()) throw Error("range() needs integers, not '{}'", python_type_name(v));
  }
  const int64_t start = p.size() > 1 ? p[0].as_int() : 0;
  const int64_t stop = p[p.size() > 1 ? 1 : 0].as_int();
  const int64_t step = p.size() > 2 ? p[2].as_int() : 1;
  if (step == 0) throw Error("range()'s step cannot be zero");
  constexpr int64_t kMaxRange = 100'000;  // the sandbox's own limit
  constexpr int64_t kFar = int64_t{1} << 60;
  if (std::max({start, stop, step}) > kFar || std::min({start, stop, step}) < -kFar)
    throw Error("range() of numbers beyond 2^60");
  const int64_t count = step > 0 ? (stop - start + step - 1) / step : (start - stop - step - 1) / -step;
  if (count > kMaxRange) throw Error("range() of more than {} items", kMaxRange);
  std::vector<Value> items;
  for (int64_t i = 0; i < count; ++i) items.emplace_back(start + i * step);
  rt.charge(items.size() * sizeof(Value));
  std::string label =
      step == 1 ? fmt::format("range({}, {})", start, stop) : fmt::format("range({}, {}, {})", start, stop, step);
  return Value::list(std::move(items), ListData::Type::kRange, std::move(label));
}

// What dict(...) and namespace(...) accept: a mapping or pairs, then names.
std::vector<std::pair<Value, Value>> collect_items(Runtime& rt, std::string_view callee, const CallArgs& args) {
  if (args.positional.size() > 1) throw Error("{}() takes at most 1 positional argument", callee);
  std::vector<std::pair<Value, Value>> items;
  auto put = [&](const Value& key, const Value& value) {
    if (!is_hashable(key)) throw Error("unhashable type: '{}'", python_type_name(key));
    for (auto& [k, v] : items)
      if (equals(rt, k, key)) {
        v = value;
        return;
      }
    items.emplace_back(key, value);
  };
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is_dict()) {
      items = from.dict_data().items;
    } else {
      for (const Value& pair : iterate(rt, from)) {
        const auto parts = iterate(rt, pair);
        if (parts.size() != 2) throw Error("{}() needs pairs, found {} items", callee, parts.size());
        put(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) put(Value(name), value);
  return items;
}

Value call_namespace(Runtime& rt, const CallArgs& args) {
  auto* made = rt.make<Namespace>();
  for (auto& [key, value] : collect_items(rt, "namespace", args))
    if (key.is_string()) made->fields.emplace_back(key.text(), std::move(value));
  return Value(made);
}

Value call_dict(Runtime& rt, const CallArgs& args) { return Value::dict(collect_items(rt, "dict", args)); }

Value call_cycler(Runtime& rt, const CallArgs& args) {
  if (args.positional.empty()) throw Error("at least one item has to be provided");
  auto* made = rt.make<Cycler>();
  made->items = args.positional;
  return Value(made);
}

Value call_joiner(Runtime& rt, const CallArgs& args) {
  const BoundArgs a("joiner", args, {"sep"});
  auto* made = rt.make<Joiner>();
  made->separator = a.has(0) ? to_text(rt, a.at(0)) : ", ";
  return Value(made);
}

Value call_raise_exception(Runtime& rt, const CallArgs& args) {
  const BoundArgs a("raise_exception", args, {"message"}, 1);
  throw Error(to_text(rt, a.at(0)));
}

Value call_strftime_now(Runtime& rt, const CallArgs& args) {
  const BoundArgs a("strftime_now", args, {"format"}, 1);
  const std::string& format = a.string(0);
  if (format.size() > 1000) throw Error("a date format of more than 1000 bytes");
  std::string out(format.size() * 64 + 64, '\0');  // the longest directive, %c, prints under 64 bytes in the C locale
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &rt.now));
  return Value(std::move(out));
}

struct FunctionEntry {
  std::string_view name;
  Value (*call)(Runtime& rt, const CallArgs& args);
};

constexpr FunctionEntry kFunctions[] = {{"range", call_range},
                                        {"namespace", call_namespace},
                                        {"dict", call_dict},
                                        {"cycler", call_cycler},
                                        {"joiner", call_joiner},
                                        {"raise_exception", call_raise_exception},
                                        {"strftime_now", call_strftime_now}};

}  // namespace

bool is_function(std::string_view name) {
  return std::any_of(std::begin(kFunctions), std::end(kFunctions), [&](const auto& f) { return f.name == name; });
}

Value call_function(Runtime& rt, std::string_view name, const CallArgs& args) {
  for (const FunctionEntry& f : kFunctions)
    if (f.name == name) return f.call(rt, args);
  throw Error("there is no function '{}'", name);
}

}  // namespace braid
