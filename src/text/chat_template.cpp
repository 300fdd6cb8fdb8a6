// Requests to template variables, and what the server changes in messages beforehand.
#include "text/chat_template.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace braid {
namespace {

constexpr int64_t kProbeSteps = 1'000'000;  // a template that needs more for two messages has other problems

void set_variable(TemplateVariables& variables, const std::string& name, Value value) {
  for (auto& [key, held] : variables)
    if (key == name) {
      held = std::move(value);
      return;
    }
  variables.emplace_back(name, std::move(value));
}

// Whether the template renders this one message, and the text in it, to something that is no dump of its JSON.
bool renders_text_of(const ChatTemplate& t, const OrderedJson& messages, std::string_view text) {
  try {
    const OrderedJson request = {{"messages", messages}, {"add_generation_prompt", true}};
    const std::string out = t.render(request, parse_iso_time("2026-01-01T00:00:00"));
    const bool dumps = out.find("'text'") != std::string::npos || out.find("\"text\"") != std::string::npos;
    return out.find(text) != std::string::npos && !dumps;
  } catch (const Error&) {
    return false;
  }
}

bool probe_parts(const ChatTemplate& t) {
  const OrderedJson parts = OrderedJson::array(
      {OrderedJson{{"type", "text"}, {"text", "first-part"}}, OrderedJson{{"type", "text"}, {"text", "second-part"}}});
  const OrderedJson messages = OrderedJson::array({OrderedJson{{"role", "user"}, {"content", parts}}});
  return renders_text_of(t, messages, "first-part") && renders_text_of(t, messages, "second-part");
}

bool probe_null(const ChatTemplate& t) {
  const OrderedJson call = {{"id", "call00001"},
                            {"type", "function"},
                            {"function", {{"name", "probe_name"}, {"arguments", OrderedJson::object()}}}};
  const OrderedJson messages = OrderedJson::array(
      {OrderedJson{{"role", "user"}, {"content", "question"}},
       OrderedJson{{"role", "assistant"}, {"content", nullptr}, {"tool_calls", OrderedJson::array({call})}}});
  try {
    const OrderedJson request = {{"messages", messages}};
    return t.render(request, parse_iso_time("2026-01-01T00:00:00")).find("None") == std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

// The text of a content list, or nothing when a part is not text.
bool join_parts(const OrderedJson& parts, std::string& out) {
  for (const OrderedJson& part : parts) {
    if (!part.is_object() || !part.contains("text") || !part["text"].is_string()) return false;
    if (!out.empty()) out += "\n";
    out += part["text"].get_ref<const std::string&>();
  }
  return true;
}

void parse_arguments(OrderedJson& message) {
  if (!message.contains("tool_calls") || !message["tool_calls"].is_array()) return;
  for (OrderedJson& call : message["tool_calls"]) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    OrderedJson& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    const std::string text = function["arguments"].get<std::string>();
    OrderedJson parsed = text.empty() ? OrderedJson::object() : OrderedJson::parse(text, nullptr, false);
    if (parsed.is_object()) function["arguments"] = std::move(parsed);
  }
}

std::string token_text(const Json& entry) {
  if (entry.is_string()) return entry.get<std::string>();
  if (entry.is_object() && entry.contains("content") && entry["content"].is_string())
    return entry["content"].get<std::string>();
  return "";
}

}  // namespace

ChatTemplate ChatTemplate::compile(std::string_view source, const SpecialTokens& special_tokens, JinjaLimits limits) {
  ChatTemplate t;
  t.code_ = std::make_shared<const TemplateCode>(parse_template(source));
  t.special_tokens_ = special_tokens;
  t.limits_ = limits;
  ChatTemplate probe = t;
  probe.limits_.steps = std::min<int64_t>(limits.steps, kProbeSteps);
  t.takes_parts_ = probe_parts(probe);
  t.takes_null_content_ = probe_null(probe);
  return t;
}

std::string ChatTemplate::render(const OrderedJson& request, const std::tm& now) const {
  if (!request.is_object()) throw Error("a chat request must be a JSON object");
  if (!request.contains("messages") || !request["messages"].is_array())
    throw Error("a chat request needs \"messages\", a list");
  TemplateVariables variables;
  for (const auto& [name, text] : special_tokens_) set_variable(variables, name, Value(text));
  auto take = [&](const char* name, bool always, const Value& fallback) {
    if (request.contains(name))
      set_variable(variables, name, Value::from_json(request[name]));
    else if (always)
      set_variable(variables, name, fallback);
  };
  take("messages", true, Value::none());
  take("tools", true, Value::none());
  take("documents", true, Value::none());
  take("add_generation_prompt", true, Value(false));
  take("enable_thinking", false, {});
  take("reasoning_effort", false, {});
  if (request.contains("chat_template_kwargs") && !request["chat_template_kwargs"].is_null()) {
    const OrderedJson& kwargs = request["chat_template_kwargs"];
    if (!kwargs.is_object()) throw Error("\"chat_template_kwargs\" must be a JSON object");
    for (const auto& [name, value] : kwargs.items()) set_variable(variables, name, Value::from_json(value));
  }
  return render_template(*code_, variables, now, limits_);
}

std::string render_request(const ChatTemplateSource& source, const OrderedJson& request, const std::tm& now) {
  return ChatTemplate::compile(source.text, source.special_tokens).render(request, now);
}

void set_special_token(SpecialTokens& tokens, const std::string& name, const std::string& text) {
  for (auto& [key, held] : tokens)
    if (key == name) {
      held = text;
      return;
    }
  tokens.emplace_back(name, text);
}

OrderedJson prepare_messages_for_server(const ChatTemplate& chat_template, OrderedJson request) {
  if (!request.is_object() || !request.contains("messages") || !request["messages"].is_array()) return request;
  for (OrderedJson& message : request["messages"]) {
    if (!message.is_object()) continue;
    parse_arguments(message);
    if (!message.contains("content")) continue;
    OrderedJson& content = message["content"];
    std::string joined;
    if (content.is_array() && !chat_template.takes_parts() && join_parts(content, joined)) content = joined;
    if (content.is_null() && !chat_template.takes_null_content()) content = "";
  }
  return request;
}

std::tm parse_iso_time(std::string_view text) {
  std::tm t = {};
  char separator = 0;
  int used = 0;
  const std::string copy(text);
  const int n = std::sscanf(copy.c_str(), "%4d-%2d-%2d%c%2d:%2d:%2d%n", &t.tm_year, &t.tm_mon, &t.tm_mday, &separator,
                            &t.tm_hour, &t.tm_min, &t.tm_sec, &used);
  const std::string_view rest = text.substr(std::min(text.size(), static_cast<size_t>(used)));
  const bool tail_ok = rest.empty() || rest == "Z" ||
                       (rest[0] == '.' && rest.find_first_not_of("0123456789.Z") == std::string_view::npos);
  const bool fields_ok = t.tm_mon >= 1 && t.tm_mon <= 12 && t.tm_mday >= 1 && t.tm_mday <= 31 && t.tm_hour >= 0 &&
                         t.tm_hour < 24 && t.tm_min >= 0 && t.tm_min < 60 && t.tm_sec >= 0 && t.tm_sec <= 60;
  if (n != 7 || (separator != 'T' && separator != ' ') || !tail_ok || !fields_ok)
    throw Error("\"{}\" is no time such as 2026-01-15T10:30:00", text);
  t.tm_year -= 1900;
  t.tm_mon -= 1;
  const std::time_t seconds = timegm(&t);  // fills in the day of the week and of the year
  gmtime_r(&seconds, &t);
  return t;
}

std::tm local_now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm t = {};
  localtime_r(&seconds, &t);
  return t;
}

ChatTemplateSource read_chat_template(const std::string& model_dir) {
  const std::string file = model_dir + "/chat_template.jinja", config_file = model_dir + "/tokenizer_config.json";
  ChatTemplateSource source;
  const bool has_file = std::filesystem::exists(file);
  if (has_file) source.text = read_text_file(file);
  if (has_file && !std::filesystem::exists(config_file)) return source;
  const Json config = read_json_file(config_file);
  for (const auto& [key, entry] : config.items())
    if (key.ends_with("_token"))
      if (std::string text = token_text(entry); !text.empty()) source.special_tokens.emplace_back(key, std::move(text));
  if (has_file) return source;
  const Json found = config.is_object() && config.contains("chat_template") ? config["chat_template"] : Json();
  if (found.is_string()) {
    source.text = found.get<std::string>();
    return source;
  }
  if (found.is_array())
    for (const Json& named : found)
      if (named.is_object() && named.contains("name") && named["name"] == "default" && named.contains("template") &&
          named["template"].is_string()) {
        source.text = named["template"].get<std::string>();
        return source;
      }
  throw Error("{} holds no chat template: neither chat_template.jinja nor a chat_template in tokenizer_config.json",
              model_dir);
}

}  // namespace braid
