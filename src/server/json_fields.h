// Typed reading of a request's JSON object: absent and null mean the default, a wrong type or range is a 400 that names
// the field, and fields that nobody asked for are known afterwards.
#pragma once
#include <nlohmann/json.hpp>

#include <set>
#include <string>
#include <string_view>

#include "base/json.h"

namespace braid {

// Parses a request body that must be an object. Bounds are checked before the parser runs: nesting, keys of one object
// (ordered_json is quadratic in them). Throws ApiError 400.
OrderedJson parse_json_body(std::string_view body);
// The same bounds without an exception, for JSON inside strings.
bool within_json_bounds(std::string_view text);

class JsonFields {
 public:
  explicit JsonFields(const OrderedJson& object) : object_(object) {}

  const OrderedJson* find(const std::string& name);  // null: absent or JSON null
  bool boolean(const std::string& name, bool fallback);
  int64_t integer(const std::string& name, int64_t fallback, int64_t low, int64_t high);
  double number(const std::string& name, double fallback, double low, double high);
  std::string string(const std::string& name, const std::string& fallback);
  const OrderedJson* array(const std::string& name);
  const OrderedJson* object(const std::string& name);

  std::string unknown() const;  // names never asked for, comma-separated; empty: none

 private:
  const OrderedJson& object_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace braid
