#include "client/dataset.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <random>
#include <set>

#include "base/error.h"
#include "text/tokenizer.h"

namespace braid {
namespace {

const Tokenizer& demo_tokenizer() {
  static const auto tokenizer = Tokenizer::load(BRAID_SOURCE_DIR "/models/demo");
  return *tokenizer;
}

std::string written(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

DatasetOptions small(const std::string& name) {
  DatasetOptions o;
  o.name = name;
  o.num_prompts = 50;
  o.input_len = 40;
  o.output_len = 20;
  return o;
}

TEST(Dataset, RandomLengthsAreExactAndASeedGivesTheSamePrompts) {
  const DatasetOptions o = small("random");
  const auto first = make_dataset(o, 7, &demo_tokenizer(), 0);
  std::mt19937 unrelated(7);
  for (int i = 0; i < 1000; ++i) unrelated();  // nobody's draws matter but its own
  EXPECT_EQ(first, make_dataset(o, 7, &demo_tokenizer(), 0));
  EXPECT_NE(first, make_dataset(o, 8, &demo_tokenizer(), 0));
  ASSERT_EQ(first.size(), 50u);
  for (const BenchPrompt& p : first) {
    EXPECT_EQ(p.tokens.size(), 40u);
    EXPECT_EQ(p.n_output, 20);
    EXPECT_EQ(demo_tokenizer().encode(p.text, false), p.tokens);
    for (int32_t id : p.tokens) EXPECT_FALSE(demo_tokenizer().is_special(id));
  }
  EXPECT_NE(first[0].tokens, first[1].tokens);
}

TEST(Dataset, RangeRatioBoundsTheLengths) {
  DatasetOptions o = small("random");
  o.range_ratio = 0.5;
  o.num_prompts = 400;
  std::set<size_t> inputs;
  std::set<int> outputs;
  for (const BenchPrompt& p : make_dataset(o, 1, nullptr, 100)) {
    inputs.insert(p.tokens.size()), outputs.insert(p.n_output);
    for (int32_t id : p.tokens) EXPECT_TRUE(0 <= id && id < 100);
    EXPECT_EQ(p.text, "");
  }
  EXPECT_EQ(std::make_pair(*inputs.begin(), *inputs.rbegin()), std::make_pair(size_t{20}, size_t{40}));
  EXPECT_EQ(std::make_pair(*outputs.begin(), *outputs.rbegin()), std::make_pair(10, 20));
}

TEST(Dataset, RandomPrefixIsCommon) {
  DatasetOptions o = small("random");
  o.prefix_len = 16;
  std::set<std::vector<int32_t>> prefixes;
  for (const BenchPrompt& p : make_dataset(o, 1, nullptr, 1000)) {
    ASSERT_EQ(p.tokens.size(), 56u);
    prefixes.insert({p.tokens.begin(), p.tokens.begin() + 16});
  }
  EXPECT_EQ(prefixes.size(), 1u);
}

TEST(Dataset, PrefixRepetitionSharesEachPrefixEvenly) {
  DatasetOptions o = small("prefix_repetition");
  o.repeated_prefix_len = 32, o.suffix_len = 8, o.num_prefixes = 5, o.repeated_output_len = 3;
  std::map<std::vector<int32_t>, int> uses;
  std::set<std::vector<int32_t>> whole;
  for (const BenchPrompt& p : make_dataset(o, 1, nullptr, 1000)) {
    ASSERT_EQ(p.tokens.size(), 40u);
    EXPECT_EQ(p.n_output, 3);
    ++uses[{p.tokens.begin(), p.tokens.begin() + 32}];
    whole.insert(p.tokens);
  }
  ASSERT_EQ(uses.size(), 5u);
  for (const auto& [prefix, n] : uses) EXPECT_EQ(n, 10);
  EXPECT_EQ(whole.size(), 50u);
}

TEST(Dataset, ShareGptTakesTheFirstTwoTurns) {
  DatasetOptions o = small("sharegpt");
  o.num_prompts = 3;
  o.path = written("sharegpt.json", R"([{"conversations": [{"from": "human", "value": "What is the capital of Kenya?"},
      {"from": "gpt", "value": "The capital of Kenya is Nairobi."}]}, {"conversations": []},
      {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}])");
  const auto prompts = make_dataset(o, 1, &demo_tokenizer(), 0);
  ASSERT_EQ(prompts.size(), 3u);  // one is usable, and repeated
  for (const BenchPrompt& p : prompts) {
    EXPECT_EQ(p.text, "What is the capital of Kenya?");
    EXPECT_EQ(p.tokens, demo_tokenizer().encode(p.text, true));
    EXPECT_EQ(p.n_output, static_cast<int>(demo_tokenizer().encode("The capital of Kenya is Nairobi.", false).size()));
  }
  o.sharegpt_output_len = 9;
  EXPECT_EQ(make_dataset(o, 1, &demo_tokenizer(), 0)[0].n_output, 9);
}

TEST(Dataset, CustomLines) {
  DatasetOptions o = small("custom");
  o.num_prompts = 2;
  o.path = written("custom.jsonl", "{\"prompt\": \"one\"}\n\n{\"prompt\": \"two\", \"output_tokens\": 5}\n");
  std::map<std::string, int> outputs;
  for (const BenchPrompt& p : make_dataset(o, 1, &demo_tokenizer(), 0)) outputs[p.text] = p.n_output;
  EXPECT_EQ(outputs, (std::map<std::string, int>{{"one", 256}, {"two", 5}}));
  for (const char* bad : {"{\"prompt\": 3}", "no JSON", "{\"prompt\": \"x\", \"output_tokens\": 0}"}) {
    o.path = written("bad.jsonl", bad);
    EXPECT_THROW(make_dataset(o, 1, &demo_tokenizer(), 0), Error) << bad;
  }
}

TEST(Dataset, ImpossibleOptionsAreNamed) {
  std::vector<std::string> problems;
  DatasetOptions o = small("custom");
  check_dataset(o, false, problems);
  EXPECT_EQ(problems.size(), 2u);
  o = small("random");
  o.path = "x";
  problems.clear();
  check_dataset(o, true, problems);
  EXPECT_EQ(problems.size(), 1u);
}

}  // namespace
}  // namespace braid
