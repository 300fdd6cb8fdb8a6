// Arguments that models write are almost JSON. This makes them JSON.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace braid {

// The JSON object that `text` means. Valid JSON is returned as it was written; missing closers, trailing commas, single
// quotes, raw newlines in strings, bad escapes, Python's True/False/None and code fences are repaired; a string that
// holds an object is opened; all else becomes {"_raw": text}. Never throws.
std::string repair_arguments(std::string_view text);

// The value that `text` starts with, read leniently; nullopt when no value can be made of it. `used`, if given, gets
// the number of bytes read.
std::optional<OrderedJson> parse_lenient(std::string_view text, size_t* used = nullptr);

}  // namespace braid
