// See json_fields.h.
#include "server/json_fields.h"

#include "server/api_error.h"

namespace braid {
namespace {

constexpr int kMaxDepth = 100;
constexpr int kMaxKeys = 4096;  // per object

// Counts brackets and the keys of each open object, in one pass over the bytes. Text that is not JSON may pass: the
// parser decides about that.
const char* broken_bound(std::string_view text) {
  std::vector<int> n_members{0};  // commas and the first value, per open bracket
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
        break;
      case '{':
      case '[':
        if (n_members.size() > kMaxDepth) return "the body is nested deeper than 100 levels";
        n_members.push_back(0);
        break;
      case '}':
      case ']':
        if (n_members.size() > 1) n_members.pop_back();
        break;
      case ':':
        if (++n_members.back() > kMaxKeys) return "an object in the body has more than 4096 keys";
        break;
      default:
        break;
    }
  }
  return nullptr;
}

}  // namespace

bool within_json_bounds(std::string_view text) { return broken_bound(text) == nullptr; }

OrderedJson parse_json_body(std::string_view body) {
  if (const char* problem = broken_bound(body)) throw ApiError(400, "invalid_request_error", "", problem);
  OrderedJson json;
  try {
    json = OrderedJson::parse(body);
  } catch (const OrderedJson::exception& e) {
    std::string what = e.what();
    if (what.starts_with('[')) what.erase(0, what.find("] ") + 2);  // nlohmann's own error number
    throw ApiError(400, "invalid_request_error", "", "the body is not valid JSON: " + what);
  }
  if (!json.is_object()) throw ApiError(400, "invalid_request_error", "", "the body must be a JSON object");
  return json;
}

const OrderedJson* JsonFields::find(const std::string& name) {
  asked_.insert(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonFields::boolean(const std::string& name, bool fallback) {
  const OrderedJson* v = find(name);
  if (!v) return fallback;
  if (!v->is_boolean()) throw bad_field(name, "'{}' must be true or false, not {}", name, v->type_name());
  return v->get<bool>();
}

int64_t JsonFields::integer(const std::string& name, int64_t fallback, int64_t low, int64_t high) {
  const OrderedJson* v = find(name);
  if (!v) return fallback;
  if (!v->is_number_integer()) throw bad_field(name, "'{}' must be an integer, not {}", name, v->type_name());
  const bool too_big = v->is_number_unsigned() && v->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t x = v->get<int64_t>();
  if (too_big || x < low || x > high)
    throw bad_field(name, "'{}' is {}; it must be from {} to {}", name, to_string(*v), low, high);
  return x;
}

double JsonFields::number(const std::string& name, double fallback, double low, double high) {
  const OrderedJson* v = find(name);
  if (!v) return fallback;
  if (!v->is_number()) throw bad_field(name, "'{}' must be a number, not {}", name, v->type_name());
  const double x = v->get<double>();
  if (!(x >= low && x <= high)) throw bad_field(name, "'{}' is {}; it must be from {} to {}", name, x, low, high);
  return x;
}

std::string JsonFields::string(const std::string& name, const std::string& fallback) {
  const OrderedJson* v = find(name);
  if (!v) return fallback;
  if (!v->is_string()) throw bad_field(name, "'{}' must be a string, not {}", name, v->type_name());
  return v->get<std::string>();
}

const OrderedJson* JsonFields::array(const std::string& name) {
  const OrderedJson* v = find(name);
  if (v && !v->is_array()) throw bad_field(name, "'{}' must be a list, not {}", name, v->type_name());
  return v;
}

const OrderedJson* JsonFields::object(const std::string& name) {
  const OrderedJson* v = find(name);
  if (v && !v->is_object()) throw bad_field(name, "'{}' must be an object, not {}", name, v->type_name());
  return v;
}

std::string JsonFields::unknown() const {
  std::string names;
  for (const auto& [name, value] : object_.items())
    if (!asked_.contains(name)) names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  return names;
}

}  // namespace braid
