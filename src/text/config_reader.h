// Reads one part ({"type": ..., ...}) of a tokenizer.json with errors that name the part and the field.
#pragma once
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/regex.h"

namespace braid {

class ConfigReader {
 public:
  // `depth` is how many Sequences enclose this part; too many is an error.
  ConfigReader(const Json& part, std::string where, int depth);

  std::string type() const { return string("type"); }
  const Json& required(const char* key) const;
  std::string string(const char* key) const;
  std::string string_or(const char* key, const std::string& fallback) const;
  bool boolean(const char* key) const;
  bool boolean_or(const char* key, bool fallback) const;  // also when the value is null
  size_t count_or(const char* key, size_t fallback) const;
  const Json& list(const char* key) const;
  char32_t character(const char* key) const;
  Regex pattern(const char* key) const;  // {"String": s} or {"Regex": r}

  Error unknown_type() const;
  Error bad(const std::string& what) const;

 private:
  const Json* find(const char* key) const;
  const Json& part_;
  std::string where_;
};

}  // namespace braid
