// ModelConfigReader: look-ups, and the sentences for what is wrong.
#include "model/config_reader.h"

#include <fmt/ranges.h>

#include <cmath>

#include "base/error.h"

namespace braid {

void ModelConfigReader::fail(const std::string& key, const Json& value, const std::string& rule) const {
  std::string shown = to_string(value);
  if (shown.size() > 80) shown = shown.substr(0, 77) + "...";
  throw Error("{}: '{}{}' is {}; it must be {}", file_, prefix_, key, shown, rule);
}

std::optional<ModelConfigReader::Found> ModelConfigReader::find(Keys keys) const {
  std::optional<Found> found;
  for (const char* key : keys) {
    const auto it = object_->find(key);
    if (it == object_->end() || it->is_null()) continue;
    if (found && *found->value != *it)
      throw Error("{}: '{}{}' is {} but '{}{}' is {}; they mean the same and must agree", file_, prefix_, found->key,
                  to_string(*found->value), prefix_, key, to_string(*it));
    if (!found) found = Found{key, &*it};
  }
  return found;
}

ModelConfigReader::Found ModelConfigReader::require(Keys keys) const {
  if (const auto found = find(keys)) return *found;
  throw Error("{}: '{}{}' is missing", file_, prefix_, fmt::join(keys, "' or '"));
}

bool ModelConfigReader::has(Keys keys) const { return find(keys).has_value(); }

bool ModelConfigReader::present(Keys keys) const {
  for (const char* key : keys)
    if (object_->contains(key)) return true;
  return false;
}

namespace {

// Unsigned values above the signed range would wrap when read as int64.
bool is_integer_in(const Json& value, int64_t least, int64_t most) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(most)) return false;
  return value.get<int64_t>() >= least && value.get<int64_t>() <= most;
}

}  // namespace

int64_t ModelConfigReader::integer(Keys keys, int64_t least, int64_t most, std::optional<int64_t> otherwise) const {
  if (otherwise && !has(keys)) return *otherwise;
  const Found found = require(keys);
  if (!is_integer_in(*found.value, least, most))
    fail(found.key, *found.value, fmt::format("an integer from {} to {}", least, most));
  return found.value->get<int64_t>();
}

double ModelConfigReader::number(Keys keys, std::optional<double> otherwise) const {
  if (otherwise && !has(keys)) return *otherwise;
  const Found found = require(keys);
  if (!found.value->is_number() || !std::isfinite(found.value->get<double>()))
    fail(found.key, *found.value, "a number");
  return found.value->get<double>();
}

double ModelConfigReader::positive(Keys keys, std::optional<double> otherwise) const {
  const double value = number(keys, otherwise);
  if (value <= 0.0) fail(require(keys).key, *require(keys).value, "a number above 0");
  return value;
}

bool ModelConfigReader::boolean(Keys keys, bool otherwise) const {
  const auto found = find(keys);
  if (!found) return otherwise;
  if (!found->value->is_boolean()) fail(found->key, *found->value, "true or false");
  return found->value->get<bool>();
}

std::string ModelConfigReader::text(Keys keys, std::optional<std::string> otherwise) const {
  if (otherwise && !has(keys)) return *otherwise;
  const Found found = require(keys);
  if (!found.value->is_string()) fail(found.key, *found.value, "a string");
  return found.value->get<std::string>();
}

std::vector<std::string> ModelConfigReader::texts(Keys keys) const {
  const auto found = find(keys);
  if (!found) return {};
  std::vector<std::string> result;
  if (!found->value->is_array()) fail(found->key, *found->value, "a list of strings");
  for (const Json& item : *found->value) {
    if (!item.is_string()) fail(found->key, item, "a list of strings");
    result.push_back(item.get<std::string>());
  }
  return result;
}

std::vector<int64_t> ModelConfigReader::integers(Keys keys, int64_t least, int64_t most) const {
  const auto found = find(keys);
  if (!found) return {};
  const Json list = found->value->is_array() ? *found->value : Json::array({*found->value});
  std::vector<int64_t> result;
  for (const Json& item : list) {
    if (!is_integer_in(item, least, most))
      fail(found->key, *found->value, fmt::format("an integer from {} to {}, or a list of such", least, most));
    result.push_back(item.get<int64_t>());
  }
  return result;
}

ModelConfigReader ModelConfigReader::nested(const char* key) const {
  const Found found = require({key});
  if (!found.value->is_object()) fail(key, *found.value, "an object");
  return ModelConfigReader(*found.value, file_, prefix_ + key + ".");
}

}  // namespace braid
