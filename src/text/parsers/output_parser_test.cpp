// Every dialect's calls, reasoning, repairs; and that no split of the text changes what comes out.
#include "text/parsers/output_parser.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/parsers/json_repair.h"

namespace braid {
namespace {

// A reply put together from events.
struct Reply {
  std::string content, reasoning;
  struct Call {
    std::string id, name, arguments;
    bool operator==(const Call&) const = default;
  };
  std::vector<Call> calls;
  bool operator==(const Reply&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Reply& r) {
  out << "content: " << r.content << "\nreasoning: " << r.reasoning;
  for (const auto& c : r.calls) out << "\ncall " << c.id << ' ' << c.name << ' ' << c.arguments;
  return out;
}

void collect(Reply& reply, const std::vector<OutputEvent>& events) {
  for (const OutputEvent& e : events) {
    switch (e.kind) {
      case OutputEvent::Kind::kContent:
        reply.content += e.text;
        break;
      case OutputEvent::Kind::kReasoning:
        reply.reasoning += e.text;
        break;
      case OutputEvent::Kind::kToolStart:
        ASSERT_EQ(static_cast<size_t>(e.index), reply.calls.size());
        reply.calls.push_back({e.id, e.name, ""});
        break;
      case OutputEvent::Kind::kToolArguments:
        ASSERT_LT(static_cast<size_t>(e.index), reply.calls.size());
        reply.calls[static_cast<size_t>(e.index)].arguments += e.text;
        break;
    }
  }
}

OutputParserOptions options(const std::string& reasoning, const std::string& tools, bool open = false,
                            const OrderedJson* schemas = nullptr) {
  OutputParserOptions o;
  o.reasoning = reasoning;
  o.tools = tools;
  o.reasoning_open = open;
  o.tool_schemas = schemas;
  o.make_id = [] { return std::string("id"); };
  return o;
}

Reply parse_in_pieces(const OutputParserOptions& o, const std::string& text, const std::vector<size_t>& sizes) {
  auto parser = make_output_parser(o);
  Reply reply;
  size_t at = 0;
  for (size_t i = 0; at < text.size(); ++i) {
    const size_t n = sizes.empty() ? text.size() : std::max<size_t>(1, sizes[i % sizes.size()]);
    collect(reply, parser->push(std::string_view(text).substr(at, n)));
    at += n;
  }
  collect(reply, parser->finish());
  return reply;
}

// Parses whole and byte by byte, which must agree.
Reply parse(const OutputParserOptions& o, const std::string& text) {
  const Reply whole = parse_in_pieces(o, text, {});
  EXPECT_EQ(whole, parse_in_pieces(o, text, {1})) << text;
  return whole;
}

using Calls = std::vector<Reply::Call>;

}  // namespace

TEST(OutputParser, PlainTextPassesUnchanged) {
  EXPECT_EQ(parse(options("", ""), " a\n<think>b</think> ").content, " a\n<think>b</think> ");
  EXPECT_EQ(parse(options("think", "hermes"), " plain < text \n").content, " plain < text \n");
}

TEST(OutputParser, ThinkTags) {
  const Reply r = parse(options("think", ""), "<think>\nfirst\n\nsecond\n</think>\n\nanswer\n");
  EXPECT_EQ(r.reasoning, "first\n\nsecond");
  EXPECT_EQ(r.content, "answer\n");
}

TEST(OutputParser, ReasoningOpenedByThePrompt) {
  EXPECT_TRUE(prompt_opens_reasoning("<|assistant|><think>\n"));
  EXPECT_FALSE(prompt_opens_reasoning("<think>\n\n</think>\n\n"));
  const Reply r = parse(options("think", "", true), "why</think>because");
  EXPECT_EQ(r.reasoning, "why");
  EXPECT_EQ(r.content, "because");
  EXPECT_EQ(parse(options("think", "", true), "<think>\nwhy</think>x").reasoning, "why");
  EXPECT_EQ(parse(options("think", "", true), "never closed\n").reasoning, "never closed");
}

TEST(OutputParser, ThinkTagInsideTheAnswerIsText) {
  EXPECT_EQ(parse(options("think", ""), "the tag <think> opens").content, "the tag <think> opens");
}

TEST(OutputParser, HermesCalls) {
  const Reply r =
      parse(options("think", "hermes"),
            "<think>\nlook\n</think>\n\nI will look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
            "\"</tool_call>\"}}\n</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": "
            "{}}</tool_call>\n");
  EXPECT_EQ(r.reasoning, "look");
  EXPECT_EQ(r.content, "I will look.");
  EXPECT_EQ(r.calls, (Calls{{"id", "f", R"({"a":"</tool_call>"})"}, {"id", "g", "{}"}}));
}

TEST(OutputParser, HermesRepairs) {
  const auto one = [](const std::string& body) {
    const Reply r = parse(options("", "hermes"), "<tool_call>" + body);
    return r.calls.empty() ? "content: " + r.content : r.calls[0].arguments;
  };
  EXPECT_EQ(one(R"({"name": "f", "arguments": {"a": 1,}})"), R"({"a":1})");
  EXPECT_EQ(one(R"({"name": "f", "arguments": {"a": [1, 2)"), R"({"a":[1,2]})");
  EXPECT_EQ(one(R"({"name": "f", "arguments": {"a": "cut o)"), R"({"a":"cut o"})");
  EXPECT_EQ(one(R"({"name": "f", "arguments": "{\"a\": 1}"}</tool_call>)"), R"({"a": 1})");
  EXPECT_EQ(one(R"({'name': 'f', 'arguments': {'a': True}}</tool_call>)"), R"({"a":true})");
  EXPECT_EQ(one(R"({"name": "f", "arguments": 7}</tool_call>)"), R"({"_raw":"7"})");
  EXPECT_EQ(one("nothing here</tool_call> more"), "content: <tool_call>nothing here</tool_call> more");
}

TEST(OutputParser, Qwen3CoderCallsUseTheSchema) {
  const OrderedJson tools = OrderedJson::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"}}}}}])");
  const Reply r = parse(options("", "qwen3_coder", false, &tools),
                        "ok\n<tool_call>\n<function=f>\n<parameter=s>\n10\n</parameter>\n<parameter=n>\n10\n"
                        "</parameter>\n<parameter=t>\na\nb\n</parameter>\n</function>\n</tool_call>");
  EXPECT_EQ(r.content, "ok");
  EXPECT_EQ(r.calls, (Calls{{"id", "f", R"({"s":"10","n":10,"t":"a\nb"})"}}));
}

TEST(OutputParser, GlmCalls) {
  const Reply r = parse(options("think", "glm45"),
                        "<think>w</think>\n<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Zürich "
                        "old</arg_value>\n<arg_key>n</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>"
                        "<tool_call>g</tool_call>");
  EXPECT_EQ(r.calls, (Calls{{"id", "f", R"({"city":"Zürich old","n":[1,2]})"}, {"id", "g", "{}"}}));
}

TEST(OutputParser, DeepSeekCalls) {
  const Reply v3 =
      parse(options("", "deepseek_v3"),
            "Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
            "1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>");
  EXPECT_EQ(v3.content, "Let me see.");
  EXPECT_EQ(v3.calls, (Calls{{"id", "f", R"({"a": 1})"}, {"id", "g", "{}"}}));
  const Reply v31 = parse(options("think", "deepseek_v31", true),
                          "hm<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
                          "<｜tool▁calls▁end｜>");
  EXPECT_EQ(v31.reasoning, "hm");
  EXPECT_EQ(v31.calls, (Calls{{"id", "f", R"({"a": 1})"}}));
  const Reply v32 = parse(options("", "deepseek_v32"),
                          "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
                          "string=\"true\">1</｜DSML｜parameter>\n<｜DSML｜parameter name=\"b\" "
                          "string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>");
  EXPECT_EQ(v32.calls, (Calls{{"id", "f", R"({"a":"1","b":2})"}}));
}

TEST(OutputParser, KimiCallsKeepTheirIds) {
  const Reply r =
      parse(options("", "kimi_k2"),
            "On it. <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
            "{\"a\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{\"b\": "
            "[<|tool_call_end|><|tool_calls_section_end|>");
  EXPECT_EQ(r.content, "On it.");
  EXPECT_EQ(r.calls, (Calls{{"functions.f:0", "f", R"({"a": 1})"}, {"functions.g:1", "g", R"({"b":[]})"}}));
}

TEST(OutputParser, MiniMaxCalls) {
  const Reply r = parse(options("think", "minimax_m2", true),
                        "t\n</think>\n\nText <invoke name=\"no\"> stays.\n<minimax:tool_call>\n<invoke name=\"f\">\n"
                        "<parameter name=\"a\">x y</parameter>\n<parameter name=\"n\">3</parameter>\n</invoke>\n"
                        "<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>");
  EXPECT_EQ(r.content, "Text <invoke name=\"no\"> stays.");
  EXPECT_EQ(r.calls, (Calls{{"id", "f", R"({"a":"x y","n":3})"}, {"id", "g", "{}"}}));
}

TEST(OutputParser, GptOssChannels) {
  const Reply r = parse(options("gpt_oss", "gpt_oss"),
                        "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary "
                        "to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>");
  EXPECT_EQ(r.reasoning, "think");
  EXPECT_EQ(r.calls, (Calls{{"id", "f", R"({"a": 1})"}}));
  const Reply s = parse(options("gpt_oss", ""), "<|channel|>final<|message|>Hello<|return|>");
  EXPECT_EQ(s.content, "Hello");
  EXPECT_EQ(parse(options("gpt_oss", ""), " to=functions.f<|channel|>commentary<|message|>{}<|call|>").calls.size(),
            1u);
  EXPECT_EQ(parse(options("gpt_oss", ""), " to be").content, " to be");
}

TEST(OutputParser, RepairedArguments) {
  EXPECT_EQ(repair_arguments("  {\"b\": 1, \"a\": 2} "), "{\"b\": 1, \"a\": 2}");
  EXPECT_EQ(repair_arguments(""), "{}");
  EXPECT_EQ(repair_arguments("null"), "{}");
  EXPECT_EQ(repair_arguments("{\"a\": \"x\ny\"}"), R"({"a":"x\ny"})");
  EXPECT_EQ(repair_arguments(R"({"a": "\d+"})"), R"({"a":"\\d+"})");
  EXPECT_EQ(repair_arguments(R"({a: 1, b: None})"), R"({"a":1,"b":null})");
  EXPECT_EQ(repair_arguments("{\"a\": 1}}"), R"({"a":1})");
  EXPECT_EQ(repair_arguments("rm -rf"), R"({"_raw":"rm -rf"})");
  EXPECT_EQ(repair_arguments("{\"a\": 1} and {\"b\": 2}"), R"({"_raw":"{\"a\": 1} and {\"b\": 2}"})");
  EXPECT_TRUE(OrderedJson::parse(repair_arguments(std::string(5000, '['))).contains("_raw"));
}

TEST(OutputParser, UnknownNamesAreErrors) {
  EXPECT_THROW(make_output_parser(options("", "nonsense")), Error);
  EXPECT_THROW(make_output_parser(options("nonsense", "")), Error);
  for (const std::string& name : tool_dialect_names()) EXPECT_NE(make_output_parser(options("", name)), nullptr);
}

TEST(OutputParser, DialectsAreDetected) {
  EXPECT_EQ(detect_output_dialect("...<tool_call>{...}</tool_call> <think>").tools, "hermes");
  EXPECT_EQ(detect_output_dialect("...<tool_call>{...}</tool_call> <think>").reasoning, "think");
  EXPECT_EQ(detect_output_dialect("<tool_call>x<arg_key>").tools, "glm45");
  EXPECT_EQ(detect_output_dialect("<|channel|>final<|message|>").tools, "gpt_oss");
  EXPECT_EQ(detect_output_dialect("plain").tools, "");
}

// Text made of marker pieces and other text, cut anywhere: the concatenated result does not depend on the cuts.
RC_GTEST_PROP(OutputParser, SplitsDoNotMatter, ()) {
  static const std::vector<std::string> kPieces = {"<think>",
                                                   "</think>",
                                                   "<tool_call>",
                                                   "</tool_call>",
                                                   "{\"name\": \"f\", \"arguments\": {\"a\": \"",
                                                   "\"}}",
                                                   "\n",
                                                   " ",
                                                   "text",
                                                   "<",
                                                   "<tool",
                                                   "<function=f>",
                                                   "<parameter=a>",
                                                   "</parameter>",
                                                   "</function>",
                                                   "<arg_key>",
                                                   "</arg_key>",
                                                   "<arg_value>",
                                                   "</arg_value>",
                                                   "<｜tool▁calls▁begin｜>",
                                                   "<｜tool▁call▁begin｜>",
                                                   "function<｜tool▁sep｜>f\n```json\n{}```",
                                                   "<｜tool▁call▁end｜>",
                                                   "<｜tool▁calls▁end｜>",
                                                   "<|tool_calls_section_begin|>",
                                                   "<|tool_call_begin|>",
                                                   "functions.f:0",
                                                   "<|tool_call_argument_begin|>",
                                                   "{\"a\": 1,}",
                                                   "<|tool_call_end|>",
                                                   "<|tool_calls_section_end|>",
                                                   "<minimax:tool_call>",
                                                   "<invoke name=\"f\">",
                                                   "<parameter name=\"a\">",
                                                   "</invoke>",
                                                   "</minimax:tool_call>",
                                                   "<｜DSML｜function_calls>",
                                                   "<｜DSML｜invoke name=\"f\">",
                                                   "</｜DSML｜invoke>",
                                                   "</｜DSML｜function_calls>",
                                                   "<|channel|>",
                                                   "analysis",
                                                   "final",
                                                   "commentary to=functions.f ",
                                                   "<|message|>",
                                                   "<|end|>",
                                                   "<|start|>assistant",
                                                   "<|call|>",
                                                   "<|return|>",
                                                   "<|constrain|>json"};
  const auto picks = *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, kPieces.size()));
  const auto sizes = *rc::gen::nonEmpty(rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(1, 9)));
  std::string text;
  for (const size_t pick : picks) text += kPieces[pick];
  std::vector<std::string> names = tool_dialect_names();
  names.push_back("");
  const auto o =
      options(*rc::gen::element<std::string>("", "think"), *rc::gen::elementOf(names), *rc::gen::arbitrary<bool>());
  const Reply whole = parse_in_pieces(o, text, {});
  RC_ASSERT(whole == parse_in_pieces(o, text, sizes));
  for (const auto& call : whole.calls) RC_ASSERT(OrderedJson::parse(call.arguments).is_object());
}

}  // namespace braid
