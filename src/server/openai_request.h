// Bodies of /v1/chat/completions and /v1/completions: JSON to a checked value, then text to tokens. Everything here is
// a pure function of its arguments and may run on any thread; whatever is wrong is an ApiError that names the field.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "sched/request.h"
#include "server/text_service.h"

namespace braid {

enum class ApiKind { kChat, kCompletion };

struct PromptInput {
  std::string text;
  std::vector<int32_t> tokens;  // used instead of text when is_tokens
  bool is_tokens = false;
};

struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  std::string model;                                                               // empty: the client did not say
  std::shared_ptr<OrderedJson> messages, tools, template_kwargs, response_format;  // chat; null when absent
  bool add_generation_prompt = true;
  bool parse_tools = false;  // tools are offered and tool_choice is auto
  bool parallel_tool_calls = true;
  bool separate_reasoning = true;
  std::vector<PromptInput> prompts;  // completions
  bool echo = false;
  bool add_special_tokens = true;

  int n = 1;
  bool stream = false, include_usage = false;
  bool logprobs = false;    // report the log-probability of every token
  SamplingParams sampling;  // max_tokens as the client gave it; -1: what is left of the context
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool include_stop = false, skip_special_tokens = true;
};

// What a request is checked against and falls back to.
struct RequestRules {
  SamplingParams default_sampling;              // generation_config.json, then OpenAI's
  const OrderedJson* default_kwargs = nullptr;  // template variables; the request's win
  int64_t max_model_len = 0;
  int vocab_size = 0;
};

ApiRequest parse_api_request(ApiKind kind, std::string_view body, const RequestRules& rules);

struct PreparedPrompt {
  std::vector<int32_t> tokens;
  std::string text;  // with echo: the prompt as text
  bool inside_reasoning = false;
};

struct PreparedRequest {
  ApiRequest api;
  std::vector<PreparedPrompt> prompts;                   // one for chat
  std::vector<std::shared_ptr<Constraint>> constraints;  // one per sequence (prompt x n), or none at all
};

// Renders, tokenises and checks the length: prompt and max_tokens together may fill the context exactly.
PreparedRequest prepare(ApiRequest request, const TextService& text, const RequestRules& rules);

// The `messages`/`tools`/... part of a chat body, shared with /tokenize.
class JsonFields;
void parse_chat_prompt(JsonFields& fields, const RequestRules& rules, ApiRequest& out);
ChatPrompt render(const ApiRequest& request, const TextService& text);

// A list of token ids below `vocab_size`.
std::vector<int32_t> parse_token_ids(const OrderedJson& list, const std::string& field, int vocab_size);

}  // namespace braid
