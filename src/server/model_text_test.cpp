// The real text module behind the server's seam, on the demo's tokenizer and template.
#include "server/model_text.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace braid {
namespace {

const char* demo_dir() { return BRAID_SOURCE_DIR "/models/demo"; }

ChatPrompt render(const ModelText& text, const char* messages, const char* kwargs = "{}") {
  const OrderedJson m = OrderedJson::parse(messages), k = OrderedJson::parse(kwargs);
  return text.render_chat({.messages = &m, .tools = nullptr, .kwargs = &k, .add_generation_prompt = true});
}

// What a stream makes of a text, given whole or merged token by token.
TextDelta stream(const ModelText& text, const StreamSpec& spec, const std::string& answer) {
  const auto s = text.open_stream(spec);
  TextDelta out;
  for (int32_t token : text.encode(answer, false)) {
    s->push(token, out);
    if (s->stopped_by()) return out;
  }
  s->finish(out);
  return out;
}

TEST(ModelText, RendersTheDemosTemplate) {
  const auto text = ModelText::load(demo_dir());
  const ChatPrompt p =
      render(*text, R"([{"role":"user","content":[{"type":"text","text":"hi"},{"type":"text","text":"you"}]}])");
  const std::string prompt = text->decode(p.tokens, false);
  EXPECT_EQ(prompt, "<|bos|><|im_start|>user\nhi\nyou<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_FALSE(p.inside_reasoning);
  EXPECT_EQ(std::count(p.tokens.begin(), p.tokens.end(), 0), 1);  // one BOS
  EXPECT_TRUE(render(*text, R"([{"role":"user","content":"hi"}])", R"({"enable_thinking":true})").inside_reasoning);
}

TEST(ModelText, ToolArgumentsBecomeObjects) {
  const auto text = ModelText::load(demo_dir());
  const ChatPrompt p = render(*text, R"([{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":
      [{"type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":2}"}}]}])");
  EXPECT_NE(text->decode(p.tokens, false).find(R"({"name": "f", "arguments": {"z": 1, "a": 2}})"), std::string::npos);
}

TEST(ModelText, SplitsReasoningAndToolCalls) {
  const auto text = ModelText::load(demo_dir());
  const std::string answer = "hm</think>so <tool_call>{\"name\": \"look\", \"arguments\": {\"q\": 1}}</tool_call>";
  StreamSpec spec;
  spec.parse_reasoning = spec.parse_tools = spec.inside_reasoning = true;
  const TextDelta out = stream(*text, spec, answer);
  EXPECT_EQ(out.reasoning, "hm");
  EXPECT_EQ(out.content.substr(0, 2), "so");
  ASSERT_EQ(out.tool_calls.size(), 1u);
  EXPECT_EQ(out.tool_calls[0].name, "look");
  EXPECT_EQ(OrderedJson::parse(out.tool_calls[0].arguments), OrderedJson::parse(R"({"q":1})"));
  EXPECT_FALSE(out.tool_calls[0].id.empty());
  // Without parsing the marks are special tokens, which text does not show.
  const TextDelta plain = stream(*text, {}, "a</think>b");
  EXPECT_EQ(plain.content, "ab");
  StreamSpec with_specials;
  with_specials.skip_special_tokens = false;
  EXPECT_EQ(stream(*text, with_specials, "a</think>b").content, "a</think>b");
}

TEST(ModelText, StopStrings) {
  const auto text = ModelText::load(demo_dir());
  StreamSpec spec;
  spec.stop = {"never", "3 + 4"};
  EXPECT_EQ(stream(*text, spec, "1 + 2, 3 + 4, 5").content, "1 + 2, ");
  spec.include_stop = true;
  EXPECT_EQ(stream(*text, spec, "1 + 2, 3 + 4, 5").content, "1 + 2, 3 + 4");
  EXPECT_EQ(stream(*text, spec, "1 + 2, 3 +").content, "1 + 2, 3 +");  // a beginning of one is released at the end
}

TEST(ModelText, MistakesAreErrors) {
  EXPECT_THROW(ModelText::load("/nowhere"), Error);
  EXPECT_THROW(ModelText::load(demo_dir(), {.chat_template = "{% if %}"}), Error);
  EXPECT_THROW(ModelText::load(demo_dir(), {.chat_template = "", .tool_parser = "morse"}), Error);
}

}  // namespace
}  // namespace braid
