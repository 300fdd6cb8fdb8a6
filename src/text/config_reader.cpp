#include "text/config_reader.h"

#include <nlohmann/json.hpp>

#include "text/utf8.h"

namespace braid {

ConfigReader::ConfigReader(const Json& part, std::string where, int depth) : part_(part), where_(std::move(where)) {
  if (!part.is_object()) throw bad("is not an object");
  if (depth > 16) throw bad("has Sequences nested more than 16 deep");
}

const Json* ConfigReader::find(const char* key) const {
  const auto it = part_.find(key);
  return it == part_.end() ? nullptr : &*it;
}

const Json& ConfigReader::required(const char* key) const {
  const Json* value = find(key);
  if (!value) throw bad(fmt::format("lacks \"{}\"", key));
  return *value;
}

std::string ConfigReader::string(const char* key) const {
  const Json& value = required(key);
  if (!value.is_string()) throw bad(fmt::format("\"{}\" is not a string", key));
  return value.get<std::string>();
}

std::string ConfigReader::string_or(const char* key, const std::string& fallback) const {
  const Json* value = find(key);
  return value && !value->is_null() ? string(key) : fallback;
}

bool ConfigReader::boolean(const char* key) const {
  const Json& value = required(key);
  if (!value.is_boolean()) throw bad(fmt::format("\"{}\" is not true or false", key));
  return value.get<bool>();
}

bool ConfigReader::boolean_or(const char* key, bool fallback) const {
  const Json* value = find(key);
  return value && !value->is_null() ? boolean(key) : fallback;
}

size_t ConfigReader::count_or(const char* key, size_t fallback) const {
  const Json* value = find(key);
  if (!value) return fallback;
  if (!value->is_number_integer() || value->get<int64_t>() < 0) throw bad(fmt::format("\"{}\" is not a count", key));
  return value->get<size_t>();
}

const Json& ConfigReader::list(const char* key) const {
  const Json& value = required(key);
  if (!value.is_array()) throw bad(fmt::format("\"{}\" is not a list", key));
  return value;
}

char32_t ConfigReader::character(const char* key) const {
  const std::string text = string(key);
  if (text.empty() || utf8_length(text[0]) != text.size()) throw bad(fmt::format("\"{}\" is not one character", key));
  size_t pos = 0;
  return next_utf8(text, pos);
}

Regex ConfigReader::pattern(const char* key) const {
  const Json& value = required(key);
  if (value.is_object() && value.contains("String") && value["String"].is_string())
    return Regex::literal(value["String"].get<std::string>());
  if (value.is_object() && value.contains("Regex") && value["Regex"].is_string())
    return Regex(value["Regex"].get<std::string>());
  throw bad(fmt::format("\"{}\" is neither {{\"String\": ...}} nor {{\"Regex\": ...}}", key));
}

Error ConfigReader::unknown_type() const { return bad(fmt::format("has the unknown type \"{}\"", type())); }

Error ConfigReader::bad(const std::string& what) const { return Error("{} {}", where_, what); }

}  // namespace braid
