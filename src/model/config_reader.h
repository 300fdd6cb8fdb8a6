// Typed access to one JSON object of a configuration file. Every complaint names the file, the key as the file spells
// it, and the value. Where a key has several spellings they are listed together; two that disagree are an error.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace braid {

using Keys = std::initializer_list<const char*>;

// Largest accepted size of anything; keeps products of three sizes inside 64 bits.
inline constexpr int64_t kMaxConfigSize = int64_t{1} << 20;

class ModelConfigReader {
 public:
  // `prefix` is written before keys in messages ("rope_scaling." for a nested object).
  ModelConfigReader(const Json& object, std::string file, std::string prefix = "")
      : object_(&object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  bool has(Keys) const;      // present, and not null
  bool present(Keys) const;  // present, null or not

  // Without a default the key is required. A null counts as absent.
  int64_t integer(Keys, int64_t least, int64_t most, std::optional<int64_t> otherwise = {}) const;
  int64_t size(Keys keys, std::optional<int64_t> otherwise = {}) const {
    return integer(keys, 1, kMaxConfigSize, otherwise);
  }
  double number(Keys, std::optional<double> otherwise = {}) const;
  double positive(Keys, std::optional<double> otherwise = {}) const;
  bool boolean(Keys, bool otherwise) const;
  std::string text(Keys, std::optional<std::string> otherwise = {}) const;
  std::vector<std::string> texts(Keys) const;                              // empty when absent
  std::vector<int64_t> integers(Keys, int64_t least, int64_t most) const;  // one integer or a list of them
  ModelConfigReader nested(const char* key) const;

  [[noreturn]] void fail(const std::string& key, const Json& value, const std::string& rule) const;
  const std::string& file() const { return file_; }

 private:
  struct Found {
    const char* key;
    const Json* value;
  };
  std::optional<Found> find(Keys) const;
  Found require(Keys) const;

  const Json* object_;
  std::string file_, prefix_;
};

}  // namespace braid
