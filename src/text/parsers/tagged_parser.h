// The parser for models that mark reasoning with <think> and tool calls with tags or special tokens.
#pragma once
#include <string>
#include <vector>

#include "text/parsers/output_parser.h"
#include "text/parsers/tool_dialects.h"

namespace braid {

class TaggedParser final : public OutputParser {
 public:
  // `dialect` may be null: no tool calls are looked for. It outlives the parser.
  TaggedParser(OutputParserOptions options, const ToolDialect* dialect);
  std::vector<OutputEvent> push(std::string_view delta) override;
  std::vector<OutputEvent> finish() override;

 private:
  enum class State { kStart, kReasoning, kContent, kCall };

  void advance(bool is_final);
  // Each handles one state as far as the buffer goes; true when the state may have changed and work may remain.
  bool advance_start(bool is_final);
  bool advance_reasoning(bool is_final);
  bool advance_content(bool is_final);
  bool advance_call(bool is_final);
  bool end_call(size_t body_size, size_t end_size);
  void emit(OutputEvent::Kind kind, std::string_view text);
  void emit_content(std::string_view text);
  bool drop_leading_newlines(bool is_final);  // false: all there is may still be dropped

  OutputParserOptions options_;
  const ToolDialect* dialect_;
  ParameterTypes types_;
  State state_;
  std::string buffer_;         // text not yet decided on
  size_t scanned_ = 0;         // kCall: no end marker starts before this
  size_t n_rejected_ = 0;      // kCall: end markers that sat inside a value
  size_t first_rejected_ = 0;  // kCall: where the first of them was
  bool in_section_ = false;
  bool after_call_ = false;        // white space here belongs to the layout of calls
  bool has_calls_ = false;         // and so does white space at the very end
  std::string space_before_call_;  // comes back when the call turns out to be none
  bool drop_newlines_ = false;     // after <think> and </think>
  int n_calls_ = 0;
  std::vector<OutputEvent> events_;
};

}  // namespace braid
