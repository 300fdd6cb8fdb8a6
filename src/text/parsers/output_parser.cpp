// Which parser a name means, and which name a chat template means.
#include "text/parsers/output_parser.h"

#include <fmt/format.h>

#include <random>

#include "base/error.h"
#include "text/parsers/channel_parser.h"
#include "text/parsers/tagged_parser.h"

namespace braid {
namespace {

std::string random_call_id() {
  std::random_device source;
  return fmt::format("call_{:08x}{:08x}{:08x}", source(), source(), source());
}

}  // namespace

std::unique_ptr<OutputParser> make_output_parser(OutputParserOptions options) {
  if (!options.make_id) options.make_id = random_call_id;
  if (options.tools == "gpt_oss" || options.reasoning == "gpt_oss")
    return std::make_unique<ChannelParser>(std::move(options));
  if (!options.reasoning.empty() && options.reasoning != "think")
    throw Error("unknown reasoning parser \"{}\"; known are think, gpt_oss", options.reasoning);
  const ToolDialect* dialect = options.tools.empty() ? nullptr : find_tool_dialect(options.tools);
  if (dialect == nullptr && !options.tools.empty())
    throw Error("unknown tool parser \"{}\"; known are {}", options.tools, fmt::join(tool_dialect_names(), ", "));
  return std::make_unique<TaggedParser>(std::move(options), dialect);
}

OutputDialect detect_output_dialect(std::string_view chat_template) {
  static constexpr std::pair<std::string_view, std::string_view> kToolMarks[] = {
      {"<|tool_calls_section_begin|>", "kimi_k2"},
      {"<minimax:tool_call>", "minimax_m2"},
      {"｜DSML｜", "deepseek_v32"},
      {"<｜tool▁call▁begin｜>", "deepseek_v3"},
      {"<arg_key>", "glm45"},
      {"<function=", "qwen3_coder"},
      {"<tool_call>", "hermes"}};
  auto mentions = [&](std::string_view mark) { return chat_template.find(mark) != std::string_view::npos; };
  OutputDialect found;
  if (mentions("<|channel|>") && mentions("<|message|>")) return {"gpt_oss", "gpt_oss"};
  for (const auto& [mark, name] : kToolMarks)
    if (mentions(mark)) {
      found.tools = name;
      break;
    }
  if (mentions("<think>") || mentions("</think>")) found.reasoning = "think";
  return found;
}

bool prompt_opens_reasoning(std::string_view prompt) {
  const size_t end = prompt.find_last_not_of(" \t\r\n");
  return end != std::string_view::npos && prompt.substr(0, end + 1).ends_with("<think>");
}

}  // namespace braid
