// A toy text service for the server's tests and benchmark: token 256 is the end, a token below is that byte. A chat
// renders as "<role>content" per message and "<assistant>". "<think>..</think>" is reasoning and "[name arguments]" a
// tool call, when asked for.
#pragma once
#include <nlohmann/json.hpp>

#include <string>

#include "base/error.h"
#include "server/text_service.h"

namespace braid {

inline constexpr int32_t kFakeEnd = 256;
inline constexpr int kFakeVocab = 300;

class FakeTextStream final : public TextStream {
 public:
  explicit FakeTextStream(const StreamSpec& spec) : spec_(spec), thinking_(spec.inside_reasoning) {}

  void push(int32_t token, TextDelta& out) override {
    if (token >= 256) return;
    held_ += static_cast<char>(token);
    for (const std::string& s : spec_.stop) {
      if (!held_.ends_with(s)) continue;
      stopped_by_ = s;
      if (!spec_.include_stop) held_.resize(held_.size() - s.size());
      return finish(out);
    }
    if (!may_grow()) release(out);
  }
  void finish(TextDelta& out) override { release(out); }
  std::optional<std::string> stopped_by() const override { return stopped_by_; }

 private:
  // An open UTF-8 sequence, the start of a stop string, a marker or a call: not certain yet.
  bool may_grow() const {
    size_t back = 0;
    while (back < held_.size() && back < 3 && (static_cast<uint8_t>(held_[held_.size() - 1 - back]) & 0xC0) == 0x80)
      ++back;
    if (back < held_.size()) {
      const auto lead = static_cast<uint8_t>(held_[held_.size() - 1 - back]);
      const size_t need = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
      if (need > back) return true;
    }
    const auto starts = [&](const std::string& s) {
      for (size_t n = 1; n < s.size(); ++n)
        if (held_.ends_with(s.substr(0, n))) return true;
      return false;
    };
    for (const std::string& s : spec_.stop)
      if (starts(s)) return true;
    if (spec_.parse_reasoning && (starts("<think>") || starts("</think>"))) return true;
    return spec_.parse_tools && held_.starts_with('[') && held_.find(']') == held_.npos;
  }

  void release(TextDelta& out) {
    std::string text = std::exchange(held_, {});
    if (spec_.parse_reasoning && text == "<think>") return void(thinking_ = true);
    if (spec_.parse_reasoning && text == "</think>") return void(thinking_ = false);
    if (spec_.parse_tools && text.starts_with('[') && text.ends_with(']')) {
      const size_t space = text.find(' ');
      out.tool_calls.push_back({n_calls_, fmt::format("call_{}", n_calls_), text.substr(1, space - 1),
                                text.substr(space + 1, text.size() - space - 2)});
      ++n_calls_;
      return;
    }
    (thinking_ ? out.reasoning : out.content) += text;
  }

  StreamSpec spec_;
  bool thinking_;
  int n_calls_ = 0;
  std::string held_;
  std::optional<std::string> stopped_by_;
};

class FakeText final : public TextService {
 public:
  ChatPrompt render_chat(const ChatInput& input) const override {
    std::string prompt;
    if (input.tools) prompt = fmt::format("<tools>{}", to_string(*input.tools));
    for (const OrderedJson& m : *input.messages) {
      if (m["role"] == "refuse") throw Error("no such role");
      const bool has_text = m.contains("content") && m["content"].is_string();
      prompt += fmt::format("<{}>{}", m["role"].get<std::string>(), has_text ? m["content"].get<std::string>() : "");
      if (m.contains("tool_calls")) prompt += to_string(m["tool_calls"]);
    }
    if (input.add_generation_prompt) prompt += "<assistant>";
    const bool think = input.kwargs->value("enable_thinking", false);
    if (think) prompt += "<think>";
    return {encode(prompt, false), think};
  }
  std::vector<int32_t> encode(std::string_view text, bool) const override {
    std::vector<int32_t> tokens;
    for (char c : text) tokens.push_back(static_cast<uint8_t>(c));
    return tokens;
  }
  std::string decode(std::span<const int32_t> tokens, bool) const override {
    std::string text;
    for (int32_t t : tokens)
      if (t < 256) text += static_cast<char>(t);
    return text;
  }
  std::string token_bytes(int32_t token) const override {
    return token < 256 ? std::string(1, static_cast<char>(token)) : "<end>";
  }
  std::unique_ptr<TextStream> open_stream(const StreamSpec& spec) const override {
    return std::make_unique<FakeTextStream>(spec);
  }
};

}  // namespace braid
