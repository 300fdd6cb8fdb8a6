// JSON as the whole project uses it: nlohmann's types by forward declaration, and the two things that must be done the
// same way everywhere. Files that look into a value include <nlohmann/json.hpp> themselves (2 s a file).
// ordered_json is for chat messages and tool schemas only, where templates see key order: it is quadratic in keys.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include <string>

namespace braid {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

Json read_json_file(const std::string& path);   // throws Error naming file, line and column
std::string read_text_file(const std::string& path);  // throws Error naming the file
std::string to_string(const Json& value, int indent = -1);  // invalid UTF-8 becomes U+FFFD instead of an exception
std::string to_string(const OrderedJson& value, int indent = -1);

}  // namespace braid
