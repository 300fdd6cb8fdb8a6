// Templates against recorded renderings: the demo model's cases, and 41 published templates where they can be had.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace braid {
namespace {

const std::string kSourceDir = BRAID_SOURCE_DIR;

std::vector<OrderedJson> read_lines(const std::string& path) {
  std::ifstream in(path);
  std::vector<OrderedJson> rows;
  for (std::string line; std::getline(in, line);) rows.push_back(OrderedJson::parse(line));
  return rows;
}

}  // namespace

TEST(ChatTemplate, DemoCasesAreExact) {
  const auto source = read_chat_template(kSourceDir + "/models/demo");
  const auto t = ChatTemplate::compile(source.text, source.special_tokens);
  const auto rows = read_lines(kSourceDir + "/tests/data/demo/template_cases.jsonl");
  ASSERT_EQ(rows.size(), 5u);
  for (const auto& row : rows) EXPECT_EQ(t.render(row, local_now()), row["rendered"].get<std::string>());
}

// A case is right when the text is equal, or when both sides fail.
TEST(ChatTemplate, PublishedTemplatesRenderAsTransformersDoes) {
  const char* path = std::getenv("BRAID_TEMPLATE_CASES");
  if (path == nullptr) GTEST_SKIP() << "BRAID_TEMPLATE_CASES does not name a cases.jsonl of published templates";
  size_t n = 0, right = 0;
  for (const auto& row : read_lines(path)) {
    ++n;
    const std::string name = row["template"].get<std::string>() + " / " + row["case"].get<std::string>();
    OrderedJson request = {{"messages", row["messages"]},
                           {"add_generation_prompt", row["add_generation_prompt"]},
                           {"chat_template_kwargs", row["kwargs"]},
                           {"tools", row["tools"]}};
    std::string got;
    bool failed = false;
    try {
      const std::string file = std::filesystem::path(path).parent_path() / row["template"].get<std::string>();
      const auto t = ChatTemplate::compile(read_text_file(file),
                                           {{"bos_token", row["bos_token"]}, {"eos_token", row["eos_token"]}});
      got = t.render(request, parse_iso_time(row["now"].get<std::string>()));
    } catch (const Error& e) {
      failed = true;
      got = e.what();
    }
    const bool expects_error = row.contains("error");
    const bool ok = expects_error ? failed : !failed && got == row["rendered"].get<std::string>();
    right += ok;
    if (!ok)
      ADD_FAILURE() << name << "\nexpected: " << (expects_error ? row["error"] : row["rendered"]).get<std::string>()
                    << "\ngot:      " << got;
  }
  std::cout << "published templates: " << right << " of " << n << " cases equal\n";
}

TEST(ChatTemplate, ServerPreparesMessages) {
  const auto lists = ChatTemplate::compile(
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}"
      "{% endfor %}{% endif %}{% endfor %}",
      {});
  const auto strings = ChatTemplate::compile("{% for m in messages %}{{ m.content + '.' }}{% endfor %}", {});
  const auto prints = ChatTemplate::compile("{% for m in messages %}{{ m.content }}{% endfor %}", {});
  EXPECT_TRUE(lists.takes_parts());
  EXPECT_FALSE(strings.takes_parts());
  EXPECT_FALSE(prints.takes_parts());  // it would print the list
  EXPECT_FALSE(strings.takes_null_content());
  const OrderedJson request = OrderedJson::parse(R"({"messages": [
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}},
        {"type": "function", "function": {"name": "g", "arguments": "not json"}}]}]})");
  const OrderedJson joined = prepare_messages_for_server(strings, request)["messages"];
  EXPECT_EQ(joined[0]["content"], "a\nb");
  EXPECT_EQ(joined[1]["content"], "");
  EXPECT_EQ(to_string(joined[1]["tool_calls"][0]["function"]["arguments"]), R"({"z":1,"a":2})");
  EXPECT_EQ(joined[1]["tool_calls"][1]["function"]["arguments"], "not json");
  EXPECT_TRUE(prepare_messages_for_server(lists, request)["messages"][0]["content"].is_array());
}

TEST(ChatTemplate, RequestVariables) {
  const auto t =
      ChatTemplate::compile("{{ bos_token }}{{ x }}{{ tools is none }}{{ add_generation_prompt }}{{ enable_thinking }}",
                            {{"bos_token", "<s>"}});
  EXPECT_EQ(
      t.render(OrderedJson::parse(R"({"messages": [], "chat_template_kwargs": {"x": 5, "enable_thinking": false}})"),
               local_now()),
      "<s>5TrueFalseFalse");
  EXPECT_THROW(t.render(OrderedJson::parse("{}"), local_now()), Error);
  EXPECT_THROW(t.render(OrderedJson::parse(R"({"messages": [], "chat_template_kwargs": 1})"), local_now()), Error);
}

TEST(ChatTemplate, NamedTemplatesOfAModelFolder) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "named_templates";
  std::filesystem::create_directories(folder);
  const auto text_of = [&](const char* config) {
    std::ofstream(folder / "tokenizer_config.json") << config;
    return read_chat_template(folder.string()).text;
  };
  EXPECT_EQ(text_of(R"({"chat_template": "T"})"), "T");
  EXPECT_EQ(text_of(R"({"chat_template": [{"name": 5, "template": "F"}, {"name": "default", "template": "D"}]})"), "D");
  EXPECT_THROW(text_of(R"({"chat_template": [{"name": "tool_use", "template": "U"}, 7, {"template": "N"}]})"), Error);
  EXPECT_THROW(text_of("{}"), Error);
  std::filesystem::remove_all(folder);
}

TEST(ChatTemplate, IsoTimes) {
  EXPECT_EQ(parse_iso_time("2026-01-15T10:30:00").tm_wday, 4);
  EXPECT_EQ(parse_iso_time("2026-01-15 10:30:00.5Z").tm_hour, 10);
  for (const char* bad : {"", "2026", "2026-13-01T00:00:00", "2026-01-15T10:30", "2026-01-15T10:30:00x"})
    EXPECT_THROW(parse_iso_time(bad), Error) << bad;
}

}  // namespace braid
