// How each family of models writes a tool call: its markers, and how the text between them becomes a name and
// arguments.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace braid {

struct ParsedCall {
  std::string name;
  std::string arguments;  // a JSON object
  std::string id;         // when the dialect carries one
};

// The declared type of each parameter, "function.parameter" -> "string": dialects without JSON write every value as
// bare text, and only the schema tells "10" from 10.
using ParameterTypes = std::map<std::string, std::string, std::less<>>;
ParameterTypes parameter_types(const OrderedJson* tool_schemas);

struct ToolDialect {
  std::string_view name;
  std::vector<std::string_view> section_begin, section_end;  // around a group of calls; may be empty
  std::string_view call_begin, call_end;
  bool only_in_section = false;  // call_begin is ordinary text outside of a section
  bool ends_reasoning = false;   // its markers are special tokens: seen while reasoning, they end it
  std::optional<ParsedCall> (*parse)(std::string_view body, const ParameterTypes& types);
  bool (*is_complete)(std::string_view body);  // false when an end marker after `body` would sit inside a value
};

const ToolDialect* find_tool_dialect(std::string_view name);  // null when unknown

}  // namespace braid
