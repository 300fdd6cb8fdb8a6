// Reaching into values: iteration, length, attributes, items, slices; and the bookkeeping of Runtime and of arguments.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "text/jinja/builtins.h"
#include "text/jinja/python_text.h"
#include "text/jinja/runtime.h"

namespace braid {
namespace {

struct SliceRange {
  int64_t start, stop, step, count;
};

// Python's slice.indices.
SliceRange slice_range(int64_t length, const Value& start, const Value& stop, const Value& step) {
  auto bound = [&](const Value& v, int64_t fallback, int64_t low, int64_t high) {
    if (v.is_none()) return fallback;
    if (!v.is_integral()) throw Error("slice bounds must be integers, not '{}'", python_type_name(v));
    const int64_t i = v.as_int();
    return i < 0 ? std::max(i + length, low) : std::min(i, high);
  };
  SliceRange r{0, 0, 1, 0};
  if (!step.is_none()) {
    if (!step.is_integral()) throw Error("a slice's step must be an integer, not '{}'", python_type_name(step));
    r.step = std::max<int64_t>(step.as_int(), -INT64_MAX);
  }
  if (r.step == 0) throw Error("a slice's step cannot be zero");
  const bool forward = r.step > 0;
  r.start = bound(start, forward ? 0 : length - 1, forward ? 0 : -1, forward ? length : length - 1);
  r.stop = bound(stop, forward ? length : -1, forward ? 0 : -1, forward ? length : length - 1);
  if (forward && r.start < r.stop) r.count = (r.stop - r.start - 1) / r.step + 1;
  if (!forward && r.stop < r.start) r.count = (r.start - r.stop - 1) / -r.step + 1;
  return r;
}

std::vector<Value> characters(Runtime& rt, const std::string& text) {
  rt.charge(text.size() * 32);
  std::vector<Value> out;
  for (const std::string_view c : code_points(text)) out.emplace_back(c);
  return out;
}

Value missing_item(const Value& value, const Value& key, Runtime& rt) {
  if (value.is_none()) return Value::undefined(fmt::format("None has no element {}", repr(rt, key)));
  const std::string what =
      key.is_string() ? fmt::format("attribute '{}'", key.text()) : fmt::format("element {}", repr(rt, key));
  return Value::undefined(fmt::format("'{} object' has no {}", python_type_name(value), what));
}

Value loop_attribute(const Loop& loop, const std::string& name) {
  const auto n = static_cast<int64_t>(loop.items.size());
  const int64_t i = loop.index0;
  if (name == "index") return i + 1;
  if (name == "index0") return i;
  if (name == "first") return i == 0;
  if (name == "last") return i + 1 == n;
  if (name == "length") return n;
  if (name == "revindex") return n - i;
  if (name == "revindex0") return n - i - 1;
  if (name == "depth") return loop.depth0 + 1;
  if (name == "depth0") return loop.depth0;
  if (name == "previtem")
    return i > 0 ? loop.items[static_cast<size_t>(i - 1)] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return i + 1 < n ? loop.items[static_cast<size_t>(i + 1)] : Value::undefined("there is no next item");
  return Value::undefined(fmt::format("'LoopContext object' has no attribute '{}'", name));
}

Value macro_attribute(const Macro& macro, const std::string& name) {
  if (name == "name") return macro.code->name;
  if (name == "caller") return macro.code->uses_caller;
  if (name == "catch_kwargs") return macro.code->uses_kwargs;
  if (name == "catch_varargs") return macro.code->uses_varargs;
  if (name == "arguments") {
    std::vector<Value> names;
    for (const Parameter& p : macro.code->parameters) names.emplace_back(p.name);
    return Value::tuple(std::move(names));
  }
  return Value::undefined(fmt::format("'Macro object' has no attribute '{}'", name));
}

Value hidden_attribute(const Value& value, const std::string& name) {
  return Value::undefined(
      fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, python_type_name(value)));
}

// What Python's getattr finds, or nullopt where it raises AttributeError.
std::optional<Value> python_attribute(Runtime& rt, const Value& value, const std::string& name) {
  // Python's types have dunder names only; others that start with an underscore fall through to items.
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) return hidden_attribute(value, name);
  if (Object* object = value.object()) {
    if (const auto* loop = dynamic_cast<const Loop*>(object)) {
      if (name != "cycle" && name != "changed") return loop_attribute(*loop, name);
    } else if (const auto* space = dynamic_cast<const Namespace*>(object)) {
      for (const auto& [key, held] : space->fields)
        if (key == name) return held;
      return std::nullopt;
    } else if (const auto* macro = dynamic_cast<const Macro*>(object)) {
      return macro_attribute(*macro, name);
    } else if (const auto* cycler = dynamic_cast<const Cycler*>(object); cycler != nullptr && name == "current") {
      return cycler->items[cycler->position];
    }
  }
  switch (find_method(value, name)) {
    case MethodKind::kNone:
      return std::nullopt;
    case MethodKind::kUnsafe:
      return hidden_attribute(value, name);
    case MethodKind::kSafe:
      break;
  }
  auto* method = rt.make<Callable>();
  method->receiver = value;
  method->name = name;
  return Value(method);
}

// What Python's value[key] finds, or nullopt where it raises TypeError or LookupError.
std::optional<Value> python_item(Runtime& rt, const Value& value, const Value& key) {
  if (value.is_dict()) {
    if (key.is_string()) {
      const Value* found = value.find(key.text());
      return found == nullptr ? std::nullopt : std::optional<Value>(*found);
    }
    for (const auto& [k, item] : value.dict_data().items)
      if (equals(rt, k, key)) return item;
    return std::nullopt;
  }
  if (!key.is_integral()) return std::nullopt;
  int64_t i = key.as_int();
  if (value.is_list() && !value.is_generator() && value.list_data().type != ListData::Type::kView) {
    const auto& items = value.list_data().items;
    const auto n = static_cast<int64_t>(items.size());
    if (i < 0) i += n;
    if (i < 0 || i >= n) return std::nullopt;
    return items[static_cast<size_t>(i)];
  }
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.text();
  rt.step(1 + static_cast<int64_t>(text.size() / 64));
  const int64_t n = i < 0 ? count_code_points(text) : 0;
  if (i < 0) i += n;
  if (i < 0) return std::nullopt;
  const size_t begin = byte_offset(text, i);
  if (begin >= text.size()) return std::nullopt;
  size_t end = begin;
  next_code_point(text, end);
  return value.is_markup() ? Value::markup(text.substr(begin, end - begin)) : Value(text.substr(begin, end - begin));
}

}  // namespace

void Runtime::charge(size_t bytes) {
  if (bytes > limits.output_bytes) throw Error("the template makes a value of more than {} bytes", limits.output_bytes);
  step(static_cast<int64_t>(bytes / 64));
  if ((bytes_left_ -= static_cast<int64_t>(bytes)) < 0)
    throw Error("the template needs more than {} bytes of memory", limits.total_bytes);
}

void Runtime::fail_steps() const { throw Error("the template takes more than {} steps", limits.steps); }

void Runtime::fail_depth() {
  --depth_;  // this level's destructor does not run
  throw Error("the template nests more than {} levels deep", limits.depth);
}

bool is_iterable(const Value& value) {
  if (const Object* object = value.object()) return dynamic_cast<const Loop*>(object) != nullptr;
  return value.is_undefined() || value.is_string() || value.is_list() || value.is_dict();
}

std::vector<Value> iterate(Runtime& rt, const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      return {};
    case Value::Kind::kString:
      return characters(rt, value.text());
    case Value::Kind::kDict: {
      rt.charge(value.dict_data().items.size() * sizeof(Value));
      std::vector<Value> keys;
      for (const auto& [key, item] : value.dict_data().items) keys.push_back(key);
      return keys;
    }
    case Value::Kind::kList: {
      const ListData& list = value.list_data();
      rt.charge(list.items.size() * sizeof(Value));
      if (list.type != ListData::Type::kGenerator) return list.items;
      const auto from = static_cast<std::ptrdiff_t>(std::exchange(list.consumed, list.items.size()));
      return {list.items.begin() + from, list.items.end()};
    }
    default:
      break;
  }
  throw Error("'{}' object is not iterable", python_type_name(value));
}

int64_t length(Runtime& rt, const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      return 0;
    case Value::Kind::kString:
      rt.step(static_cast<int64_t>(value.text().size() / 64));
      return count_code_points(value.text());
    case Value::Kind::kDict:
      return static_cast<int64_t>(value.dict_data().items.size());
    case Value::Kind::kList:
      if (value.is_generator()) break;
      return static_cast<int64_t>(value.list_data().items.size());
    case Value::Kind::kObject:
      if (const auto* loop = dynamic_cast<const Loop*>(value.object())) return static_cast<int64_t>(loop->items.size());
      break;
    default:
      break;
  }
  throw Error("object of type '{}' has no len()", python_type_name(value));
}

bool is_hashable(const Value& value) {
  if (value.is_dict()) return false;
  if (!value.is_list()) return true;
  const ListData& list = value.list_data();
  if (list.type != ListData::Type::kTuple) return list.type != ListData::Type::kList;
  return std::all_of(list.items.begin(), list.items.end(), is_hashable);
}

Value get_attribute(Runtime& rt, const Value& value, const std::string& name) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_dict()) {  // methods first, as Python finds them before the items
    if (find_method(value, name) == MethodKind::kNone)
      if (const Value* found = value.find(name); found != nullptr && !name.starts_with("__")) return *found;
  }
  if (auto found = python_attribute(rt, value, name)) return *found;
  if (auto found = python_item(rt, value, Value(name))) return *found;
  if (value.is_none()) return Value::undefined(fmt::format("'None' has no attribute '{}'", name));
  return missing_item(value, Value(name), rt);
}

Value get_item(Runtime& rt, const Value& value, const Value& key) {
  if (value.is_undefined()) fail_undefined(value);
  if (auto found = python_item(rt, value, key)) return *found;
  if (key.is_string())
    if (auto found = python_attribute(rt, value, key.text())) return *found;
  return missing_item(value, key, rt);
}

Value get_slice(Runtime& rt, const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_string()) {
    const std::string& text = value.text();
    rt.charge(text.size());
    const bool ascii =
        std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 128; });
    const SliceRange r =
        slice_range(ascii ? static_cast<int64_t>(text.size()) : count_code_points(text), start, stop, step);
    std::string out;
    if (r.count > 0 && r.step == 1) {
      const size_t begin = ascii ? static_cast<size_t>(r.start) : byte_offset(text, r.start);
      const auto rest = std::string_view(text).substr(begin);
      out = rest.substr(0, ascii ? static_cast<size_t>(r.count) : byte_offset(rest, r.count));
    } else if (r.count > 0) {
      const auto all = code_points(text);
      for (int64_t i = 0; i < r.count; ++i) out += all[static_cast<size_t>(r.start + i * r.step)];
    }
    return value.is_markup() ? Value::markup(std::move(out)) : Value(std::move(out));
  }
  if (value.is_list() && !value.is_generator() && value.list_data().type != ListData::Type::kView) {
    const ListData& list = value.list_data();
    const SliceRange r = slice_range(static_cast<int64_t>(list.items.size()), start, stop, step);
    std::vector<Value> out;
    for (int64_t i = 0; i < r.count; ++i) out.push_back(list.items[static_cast<size_t>(r.start + i * r.step)]);
    return rt.list(std::move(out), list.type == ListData::Type::kTuple ? list.type : ListData::Type::kList);
  }
  throw Error("'{}' object has no slices", python_type_name(value));  // unlike an item, which would be undefined
}

BoundArgs::BoundArgs(std::string_view callee, const CallArgs& args, std::initializer_list<std::string_view> names,
                     size_t required)
    : callee_(callee), given_(names.size(), nullptr) {
  if (args.positional.size() > names.size())
    throw Error("{}() takes at most {} arguments, {} were given", callee, names.size(), args.positional.size());
  for (size_t i = 0; i < args.positional.size(); ++i) given_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto* known = std::find(names.begin(), names.end(), name);
    if (known == names.end()) throw Error("{}() has no argument '{}'", callee, name);
    const Value*& slot = given_[static_cast<size_t>(known - names.begin())];
    if (slot != nullptr) throw Error("{}() was given '{}' twice", callee, name);
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (given_[i] == nullptr) throw Error("{}() needs the argument '{}'", callee, *(names.begin() + i));
}

int64_t BoundArgs::integer(size_t i, int64_t fallback) const {
  if (!has(i) || at(i).is_none()) return fallback;
  if (!at(i).is_integral()) throw Error("{}() needs an integer, not '{}'", callee_, python_type_name(at(i)));
  return at(i).as_int();
}

const std::string& BoundArgs::string(size_t i) const {
  if (!at(i).is_string()) throw Error("{}() needs a string, not '{}'", callee_, python_type_name(at(i)));
  return at(i).text();
}

}  // namespace braid
