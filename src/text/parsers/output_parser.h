// Turns a model's text into what a chat reply is made of: reasoning, content and tool calls, while it streams. One
// parser per generated sequence, used by one thread; deltas may split the text anywhere, also inside a marker.
//
//   auto parser = make_output_parser({.reasoning = "think", .tools = "hermes"});
//   for (delta : deltas) for (OutputEvent& e : parser->push(delta)) ...
//   for (OutputEvent& e : parser->finish()) ...
//
// A tool call is reported when its text is complete: one kToolStart, then its arguments. Arguments are always a JSON
// object: text that is not JSON is repaired, and what cannot be repaired becomes {"_raw": text}.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace braid {

struct OutputEvent {
  enum class Kind { kContent, kReasoning, kToolStart, kToolArguments };
  Kind kind;
  std::string text;      // the delta: content, reasoning or arguments
  int index = 0;         // of the tool call, for the two tool kinds
  std::string id, name;  // kToolStart only
};

class OutputParser {
 public:
  virtual ~OutputParser() = default;
  virtual std::vector<OutputEvent> push(std::string_view delta) = 0;
  virtual std::vector<OutputEvent> finish() = 0;  // the end of the sequence: what was withheld comes out; call once
};

struct OutputParserOptions {
  std::string reasoning;        // "", "think" or "gpt_oss"
  std::string tools;            // "" or one of tool_dialect_names()
  bool reasoning_open = false;  // the prompt ended inside <think>, see prompt_opens_reasoning
  const OrderedJson* tool_schemas =
      nullptr;                           // the request's `tools`: types for dialects that write values as bare text
  std::function<std::string()> make_id;  // default: "call_" and 24 random hexadecimal digits
};

// Throws Error for an unknown name, listing the known ones. Copies what it needs of tool_schemas.
std::unique_ptr<OutputParser> make_output_parser(OutputParserOptions options);
const std::vector<std::string>& tool_dialect_names();

// Which of them a model speaks, by the markers in its chat template; "" where nothing is recognised.
struct OutputDialect {
  std::string reasoning, tools;
};
OutputDialect detect_output_dialect(std::string_view chat_template);

// Whether a rendered prompt ends with an open <think>, so that the reply starts as reasoning.
bool prompt_opens_reasoning(std::string_view prompt);

}  // namespace braid
