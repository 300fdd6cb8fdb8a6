// Replies in OpenAI's two dialects, as text appended to a buffer: server-sent events and whole objects. Knows the
// shapes and nothing of time, threads or sockets. A content delta costs a copy of a prepared prefix and one escaped
// string.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/openai_request.h"
#include "server/text_service.h"

namespace braid {

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};

// One finished or growing answer.
struct ChoiceView {
  int index = 0;
  const TextDelta* text = nullptr;
  std::span<const TokenOutput> logprobs{};         // of output tokens; empty unless asked
  std::span<const int32_t> prompt{};               // echo with logprobs: prompt tokens come first
  std::span<const TokenOutput> prompt_logprobs{};  // one per prompt token, the first without meaning
  std::string_view finish_reason{};                // empty: null
  std::string_view stop_string{};                  // what stopped it, empty: null
};

class OpenAiWriter {
 public:
  OpenAiWriter(ApiKind kind, std::string id, int64_t created_unix_s, std::string model, const TextService& text);

  // Streaming. Each appends whole events ("data: {...}\n\n").
  void role_event(std::string& out, int index) const;  // chat only
  // Reasoning, content and tool calls in this order, an event each; log-probabilities go with the first.
  void delta_events(std::string& out, const ChoiceView& choice);
  void finish_event(std::string& out, const ChoiceView& choice);  // with log-probabilities not sent yet
  void usage_event(std::string& out, const Usage& usage) const;
  static void error_event(std::string& out, const ApiError& error);
  static void done_event(std::string& out);

  void whole_reply(std::string& out, std::span<const ChoiceView> choices, const Usage& usage);

 private:
  void open_event(std::string& out, int index) const;
  void append_head(std::string& out, std::string_view object) const;
  void append_logprobs(std::string& out, const ChoiceView& choice);
  void append_chat_logprob(std::string& out, const TokenOutput& t, bool with_top) const;
  void append_completion_logprobs(std::string& out, const ChoiceView& choice);
  void append_tool_calls(std::string& out, std::span<const ToolCallDelta> calls, bool streaming) const;
  void append_message(std::string& out, const TextDelta& text) const;

  ApiKind kind_;
  std::string id_, model_;
  int64_t created_;
  const TextService& text_;
  std::string event_prefix_;  // up to the choice's index
  std::vector<int64_t>
      text_offsets_;  // completions, by choice index: characters written in earlier log-probability lists
};

}  // namespace braid
