// See openai_request.h. Ranges are OpenAI's where they make sense for a local engine, else vLLM's.
#include "server/openai_request.h"

#include <cfloat>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "server/api_error.h"
#include "server/chat_messages.h"
#include "server/json_fields.h"

namespace braid {
namespace {

constexpr int kMaxChoices = 128;
constexpr int kMaxPrompts = 2048;    // of one completions request
constexpr int kMaxSequences = 4096;  // prompts x n
constexpr int kMaxTopLogprobs = 20;
constexpr size_t kMaxStops = 64, kMaxStopBytes = 4096;

void parse_sampling(JsonFields& f, const RequestRules& rules, ApiRequest& out) {
  SamplingParams& s = out.sampling;
  s = rules.default_sampling;
  s.temperature = static_cast<float>(f.number("temperature", s.temperature, 0, 100));
  s.top_p = static_cast<float>(f.number("top_p", s.top_p, 0, 1));
  if (s.top_p <= 0) throw bad_field("top_p", "'top_p' is 0; it must be above 0, up to 1");
  s.min_p = static_cast<float>(f.number("min_p", s.min_p, 0, 1));
  s.top_k = static_cast<int>(f.integer("top_k", s.top_k, -1, std::numeric_limits<int>::max()));
  if (s.top_k < 0) s.top_k = 0;  // both mean off
  s.presence_penalty = static_cast<float>(f.number("presence_penalty", s.presence_penalty, -2, 2));
  s.frequency_penalty = static_cast<float>(f.number("frequency_penalty", s.frequency_penalty, -2, 2));
  s.repetition_penalty = static_cast<float>(f.number("repetition_penalty", s.repetition_penalty, 0, 100));
  if (s.repetition_penalty <= 0) throw bad_field("repetition_penalty", "'repetition_penalty' must be above 0");
  s.ignore_eos = f.boolean("ignore_eos", false);
  if (const OrderedJson* seed = f.find("seed")) {
    if (!seed->is_number_integer()) throw bad_field("seed", "'seed' must be an integer, not {}", seed->type_name());
    out.seed = seed->get<uint64_t>();  // a negative one wraps around
  }
  if (const OrderedJson* bias = f.object("logit_bias")) {
    for (const auto& [key, value] : bias->items()) {
      char* end = nullptr;
      const long id = key.empty() ? -1 : std::strtol(key.c_str(), &end, 10);
      if (id < 0 || *end != 0 || id >= rules.vocab_size)
        throw bad_field("logit_bias", "'logit_bias' key \"{}\" must be a token id from 0 to {}", key,
                        rules.vocab_size - 1);
      if (!value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100))
        throw bad_field("logit_bias", "'logit_bias' of token {} must be a number from -100 to 100", id);
      s.logit_bias.emplace_back(static_cast<int32_t>(id), value.get<float>());
    }
  }
}

void parse_lengths(JsonFields& f, ApiRequest& out) {
  const int low = out.kind == ApiKind::kCompletion ? 0 : 1;  // 0: only the prompt's log-probabilities are wanted
  int64_t max_tokens = f.integer("max_tokens", -1, low, std::numeric_limits<int>::max());
  if (out.kind == ApiKind::kChat)
    max_tokens = f.integer("max_completion_tokens", max_tokens, 1, std::numeric_limits<int>::max());
  out.sampling.max_tokens = static_cast<int>(max_tokens);
  out.sampling.min_tokens = static_cast<int>(f.integer("min_tokens", 0, 0, std::numeric_limits<int>::max()));
  if (max_tokens >= 0 && out.sampling.min_tokens > max_tokens)
    throw bad_field("min_tokens", "'min_tokens' is {}, more than 'max_tokens' = {}", out.sampling.min_tokens,
                    max_tokens);
}

void parse_stops(JsonFields& f, const RequestRules& rules, ApiRequest& out) {
  if (const OrderedJson* stop = f.find("stop")) {
    if (stop->is_string())
      out.stop.push_back(stop->get<std::string>());
    else if (stop->is_array()) {
      for (const OrderedJson& s : *stop) {
        if (!s.is_string()) throw bad_field("stop", "'stop' must hold strings, not {}", s.type_name());
        out.stop.push_back(s.get<std::string>());
      }
    } else {
      throw bad_field("stop", "'stop' must be a string or a list of strings, not {}", stop->type_name());
    }
  }
  if (out.stop.size() > kMaxStops)
    throw bad_field("stop", "'stop' has {} strings; at most {} are allowed", out.stop.size(), kMaxStops);
  for (const std::string& s : out.stop) {
    if (s.empty()) throw bad_field("stop", "'stop' must not hold an empty string");
    if (s.size() > kMaxStopBytes)
      throw bad_field("stop", "a 'stop' string has {} bytes; at most {} are allowed", s.size(), kMaxStopBytes);
  }
  if (const OrderedJson* ids = f.array("stop_token_ids"))
    out.sampling.stop_token_ids = parse_token_ids(*ids, "stop_token_ids", rules.vocab_size);
  out.include_stop = f.boolean("include_stop_str_in_output", false);
  out.skip_special_tokens = f.boolean("skip_special_tokens", true);
}

void parse_logprobs(JsonFields& f, ApiRequest& out) {
  if (out.kind == ApiKind::kCompletion) {
    const int64_t n = f.integer("logprobs", -1, 0, kMaxTopLogprobs);
    out.logprobs = n >= 0;
    out.sampling.n_top_logprobs = static_cast<int>(std::max<int64_t>(n, 0));
    return;
  }
  out.logprobs = f.boolean("logprobs", false);
  const int64_t top = f.integer("top_logprobs", 0, 0, kMaxTopLogprobs);
  if (top > 0 && !out.logprobs) throw bad_field("top_logprobs", "'top_logprobs' needs 'logprobs': true");
  out.sampling.n_top_logprobs = static_cast<int>(top);
}

void parse_tool_choice(JsonFields& f, ApiRequest& out) {
  const OrderedJson* choice = f.find("tool_choice");
  out.parallel_tool_calls = f.boolean("parallel_tool_calls", true);
  if (!choice) {
    out.parse_tools = out.tools != nullptr;
    return;
  }
  if (choice->is_string() && *choice == "none") {
    out.tools = nullptr;  // not offered, so not called
    return;
  }
  if (choice->is_string() && *choice == "auto") {
    out.parse_tools = out.tools != nullptr;
    return;
  }
  if (choice->is_object()) {
    const auto function = choice->find("function");
    if (function == choice->end() || !function->is_object() || !function->contains("name") ||
        !(*function)["name"].is_string())
      throw bad_field("tool_choice",
                      "'tool_choice' as an object must be {{\"type\": \"function\", \"function\": {{\"name\": ...}}}}");
    bool found = false;
    if (out.tools)
      for (const OrderedJson& tool : *out.tools) found = found || tool["function"]["name"] == (*function)["name"];
    if (!found)
      throw bad_field("tool_choice", "'tool_choice' names {}, which is not among 'tools'",
                      to_string((*function)["name"]));
  } else if (!choice->is_string() || *choice != "required") {
    throw bad_field("tool_choice", "'tool_choice' must be none, auto, required or an object that names a function");
  }
  throw bad_field("tool_choice", "'tool_choice' {} cannot be enforced yet; use auto or none", to_string(*choice));
}

void parse_response_format(JsonFields& f, ApiRequest& out) {
  const OrderedJson* format = f.object("response_format");
  if (!format) return;
  const auto type = format->find("type");
  if (type == format->end() || !type->is_string())
    throw bad_field("response_format.type", "'response_format.type' must be text, json_object or json_schema");
  if (*type == "text") return;
  if (*type != "json_object" && *type != "json_schema")
    throw bad_field("response_format.type", "'response_format.type' {} is not one of text, json_object, json_schema",
                    to_string(*type));
  out.response_format = std::make_shared<OrderedJson>(*format);
}

// Template variables: the server's defaults, then what effort and thinking fields mean, then the request's own.
void parse_template_kwargs(JsonFields& f, const RequestRules& rules, ApiRequest& out) {
  OrderedJson kwargs = rules.default_kwargs ? *rules.default_kwargs : OrderedJson::object();
  const std::string effort = f.string("reasoning_effort", "");
  const OrderedJson* thinking = f.object("thinking");
  std::optional<bool> think;
  if (!effort.empty()) kwargs["reasoning_effort"] = effort;
  if (effort == "none") think = false;
  if (thinking) {
    const auto type = thinking->find("type");
    if (type != thinking->end() && *type == "disabled") think = false;
    if (type != thinking->end() && *type == "enabled") think = true;
  }
  if (think) kwargs["enable_thinking"] = kwargs["thinking"] = *think;  // both spellings are in use
  if (const OrderedJson* own = f.object("chat_template_kwargs"))
    for (const auto& [name, value] : own->items()) kwargs[name] = value;
  out.template_kwargs = std::make_shared<OrderedJson>(std::move(kwargs));
}

void parse_prompts(JsonFields& f, const RequestRules& rules, ApiRequest& out) {
  const OrderedJson* prompt = f.find("prompt");
  if (!prompt) throw bad_field("prompt", "'prompt' is required");
  const auto ids = [&](const OrderedJson& list) {
    return PromptInput{"", parse_token_ids(list, "prompt", rules.vocab_size), true};
  };
  if (prompt->is_string())
    out.prompts.push_back({prompt->get<std::string>(), {}, false});
  else if (!prompt->is_array())
    throw bad_field("prompt", "'prompt' must be a string, a list of strings or token ids, not {}", prompt->type_name());
  else if (prompt->empty())
    throw bad_field("prompt", "'prompt' is an empty list");
  else if (prompt->front().is_number())
    out.prompts.push_back(ids(*prompt));
  else {
    if (prompt->size() > kMaxPrompts)
      throw bad_field("prompt", "'prompt' has {} entries; at most {} are allowed", prompt->size(), kMaxPrompts);
    for (const OrderedJson& p : *prompt) {
      if (p.is_string())
        out.prompts.push_back({p.get<std::string>(), {}, false});
      else if (p.is_array())
        out.prompts.push_back(ids(p));
      else
        throw bad_field("prompt", "'prompt' must hold strings or lists of token ids, not {}", p.type_name());
    }
  }
  out.add_special_tokens = f.boolean("add_special_tokens", true);
  out.echo = f.boolean("echo", false);
  if (out.sampling.max_tokens == 0 && !out.echo)
    throw bad_field("max_tokens", "'max_tokens' is 0, which needs 'echo': true");
  out.sampling.prompt_logprobs = out.echo && out.logprobs;
  if (out.echo && out.stream && out.logprobs)
    throw bad_field("echo", "'echo' with 'logprobs' is not available with 'stream'");
}

}  // namespace

std::vector<int32_t> parse_token_ids(const OrderedJson& list, const std::string& field, int vocab_size) {
  if (!list.is_array()) throw bad_field(field, "'{}' must be a list of token ids, not {}", field, list.type_name());
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const OrderedJson& id : list) {
    if (!id.is_number_integer()) throw bad_field(field, "'{}' must hold token ids, not {}", field, id.type_name());
    const int64_t value = id.get<int64_t>();
    if (value < 0 || value >= vocab_size)
      throw bad_field(field, "'{}' holds {}; token ids are from 0 to {}", field, to_string(id), vocab_size - 1);
    ids.push_back(static_cast<int32_t>(value));
  }
  return ids;
}

void parse_chat_prompt(JsonFields& f, const RequestRules& rules, ApiRequest& out) {
  const OrderedJson* messages = f.find("messages");
  if (!messages) throw bad_field("messages", "'messages' is required");
  check_messages(*messages);
  out.messages = std::make_shared<OrderedJson>(*messages);
  if (const OrderedJson* tools = f.array("tools"); tools && !tools->empty()) {
    check_tools(*tools);
    out.tools = std::make_shared<OrderedJson>(*tools);
  }
  parse_template_kwargs(f, rules, out);
  out.add_generation_prompt = f.boolean("add_generation_prompt", true);
}

ApiRequest parse_api_request(ApiKind kind, std::string_view body, const RequestRules& rules) {
  const OrderedJson json = parse_json_body(body);
  JsonFields f(json);
  ApiRequest out;
  out.kind = kind;
  out.model = f.string("model", "");
  parse_sampling(f, rules, out);
  parse_lengths(f, out);
  parse_stops(f, rules, out);
  parse_logprobs(f, out);
  out.n = static_cast<int>(f.integer("n", 1, 1, kMaxChoices));
  if (f.integer("best_of", out.n, 1, kMaxChoices) != out.n)
    throw bad_field("best_of", "'best_of' other than 'n' is not supported");
  out.stream = f.boolean("stream", false);
  if (const OrderedJson* options = f.object("stream_options")) {
    JsonFields inner(*options);
    out.include_usage = inner.boolean("include_usage", false);
  }
  if (kind == ApiKind::kChat) {
    parse_chat_prompt(f, rules, out);
    parse_tool_choice(f, out);
    parse_response_format(f, out);
    out.separate_reasoning = f.boolean("separate_reasoning", true);
  } else {
    parse_prompts(f, rules, out);
    parse_response_format(f, out);
    if (static_cast<int64_t>(out.prompts.size()) * out.n > kMaxSequences)
      throw bad_field("n", "{} prompts with n = {} are more than {} sequences", out.prompts.size(), out.n,
                      kMaxSequences);
  }
  f.find("user");
  if (log_level() <= LogLevel::kDebug)
    if (const std::string unknown = f.unknown(); !unknown.empty()) log_debug("request fields ignored: {}", unknown);
  return out;
}

ChatPrompt render(const ApiRequest& request, const TextService& text) {
  try {
    return text.render_chat(
        {request.messages.get(), request.tools.get(), request.template_kwargs.get(), request.add_generation_prompt});
  } catch (const Error& e) {
    throw bad_field("messages", "the chat template refuses these messages: {}", e.what());
  }
}

PreparedRequest prepare(ApiRequest request, const TextService& text, const RequestRules& rules) {
  PreparedRequest out;
  if (request.kind == ApiKind::kChat) {
    ChatPrompt prompt = render(request, text);
    out.prompts.push_back({std::move(prompt.tokens), "", prompt.inside_reasoning});
  }
  for (PromptInput& p : request.prompts) {
    PreparedPrompt prompt;
    prompt.tokens = p.is_tokens ? std::move(p.tokens) : text.encode(p.text, request.add_special_tokens);
    if (request.echo)
      prompt.text = p.is_tokens ? text.decode(prompt.tokens, request.skip_special_tokens) : std::move(p.text);
    out.prompts.push_back(std::move(prompt));
  }
  const char* field = request.kind == ApiKind::kChat ? "messages" : "prompt";
  for (const PreparedPrompt& p : out.prompts) {
    const int64_t n = static_cast<int64_t>(p.tokens.size());
    if (n == 0) throw bad_field(field, "the prompt has no tokens");
    const int64_t answer = request.sampling.max_tokens < 0 ? 1 : request.sampling.max_tokens;
    if (n + answer > rules.max_model_len)
      throw ApiError(400, "invalid_request_error", field,
                     fmt::format("This model's maximum context length is {} tokens, but {} were requested ({} in the "
                                 "{}, {} in the completion). Please reduce the length of the {} or of the completion.",
                                 rules.max_model_len, n + answer, n, field, answer, field),
                     "context_length_exceeded");
  }
  for (size_t i = 0; request.response_format && i < out.prompts.size() * request.n; ++i) {
    out.constraints.push_back(text.constraint(*request.response_format));
    if (!out.constraints.back())
      throw bad_field("response_format", "'response_format' {} cannot be enforced yet; use text",
                      to_string((*request.response_format)["type"]));
  }
  out.api = std::move(request);
  return out;
}

}  // namespace braid
