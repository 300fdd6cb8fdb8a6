// See openai_writer.h.
#include "server/openai_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <map>

#include "server/json_escape.h"

namespace braid {
namespace {

template <typename... Args>
void append(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

void append_string_or_null(std::string& out, std::string_view text) {
  if (text.empty())
    out += "null";
  else
    append_json_string(out, text);
}

// JSON has no infinity; clients expect a very small number instead.
void append_logprob_value(std::string& out, float logprob) {
  if (std::isfinite(logprob))
    append(out, "{}", logprob);
  else
    out += "-9999.0";
}

void append_usage(std::string& out, const Usage& u) {
  append(
      out,
      R"("usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}}}})",
      u.prompt_tokens, u.prompt_tokens + u.completion_tokens, u.completion_tokens, u.cached_tokens);
}

int64_t n_characters(std::string_view utf8) {
  int64_t n = 0;
  for (char c : utf8) n += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return n;
}

// OpenAI's name of a token that is no text of its own: "bytes:\xe2\x80".
std::string completion_token_name(const std::string& bytes) {
  std::string escaped;
  append_json_string(escaped, bytes);
  if (escaped.find("\xEF\xBF\xBD") == escaped.npos || bytes.find("\xEF\xBF\xBD") != bytes.npos) return bytes;
  std::string name = "bytes:";
  for (char c : bytes) name += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  return name;
}

}  // namespace

std::string error_body(const ApiError& e) {
  std::string out = R"({"error":{"message":)";
  append_json_string(out, e.what());
  out += R"(,"type":)";
  append_json_string(out, e.type);
  out += R"(,"param":)";
  append_string_or_null(out, e.param);
  out += R"(,"code":)";
  if (e.code.empty())
    append(out, "{}", e.status);
  else
    append_json_string(out, e.code);
  return out + "}}";
}

OpenAiWriter::OpenAiWriter(ApiKind kind, std::string id, int64_t created, std::string model, const TextService& text)
    : kind_(kind), id_(std::move(id)), model_(std::move(model)), created_(created), text_(text) {
  event_prefix_ = "data: ";
  append_head(event_prefix_, kind_ == ApiKind::kChat ? "chat.completion.chunk" : "text_completion");
  event_prefix_ += R"("choices":[{"index":)";
}

void OpenAiWriter::append_head(std::string& out, std::string_view object) const {
  out += R"({"id":)";
  append_json_string(out, id_);
  append(out, R"(,"object":"{}","created":{},"model":)", object, created_);
  append_json_string(out, model_);
  out += ',';
}

void OpenAiWriter::open_event(std::string& out, int index) const {
  out += event_prefix_;
  const fmt::format_int digits(index);
  out.append(digits.data(), digits.size());
}

void OpenAiWriter::role_event(std::string& out, int index) const {
  open_event(out, index);
  out += R"(,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})"
         "\n\n";
}

void OpenAiWriter::delta_events(std::string& out, const ChoiceView& choice) {
  const TextDelta& d = *choice.text;
  bool first = true;
  const auto close = [&] {
    if (first && !choice.logprobs.empty()) {
      out += R"(,"logprobs":)";
      append_logprobs(out, choice);
      out += R"(,"finish_reason":null}]})"
             "\n\n";
    } else {
      out += R"(,"logprobs":null,"finish_reason":null}]})"
             "\n\n";
    }
    first = false;
  };
  if (kind_ == ApiKind::kCompletion) {
    open_event(out, choice.index);
    out += R"(,"text":)";
    append_json_string(out, d.content);
    return close();
  }
  if (!d.reasoning.empty()) {
    open_event(out, choice.index);
    out += R"(,"delta":{"reasoning_content":)";
    append_json_string(out, d.reasoning);
    out += '}';
    close();
  }
  if (!d.content.empty()) {
    open_event(out, choice.index);
    out += R"(,"delta":{"content":)";
    append_json_string(out, d.content);
    out += '}';
    close();
  }
  if (!d.tool_calls.empty()) {
    open_event(out, choice.index);
    out += R"(,"delta":{)";
    append_tool_calls(out, d.tool_calls, true);
    out += '}';
    close();
  }
}

void OpenAiWriter::finish_event(std::string& out, const ChoiceView& choice) {
  open_event(out, choice.index);
  out += kind_ == ApiKind::kChat ? R"(,"delta":{},"logprobs":)" : R"(,"text":"","logprobs":)";
  append_logprobs(out, choice);
  out += R"(,"finish_reason":)";
  append_string_or_null(out, choice.finish_reason);
  out += R"(,"stop_reason":)";
  append_string_or_null(out, choice.stop_string);
  out += "}]}\n\n";
}

void OpenAiWriter::usage_event(std::string& out, const Usage& usage) const {
  out += "data: ";
  append_head(out, kind_ == ApiKind::kChat ? "chat.completion.chunk" : "text_completion");
  out += R"("choices":[],)";
  append_usage(out, usage);
  out += "}\n\n";
}

void OpenAiWriter::error_event(std::string& out, const ApiError& error) {
  append(out, "data: {}\n\n", error_body(error));
}
void OpenAiWriter::done_event(std::string& out) { out += "data: [DONE]\n\n"; }

void OpenAiWriter::append_logprobs(std::string& out, const ChoiceView& choice) {
  if (choice.logprobs.empty() && choice.prompt_logprobs.empty()) {
    out += "null";
    return;
  }
  if (kind_ == ApiKind::kCompletion) return append_completion_logprobs(out, choice);
  out += R"({"content":[)";
  for (size_t i = 0; i < choice.logprobs.size(); ++i) {
    if (i) out += ',';
    append_chat_logprob(out, choice.logprobs[i], true);
  }
  out += "]}";
}

void OpenAiWriter::append_chat_logprob(std::string& out, const TokenOutput& t, bool with_top) const {
  const std::string bytes = text_.token_bytes(t.token);
  out += R"({"token":)";
  append_json_string(out, bytes);
  out += R"(,"logprob":)";
  append_logprob_value(out, t.logprob);
  out += R"(,"bytes":[)";
  for (size_t i = 0; i < bytes.size(); ++i) append(out, "{}{}", i ? "," : "", static_cast<uint8_t>(bytes[i]));
  out += ']';
  if (with_top) {
    out += R"(,"top_logprobs":[)";
    for (size_t i = 0; i < t.top.size(); ++i) {
      if (i) out += ',';
      append_chat_logprob(out, {t.top[i].first, t.top[i].second, {}}, false);
    }
    out += ']';
  }
  out += '}';
}

// Four parallel lists. Alternatives are keyed by text, so of two tokens with the same text the likelier one is kept;
// the token itself is always among them.
void OpenAiWriter::append_completion_logprobs(std::string& out, const ChoiceView& choice) {
  std::string tokens, values, tops, offsets;
  if (text_offsets_.size() <= static_cast<size_t>(choice.index)) text_offsets_.resize(choice.index + 1);
  int64_t& offset = text_offsets_[choice.index];
  const auto add = [&](int32_t token, const TokenOutput* t) {
    const char* comma = tokens.empty() ? "" : ",";
    const std::string bytes = text_.token_bytes(token);
    const std::string name = completion_token_name(bytes);
    tokens += comma;
    append_json_string(tokens, name);
    append(offsets, "{}{}", comma, offset);
    offset += n_characters(bytes);
    values += comma;
    tops += comma;
    if (!t) {
      values += "null";
      tops += "null";
      return;
    }
    append_logprob_value(values, t->logprob);
    std::map<std::string, float> by_name{{name, t->logprob}};
    for (const auto& [id, logprob] : t->top) {
      const auto [it, added] = by_name.emplace(completion_token_name(text_.token_bytes(id)), logprob);
      if (!added) it->second = std::max(it->second, logprob);
    }
    tops += '{';
    for (bool first = true; const auto& [text, logprob] : by_name) {
      if (!std::exchange(first, false)) tops += ',';
      append_json_string(tops, text);
      tops += ':';
      append_logprob_value(tops, logprob);
    }
    tops += '}';
  };
  for (size_t i = 0; i < choice.prompt_logprobs.size(); ++i)
    add(choice.prompt[i], i ? &choice.prompt_logprobs[i] : nullptr);
  for (const TokenOutput& t : choice.logprobs) add(t.token, &t);
  append(out, R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})", tokens, values, tops,
         offsets);
}

void OpenAiWriter::append_tool_calls(std::string& out, std::span<const ToolCallDelta> calls, bool streaming) const {
  out += R"("tool_calls":[)";
  for (size_t i = 0; i < calls.size(); ++i) {
    const ToolCallDelta& c = calls[i];
    out += i ? ",{" : "{";
    if (streaming) append(out, R"("index":{},)", c.index);
    if (!c.id.empty() || !streaming) {
      out += R"("id":)";
      append_json_string(out, c.id);
      out += R"(,"type":"function",)";
    }
    out += R"("function":{)";
    if (!c.name.empty() || !streaming) {
      out += R"("name":)";
      append_json_string(out, c.name);
      out += ',';
    }
    out += R"("arguments":)";
    append_json_string(out, c.arguments);
    out += "}}";
  }
  out += ']';
}

void OpenAiWriter::append_message(std::string& out, const TextDelta& text) const {
  std::vector<ToolCallDelta> calls;
  for (const ToolCallDelta& c : text.tool_calls) {  // pieces of one call are adjacent or not; the index tells
    if (calls.size() <= static_cast<size_t>(c.index)) calls.resize(c.index + 1);
    ToolCallDelta& whole = calls[c.index];
    whole.id += c.id;
    whole.name += c.name;
    whole.arguments += c.arguments;
  }
  out += R"("message":{"role":"assistant","content":)";
  if (text.content.empty() && !calls.empty())
    out += "null";
  else
    append_json_string(out, text.content);
  if (!text.reasoning.empty()) {
    out += R"(,"reasoning_content":)";
    append_json_string(out, text.reasoning);
  }
  if (!calls.empty()) {
    out += ',';
    append_tool_calls(out, calls, false);
  }
  out += '}';
}

void OpenAiWriter::whole_reply(std::string& out, std::span<const ChoiceView> choices, const Usage& usage) {
  append_head(out, kind_ == ApiKind::kChat ? "chat.completion" : "text_completion");
  out += R"("choices":[)";
  for (size_t i = 0; i < choices.size(); ++i) {
    const ChoiceView& c = choices[i];
    append(out, R"({}{{"index":{},)", i ? "," : "", c.index);
    if (kind_ == ApiKind::kChat)
      append_message(out, *c.text);
    else
      out += R"("text":)", append_json_string(out, c.text->content);
    out += R"(,"logprobs":)";
    append_logprobs(out, c);
    out += R"(,"finish_reason":)";
    append_string_or_null(out, c.finish_reason);
    out += R"(,"stop_reason":)";
    append_string_or_null(out, c.stop_string);
    out += '}';
  }
  out += "],";
  append_usage(out, usage);
  out += '}';
}

}  // namespace braid
