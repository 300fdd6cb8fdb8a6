// The interpreter against Python's jinja2: recorded cases for every feature, random templates live where Python has the
// library; and what Python does not have: positions of errors, limits.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "text/chat_template.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace braid {
namespace {

const std::string kSourceDir = BRAID_SOURCE_DIR;

TemplateVariables variables_of(const OrderedJson& context) {
  TemplateVariables variables;
  for (const auto& [name, value] : context.items()) variables.emplace_back(name, Value::from_json(value));
  return variables;
}

std::string render(const std::string& source, const TemplateVariables& variables = {}, const JinjaLimits& limits = {}) {
  return render_template(parse_template(source), variables, parse_iso_time("2026-01-15T10:30:00"), limits);
}

std::string error_of(const std::string& source, const JinjaLimits& limits = {}) {
  try {
    render(source, {}, limits);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// Compares each row of what tools/jinja_cases.py writes: equal text, or an error on both sides.
size_t compare_rows(std::istream& in) {
  size_t n = 0;
  TemplateVariables variables;
  for (std::string line; std::getline(in, line);) {
    const OrderedJson row = OrderedJson::parse(line);
    if (row.contains("context")) {
      variables = variables_of(row["context"]);
      continue;
    }
    ++n;
    const std::string source = row["template"].get<std::string>();
    try {
      const std::string got = render(source, variables);
      if (row.contains("error"))
        ADD_FAILURE() << source << "\nPython: " << row["error"] << "\ngot: " << got;
      else
        EXPECT_EQ(got, row["output"].get<std::string>()) << source;
    } catch (const Error& e) {
      if (!row.contains("error")) ADD_FAILURE() << source << "\nPython: " << row["output"] << "\nerror: " << e.what();
    }
  }
  return n;
}

}  // namespace

TEST(Jinja, RecordedCasesMatchPython) {
  std::ifstream in(kSourceDir + "/tests/data/jinja/cases.jsonl");
  EXPECT_GE(compare_rows(in), 130u);
}

TEST(Jinja, RandomTemplatesMatchPython) {
  const char* seed = std::getenv("BRAID_FUZZ_SEED");
  const std::string command =
      "python3 -W ignore " + kSourceDir + "/tools/jinja_cases.py --fuzz 800 --seed " + (seed ? seed : "1");
  std::FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text(1 << 16, '\0');
  std::stringstream rows;
  for (size_t n = 0; (n = std::fread(text.data(), 1, text.size(), pipe)) > 0;)
    rows.write(text.data(), static_cast<std::streamsize>(n));
  if (pclose(pipe) != 0) GTEST_SKIP() << "python3 with jinja2 cannot be had: " << rows.str().substr(0, 200);
  std::cout << "compared " << compare_rows(rows) << " random templates with Python\n";
}

TEST(Jinja, SyntaxErrorsHaveLineAndColumn) {
  EXPECT_EQ(error_of("a\n  {% nonsense %}").find("chat template, line 2, column 6: unknown tag 'nonsense'"), 0u);
  EXPECT_EQ(error_of("é{{ 1 + }}").find("chat template, line 1, column 9:"), 0u) << error_of("é{{ 1 + }}");
  EXPECT_EQ(error_of("{{ 1 }}\n{{ 1 | upper | nope }}"), "chat template, line 2, column 16: no filter named 'nope'");
  EXPECT_EQ(error_of("{{ 1 is not nope }}"), "chat template, line 1, column 13: no test named 'nope'");
  EXPECT_NE(error_of("{% if 1 %}").find("the template ends before 'endif'"), std::string::npos);
  EXPECT_NE(error_of("{{ 'a }}").find("not closed"), std::string::npos);
  EXPECT_NE(error_of("{% include 'x' %}").find("not available"), std::string::npos);
  EXPECT_NE(error_of("\xff").find("UTF-8"), std::string::npos);
}

TEST(Jinja, RuntimeErrorsHaveALine) {
  EXPECT_EQ(error_of("\n\n{{ missing.x }}"), "chat template, line 3: 'missing' is undefined");
  EXPECT_EQ(error_of("{{ raise_exception('no') }}"), "chat template, line 1: no");
}

TEST(Jinja, Limits) {
  const JinjaLimits small{.steps = 100'000, .output_bytes = 1 << 16, .total_bytes = 1 << 22, .depth = 100};
  EXPECT_NE(error_of("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", small), "");
  EXPECT_NE(
      error_of("{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}", small),
      "");
  EXPECT_NE(error_of("{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = [n.l] %}{% endfor %}", small),
            "");
  EXPECT_NE(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", small), "");
  EXPECT_NE(error_of("{{ 'x' * 1000000000 }}", small), "");
  EXPECT_NE(error_of("{{ 'x'.center(1000000000) }}", small), "");
  EXPECT_NE(error_of("{{ ('a' * 60000).replace('a', 'b' * 60000) }}", small), "");
  EXPECT_NE(error_of("{{ '%1000000000d' % 1 }}", small), "");
  EXPECT_NE(error_of("{% set n = namespace(a=1) %}{% set n.n = n %}{{ n }}", small), "");
  EXPECT_NE(error_of("{% for i in range(9999) %}{{ 'abcdefghij' * 10 }}{% endfor %}", small), "");
  EXPECT_NE(error_of("{{ " + std::string(10'000, '(') + "1" + std::string(10'000, ')') + " }}"), "");
  EXPECT_NE(error_of("{{ 1" + std::string(10'000, '+') + "1 }}"), "");
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "|upper";
  EXPECT_NE(error_of("{{ 'a'" + deep + " }}"), "");
}

// The default limits must not stand in the way of a long conversation.
TEST(Jinja, LongConversationsRender) {
  OrderedJson messages = OrderedJson::array();
  for (int i = 0; i < 2000; ++i)
    messages.push_back({{"role", i % 2 ? "assistant" : "user"}, {"content", std::string(1000, 'x')}});
  const std::string source =
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content|length %}"
      "{{ '<' + m.role + '>' + m['content'] | trim }}{% endfor %}{{ ns.n }}";
  const std::string out = render(source, {{"messages", Value::from_json(messages)}});
  EXPECT_TRUE(out.ends_with("2000000"));
}

}  // namespace braid
