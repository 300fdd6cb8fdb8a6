// The dialects. Sources: the chat templates that teach each model its format.
#include "text/parsers/tool_dialects.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/parsers/json_repair.h"
#include "text/parsers/output_parser.h"

namespace braid {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

size_t count(std::string_view text, std::string_view what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + what.size())) ++n;
  return n;
}

// What lies between `from` and `to` at or after `at`, which moves past `to`. A missing `to` means the rest.
std::optional<std::string_view> between(std::string_view text, size_t& at, std::string_view from, std::string_view to) {
  const size_t begin = text.find(from, at);
  if (begin == std::string_view::npos) return std::nullopt;
  const size_t start = begin + from.size();
  const size_t end = std::min(text.find(to, start), text.size());
  at = std::min(end + to.size(), text.size());
  return text.substr(start, end - start);
}

bool ends_in_json_string(std::string_view body) {
  bool inside = false;
  for (size_t i = std::min(body.find('{'), body.size()); i < body.size(); ++i) {
    if (inside && body[i] == '\\')
      ++i;
    else if (body[i] == '"')
      inside = !inside;
  }
  return inside;
}

bool json_is_complete(std::string_view body) { return !ends_in_json_string(body); }

// One newline after the opening tag and before the closing one belongs to the layout.
std::string_view without_layout(std::string_view value) {
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  return value;
}

// A bare value by its declared type; without one, JSON when it reads as JSON.
OrderedJson typed_value(std::string_view text, std::string_view function, std::string_view parameter,
                        const ParameterTypes& types) {
  const auto declared = types.find(std::string(function) + "." + std::string(parameter));
  if (declared != types.end() && declared->second == "string") return std::string(text);
  size_t used = 0;
  const std::string_view body = trimmed(text);
  auto value = parse_lenient(body, &used);
  if (value && used == body.size()) return std::move(*value);
  return std::string(text);
}

// {"name": ..., "arguments": {...}}
std::optional<ParsedCall> parse_json_call(std::string_view body, const ParameterTypes&) {
  const auto call = parse_lenient(trimmed(body));
  if (!call || !call->is_object() || !call->contains("name") || !(*call)["name"].is_string()) return std::nullopt;
  ParsedCall out{(*call)["name"].get<std::string>(), "{}", ""};
  for (const char* key : {"arguments", "parameters"}) {
    if (!call->contains(key)) continue;
    const OrderedJson& arguments = (*call)[key];
    out.arguments = arguments.is_string() ? repair_arguments(arguments.get_ref<const std::string&>())
                                          : repair_arguments(to_string(arguments));
    break;
  }
  return out;
}

// <function=NAME> <parameter=KEY> VALUE </parameter> ... </function>
std::optional<ParsedCall> parse_function_tags(std::string_view body, const ParameterTypes& types) {
  size_t at = 0;
  const auto name = between(body, at, "<function=", ">");
  if (!name || trimmed(*name).empty()) return std::nullopt;
  const std::string function(trimmed(*name));
  OrderedJson arguments = OrderedJson::object();
  while (at < body.size()) {
    const auto key = between(body, at, "<parameter=", ">");
    if (!key) break;
    const size_t start = at;
    size_t end = body.find("</parameter>", start);
    if (end == std::string_view::npos)
      end = std::min({body.find("<parameter=", start), body.find("</function>", start), body.size()});
    const std::string parameter(trimmed(*key));
    arguments[parameter] = typed_value(without_layout(body.substr(start, end - start)), function, parameter, types);
    at = end;
  }
  return ParsedCall{function, to_string(arguments), ""};
}

// NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> ...
std::optional<ParsedCall> parse_arg_tags(std::string_view body, const ParameterTypes& types) {
  const std::string function(trimmed(body.substr(0, std::min(body.find("<arg_key>"), body.size()))));
  if (function.empty() || function.find_first_of(" \n\t{}<>\"") != std::string::npos) return std::nullopt;
  OrderedJson arguments = OrderedJson::object();
  size_t at = 0;
  while (at < body.size()) {
    const auto key = between(body, at, "<arg_key>", "</arg_key>");
    if (!key) break;
    const auto value = between(body, at, "<arg_value>", "</arg_value>");
    if (!value) break;
    const std::string parameter(trimmed(*key));
    arguments[parameter] = typed_value(*value, function, parameter, types);
  }
  return ParsedCall{function, to_string(arguments), ""};
}

// All three families write <tool_call>, and models trained on several mix them: the body tells which it is.
std::optional<ParsedCall> parse_tool_call_tag(std::string_view body, const ParameterTypes& types) {
  if (trimmed(body).starts_with('{')) return parse_json_call(body, types);
  if (body.find("<function=") != std::string_view::npos) return parse_function_tags(body, types);
  return parse_arg_tags(body, types);
}

bool tool_call_tag_is_complete(std::string_view body) {
  if (trimmed(body).starts_with('{')) return json_is_complete(body);
  return count(body, "<parameter=") <= count(body, "</parameter>") &&
         count(body, "<arg_value>") <= count(body, "</arg_value>");
}

// V3: function<sep>NAME, a fenced JSON block. V3.1: NAME<sep>{JSON}.
std::optional<ParsedCall> parse_deepseek(std::string_view body, const ParameterTypes&) {
  static constexpr std::string_view kSeparator = "<｜tool▁sep｜>";
  const size_t separator = body.find(kSeparator);
  if (separator == std::string_view::npos) return std::nullopt;
  std::string_view name = trimmed(body.substr(0, separator)), rest = body.substr(separator + kSeparator.size());
  if (const size_t fence = rest.find("```"); name == "function" && trimmed(rest).find('{') != 0) {
    const size_t end = std::min({rest.find('\n'), fence, rest.size()});
    name = trimmed(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  if (name.empty()) return std::nullopt;
  return ParsedCall{std::string(name), repair_arguments(rest), ""};
}

// functions.NAME:0<|tool_call_argument_begin|>{JSON}
std::optional<ParsedCall> parse_kimi(std::string_view body, const ParameterTypes&) {
  static constexpr std::string_view kSeparator = "<|tool_call_argument_begin|>";
  const size_t separator = body.find(kSeparator);
  if (separator == std::string_view::npos) return std::nullopt;
  const std::string id(trimmed(body.substr(0, separator)));
  std::string name = id.substr(0, id.rfind(':'));
  if (name.starts_with("functions.")) name.erase(0, 10);
  if (name.empty()) return std::nullopt;
  return ParsedCall{std::move(name), repair_arguments(body.substr(separator + kSeparator.size())), id};
}

// NAME"> <TAG name="KEY" ...>VALUE</TAG> ...: MiniMax's <parameter>, DeepSeek's <｜DSML｜parameter
// string="true|false">.
std::optional<ParsedCall> parse_invoke(std::string_view body, const ParameterTypes& types, std::string_view tag) {
  const size_t quote = body.find('"');
  if (quote == std::string_view::npos || quote == 0) return std::nullopt;
  const std::string function(body.substr(0, quote));
  const std::string open = fmt::format("<{} name=\"", tag), close = fmt::format("</{}>", tag);
  OrderedJson arguments = OrderedJson::object();
  size_t at = quote;
  while (at < body.size()) {
    const auto key = between(body, at, open, "\"");
    if (!key) break;
    const size_t angle = body.find('>', at);
    if (angle == std::string_view::npos) break;
    const std::string_view attributes = body.substr(at, angle - at);
    const size_t end = std::min(body.find(close, angle), body.size());
    const std::string_view value = body.substr(angle + 1, end - angle - 1);
    const std::string parameter(*key);
    if (attributes.find("string=\"true\"") != std::string_view::npos)
      arguments[parameter] = std::string(value);
    else
      arguments[parameter] = typed_value(without_layout(value), function, parameter, types);
    at = std::min(end + close.size(), body.size());
  }
  return ParsedCall{function, to_string(arguments), ""};
}

std::optional<ParsedCall> parse_minimax(std::string_view body, const ParameterTypes& types) {
  return parse_invoke(body, types, "parameter");
}
std::optional<ParsedCall> parse_dsml(std::string_view body, const ParameterTypes& types) {
  return parse_invoke(body, types, "｜DSML｜parameter");
}
bool minimax_is_complete(std::string_view body) { return count(body, "<parameter ") <= count(body, "</parameter>"); }
bool dsml_is_complete(std::string_view body) {
  return count(body, "<｜DSML｜parameter ") <= count(body, "</｜DSML｜parameter>");
}
bool always_complete(std::string_view) { return true; }

ToolDialect tool_call_tag(std::string_view name) {
  return {name, {}, {}, "<tool_call>", "</tool_call>", false, false, parse_tool_call_tag, tool_call_tag_is_complete};
}

ToolDialect deepseek(std::string_view name) {
  return {name,
          {"<｜tool▁calls▁begin｜>"},
          {"<｜tool▁calls▁end｜>"},
          "<｜tool▁call▁begin｜>",
          "<｜tool▁call▁end｜>",
          false,
          true,
          parse_deepseek,
          always_complete};
}

ToolDialect dsml(std::string_view name) {
  return {name,
          {"<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"},
          {"</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"},
          "<｜DSML｜invoke name=\"",
          "</｜DSML｜invoke>",
          true,
          true,
          parse_dsml,
          dsml_is_complete};
}

const std::vector<ToolDialect>& dialects() {
  static const std::vector<ToolDialect> kDialects = {
      tool_call_tag("hermes"),
      tool_call_tag("qwen"),
      tool_call_tag("qwen3_coder"),
      tool_call_tag("glm45"),
      deepseek("deepseek_v3"),
      deepseek("deepseek_v31"),
      dsml("deepseek_v32"),
      dsml("deepseek_v4"),
      {"kimi_k2",
       {"<|tool_calls_section_begin|>"},
       {"<|tool_calls_section_end|>"},
       "<|tool_call_begin|>",
       "<|tool_call_end|>",
       false,
       true,
       parse_kimi,
       always_complete},
      {"minimax_m2",
       {"<minimax:tool_call>"},
       {"</minimax:tool_call>"},
       "<invoke name=\"",
       "</invoke>",
       true,
       false,
       parse_minimax,
       minimax_is_complete},
  };
  return kDialects;
}

}  // namespace

ParameterTypes parameter_types(const OrderedJson* tool_schemas) {
  ParameterTypes types;
  if (tool_schemas == nullptr || !tool_schemas->is_array()) return types;
  static const nlohmann::json_pointer<std::string> kName("/function/name"),
      kProperties("/function/parameters/properties");
  for (const OrderedJson& tool : *tool_schemas) {
    if (!tool.is_object() || !tool.contains(kName) || !tool.at(kName).is_string() || !tool.contains(kProperties))
      continue;
    const OrderedJson& properties = tool.at(kProperties);
    if (!properties.is_object()) continue;
    for (const auto& [parameter, schema] : properties.items())
      if (schema.is_object() && schema.contains("type") && schema["type"].is_string())
        types[tool.at(kName).get<std::string>() + "." + parameter] = schema["type"].get<std::string>();
  }
  return types;
}

const ToolDialect* find_tool_dialect(std::string_view name) {
  for (const ToolDialect& d : dialects())
    if (d.name == name) return &d;
  return nullptr;
}

const std::vector<std::string>& tool_dialect_names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const ToolDialect& d : dialects()) names.emplace_back(d.name);
    names.emplace_back("gpt_oss");
    return names;
  }();
  return kNames;
}

}  // namespace braid
