// The values a chat template computes with: Python's, as far as templates see them. Immutable and cheap to copy, so a
// compiled template's constants can be shared by every thread that renders it. Strings, lists and dicts are held by
// reference count; since nothing mutable may be put inside them, they never form a cycle. The mutable things (macros,
// namespaces, loops) are Objects, owned by the render that made them and dead when it ends.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"

namespace braid {

class Value;
struct Object;

struct StringData {
  std::string text;
  bool markup = false;  // made by `safe` or `escape`: `+` then escapes what it is joined to, as markupsafe does
};

// What a missing variable or attribute evaluates to, and what the sandbox hides (list.append, __class__).
struct UndefinedData {
  std::string hint;  // "'x' is undefined", the message of the error that using it raises
};

struct ListData {
  enum class Type : uint8_t { kList, kTuple, kRange, kView, kGenerator };
  std::vector<Value> items;
  Type type = Type::kList;
  std::string label;            // what kRange, kView and kGenerator print as
  int depth = 1;                // nesting below and including this list, bounded so that recursion over values is
  mutable size_t consumed = 0;  // kGenerator: how many items were handed out; such lists never leave one render
};

struct DictData {
  std::vector<std::pair<Value, Value>> items;  // in insertion order, keys unique
  int depth = 1;
};

class Value {
 public:
  using String = std::shared_ptr<const StringData>;
  using List = std::shared_ptr<const ListData>;
  using Dict = std::shared_ptr<const DictData>;
  using Missing = std::shared_ptr<const UndefinedData>;
  enum class Kind : uint8_t { kUndefined, kNone, kBool, kInt, kFloat, kString, kList, kDict, kObject };

  Value() : data_(Missing{}) {}
  Value(bool b) : data_(b) {}
  Value(int i) : data_(int64_t{i}) {}
  Value(int64_t i) : data_(i) {}
  Value(double d) : data_(d) {}
  Value(std::string text) : data_(std::make_shared<const StringData>(StringData{std::move(text), false})) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(Object* object) : data_(object) {}
  explicit Value(List list) : data_(std::move(list)) {}

  static Value none() { return Value(std::monostate{}); }
  static Value undefined(std::string hint);
  static Value markup(std::string text);
  static Value list(std::vector<Value> items, ListData::Type type = ListData::Type::kList, std::string label = "");
  static Value tuple(std::vector<Value> items) { return list(std::move(items), ListData::Type::kTuple); }
  static Value generator(std::vector<Value> items) { return list(std::move(items), ListData::Type::kGenerator); }
  static Value dict(std::vector<std::pair<Value, Value>> unique_items);
  static Value from_json(const OrderedJson& json);  // throws Error for nesting beyond kMaxValueDepth

  Kind kind() const { return kKindOfIndex[data_.index()]; }
  bool is_undefined() const { return kind() == Kind::kUndefined; }
  bool is_none() const { return kind() == Kind::kNone; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_list() const { return kind() == Kind::kList; }
  bool is_dict() const { return kind() == Kind::kDict; }
  bool is_int() const { return kind() == Kind::kInt; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_float() const { return kind() == Kind::kFloat; }
  bool is_integral() const { return is_int() || is_bool(); }
  bool is_number() const { return is_integral() || is_float(); }
  bool is_markup() const { return is_string() && std::get<String>(data_)->markup; }
  bool is_generator() const { return is_list() && list_data().type == ListData::Type::kGenerator; }

  // Each requires the kind it names.
  bool as_bool() const { return std::get<bool>(data_); }
  int64_t as_int() const { return is_bool() ? int64_t{as_bool()} : std::get<int64_t>(data_); }
  double as_float() const { return is_float() ? std::get<double>(data_) : static_cast<double>(as_int()); }
  const std::string& text() const { return std::get<String>(data_)->text; }
  const ListData& list_data() const { return *std::get<List>(data_); }
  const DictData& dict_data() const { return *std::get<Dict>(data_); }
  const UndefinedData* missing() const { return std::get<Missing>(data_).get(); }
  Object* object() const { return kind() == Kind::kObject ? std::get<Object*>(data_) : nullptr; }

  const Value* find(std::string_view key) const;  // in a dict; null when absent
  const void* identity() const;                   // address of what is shared, null for numbers and the like
  int depth() const;

 private:
  static constexpr Kind kKindOfIndex[] = {Kind::kUndefined, Kind::kNone, Kind::kBool, Kind::kInt,   Kind::kFloat,
                                          Kind::kString,    Kind::kList, Kind::kDict, Kind::kObject};
  explicit Value(std::monostate none) : data_(none) {}

  std::variant<Missing, std::monostate, bool, int64_t, double, String, List, Dict, Object*> data_;
};

inline constexpr int kMaxValueDepth = 200;

const char* python_type_name(const Value& value);

}  // namespace braid
