// The parser for gpt-oss, whose output is a sequence of messages, each with a channel and perhaps a recipient:
// <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
#pragma once
#include <string>
#include <vector>

#include "text/parsers/output_parser.h"

namespace braid {

class ChannelParser final : public OutputParser {
 public:
  explicit ChannelParser(OutputParserOptions options) : options_(std::move(options)) {}
  std::vector<OutputEvent> push(std::string_view delta) override;
  std::vector<OutputEvent> finish() override;

 private:
  enum class State { kHeader, kBody };
  enum class Target { kContent, kReasoning, kTool };

  void advance(bool is_final);
  void begin_body();
  void write_body(std::string_view text);
  void end_body();

  OutputParserOptions options_;
  State state_ = State::kHeader;
  Target target_ = Target::kContent;
  std::string buffer_;
  std::string header_;  // kHeader: text and <|channel|> since the message began
  std::string tool_name_, arguments_;
  int n_calls_ = 0;
  bool is_first_ = true;  // no marker seen yet: a model that ignores channels writes content
  std::vector<OutputEvent> events_;
};

}  // namespace braid
