// Construction of template values and their conversion from JSON.
#include "text/jinja/value.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/jinja/object.h"

namespace braid {
namespace {

int checked_depth(int children) {
  if (children >= kMaxValueDepth) throw Error("a value is nested more than {} levels deep", kMaxValueDepth);
  return children + 1;
}

Value convert(const OrderedJson& json, int level) {
  if (level > kMaxValueDepth) throw Error("a JSON value is nested more than {} levels deep", kMaxValueDepth);
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return json.get<bool>();
    case OrderedJson::value_t::number_integer:
      return json.get<int64_t>();
    case OrderedJson::value_t::number_unsigned:
      // Python has no limit here; beyond int64 the value keeps its size and loses its last digits.
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return json.get<double>();
      return json.get<int64_t>();
    case OrderedJson::value_t::number_float:
      return json.get<double>();
    case OrderedJson::value_t::string:
      return json.get_ref<const std::string&>();
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& element : json) items.push_back(convert(element, level + 1));
      return Value::list(std::move(items));
    }
    case OrderedJson::value_t::object: {
      std::vector<std::pair<Value, Value>> items;
      items.reserve(json.size());
      for (const auto& [key, element] : json.items()) items.emplace_back(key, convert(element, level + 1));
      return Value::dict(std::move(items));
    }
    default:
      return Value::none();
  }
}

}  // namespace

Value Value::undefined(std::string hint) {
  Value v;
  v.data_ = std::make_shared<const UndefinedData>(UndefinedData{std::move(hint)});
  return v;
}

Value Value::markup(std::string text) {
  Value v;
  v.data_ = std::make_shared<const StringData>(StringData{std::move(text), true});
  return v;
}

Value Value::list(std::vector<Value> items, ListData::Type type, std::string label) {
  int below = 0;
  for (const Value& item : items) below = std::max(below, item.depth());
  ListData made;
  made.items = std::move(items);
  made.type = type;
  made.label = std::move(label);
  made.depth = checked_depth(below);
  return Value(List(std::make_shared<const ListData>(std::move(made))));
}

Value Value::dict(std::vector<std::pair<Value, Value>> unique_items) {
  int below = 0;
  for (const auto& [key, item] : unique_items) below = std::max({below, key.depth(), item.depth()});
  Value v;
  v.data_ = std::make_shared<const DictData>(DictData{std::move(unique_items), checked_depth(below)});
  return v;
}

Value Value::from_json(const OrderedJson& json) { return convert(json, 1); }

const Value* Value::find(std::string_view key) const {
  for (const auto& [k, item] : dict_data().items)
    if (k.is_string() && k.text() == key) return &item;
  return nullptr;
}

const void* Value::identity() const {
  return std::visit(
      [](const auto& held) -> const void* {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, Object*>)
          return held;
        else if constexpr (requires { held.get(); })
          return held.get();
        else
          return nullptr;
      },
      data_);
}

int Value::depth() const {
  if (is_list()) return list_data().depth;
  if (is_dict()) return dict_data().depth;
  return 0;
}

const char* python_type_name(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      return "Undefined";
    case Value::Kind::kNone:
      return "NoneType";
    case Value::Kind::kBool:
      return "bool";
    case Value::Kind::kInt:
      return "int";
    case Value::Kind::kFloat:
      return "float";
    case Value::Kind::kString:
      return "str";
    case Value::Kind::kDict:
      return "dict";
    case Value::Kind::kObject:
      return value.object()->type_name();
    case Value::Kind::kList:
      break;
  }
  switch (value.list_data().type) {
    case ListData::Type::kList:
      return "list";
    case ListData::Type::kTuple:
      return "tuple";
    case ListData::Type::kRange:
      return "range";
    case ListData::Type::kView:
      return "dict view";
    case ListData::Type::kGenerator:
      return "generator";
  }
  return "";
}

}  // namespace braid
