// See chat_messages.h.
#include "server/chat_messages.h"

#include <nlohmann/json.hpp>
#include <set>

#include "server/api_error.h"
#include "server/json_fields.h"

namespace braid {
namespace {

bool is_text_part(const OrderedJson& part) {
  const auto type = part.find("type");
  const auto text = part.find("text");
  return type != part.end() && type->is_string() && (*type == "text" || *type == "input_text") && text != part.end() &&
         text->is_string();
}

void check_content(const OrderedJson& content, const std::string& field) {
  if (content.is_string()) return;
  if (!content.is_array())
    throw bad_field(field, "'{}' must be a string or a list of parts, not {}", field, content.type_name());
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string part = fmt::format("{}[{}]", field, i);
    if (!content[i].is_object()) throw bad_field(part, "'{}' must be an object, not {}", part, content[i].type_name());
    if (is_text_part(content[i])) continue;
    const auto type = content[i].find("type");
    throw bad_field(part, "'{}' is of type {}; this model takes parts {{\"type\": \"text\", \"text\": ...}} only", part,
                    type == content[i].end() ? "(none)" : to_string(*type));
  }
}

void check_tool_calls(const OrderedJson& calls, const std::string& field) {
  if (!calls.is_array()) throw bad_field(field, "'{}' must be a list, not {}", field, calls.type_name());
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string name = fmt::format("{}[{}].function", field, i);
    if (!calls[i].is_object() || !calls[i].contains("function") || !calls[i]["function"].is_object())
      throw bad_field(name, "'{}' must be an object with name and arguments", name);
    const OrderedJson& function = calls[i]["function"];
    if (!function.contains("name") || !function["name"].is_string())
      throw bad_field(name + ".name", "'{}.name' must be a string", name);
    const auto arguments = function.find("arguments");  // JSON in a string is parsed before it is rendered
    if (arguments != function.end() && arguments->is_string() &&
        !within_json_bounds(arguments->get_ref<const std::string&>()))
      throw bad_field(name + ".arguments", "'{}.arguments' is nested too deeply", name);
  }
}

}  // namespace

void check_messages(const OrderedJson& messages) {
  if (!messages.is_array()) throw bad_field("messages", "'messages' must be a list, not {}", messages.type_name());
  if (messages.empty()) throw bad_field("messages", "'messages' is empty; at least one message is needed");
  for (size_t i = 0; i < messages.size(); ++i) {
    const OrderedJson& message = messages[i];
    const std::string name = fmt::format("messages[{}]", i);
    if (!message.is_object()) throw bad_field(name, "'{}' must be an object, not {}", name, message.type_name());
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string())
      throw bad_field(name + ".role", "'{}.role' must be a string", name);
    const bool has_calls = message.contains("tool_calls") && !message["tool_calls"].is_null();
    if (has_calls) check_tool_calls(message["tool_calls"], name + ".tool_calls");
    const auto content = message.find("content");
    const bool has_content = content != message.end() && !content->is_null();
    if (!has_content && *role != "assistant")
      throw bad_field(name + ".content", "'{}.content' is required for role {}", name, to_string(*role));
    if (has_content) check_content(*content, name + ".content");
  }
}

void check_tools(const OrderedJson& tools) {
  std::set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string field = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) throw bad_field(field, "'{}' must be an object, not {}", field, tools[i].type_name());
    if (!tools[i].contains("type") || tools[i]["type"] != "function" || !tools[i].contains("function") ||
        !tools[i]["function"].is_object())
      throw bad_field(field, "'{}' must be {{\"type\": \"function\", \"function\": {{...}}}}", field);
    const OrderedJson& function = tools[i]["function"];
    const auto name = function.find("name");
    if (name == function.end() || !name->is_string())
      throw bad_field(field + ".function.name", "'{}.function.name' must be a string", field);
    const auto text = name->get<std::string>();
    const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
    bool good = !text.empty() && text.size() <= 64 && letter(text[0]);
    for (char c : text) good = good && (letter(c) || (c >= '0' && c <= '9') || c == '-');
    if (!good)
      throw bad_field(field + ".function.name",
                      "tool name {} must be up to 64 letters, digits, _ or -, starting with a letter or _",
                      to_string(*name));
    if (!names.insert(text).second) throw bad_field(field + ".function.name", "tool name '{}' occurs twice", text);
    const auto parameters = function.find("parameters");
    if (parameters != function.end() && !parameters->is_null() && !parameters->is_object())
      throw bad_field(field + ".function.parameters", "'{}.function.parameters' must be an object", field);
  }
}

}  // namespace braid
