#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "text/test_data.h"
#include "text/utf8.h"

namespace braid {

namespace {

using Ids = std::vector<int32_t>;

// A byte-level BPE over a few letters with a BOS, as text so that tests can bend it.
Json small_tokenizer() {
  return Json::parse(R"({
    "added_tokens": [
      {"id": 6, "content": "<s>", "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false},
      {"id": 7, "content": "</s>", "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "</s>", "type_id": 0}}],
      "special_tokens": {"<s>": {"ids": [6]}, "</s>": {"ids": [7]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "aa": 2, "aaaa": 3, "Ġ": 4, "aaaaaaaa": 5},
              "merges": ["a a", ["aa", "aa"], "aaaa aaaa"]}})");
}

std::string error_of(const std::string& json, const std::string& config = "") {
  try {
    Tokenizer::parse(json, config);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST(Tokenizer, DemoCasesAreExact) {
  const auto tokenizer = Tokenizer::load(BRAID_SOURCE_DIR "/models/demo");
  std::ifstream in(BRAID_SOURCE_DIR "/tests/data/demo/tokenizer_cases.jsonl");
  int n_cases = 0;
  for (std::string line; std::getline(in, line); ++n_cases) {
    const Json c = Json::parse(line);
    const std::string text = c["text"];
    EXPECT_EQ(tokenizer->encode(text, true), c["ids"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer->encode(text, false), c["ids_no_special"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer->decode(c["ids_no_special"].get<Ids>(), false), c["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer->decode(c["ids"].get<Ids>(), true), c["decoded_skip"].get<std::string>());
  }
  EXPECT_GT(n_cases, 20);
}

TEST(Tokenizer, GoldenCasesOfEveryKindAreExact) {
  EXPECT_GE(golden_tokenizers().size(), 25u);
  for (const GoldenTokenizer& g : golden_tokenizers()) {
    for (const Json& c : g.cases["encode"]) {
      const std::string text = c["text"];
      EXPECT_EQ(g.tokenizer->encode(text, true), c["ids"].get<Ids>()) << g.name << ": " << text;
      EXPECT_EQ(g.tokenizer->encode(text, false), c["plain"].get<Ids>()) << g.name << ": " << text;
    }
    for (const Json& c : g.cases["decode"]) {
      const Ids ids = c["ids"];
      EXPECT_EQ(g.tokenizer->decode(ids, false), c["decoded"].get<std::string>()) << g.name << ": " << c["ids"];
      EXPECT_EQ(g.tokenizer->decode(ids, true), c["skip"].get<std::string>()) << g.name << ": " << c["ids"];
    }
  }
}

TEST(Tokenizer, ConfigNamesTokensAndTemplates) {
  const std::string config =
      R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null,
    "unk_token": "<none>", "chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})";
  const auto t = Tokenizer::parse(small_tokenizer().dump(), config);
  EXPECT_EQ(t->bos()->content, "<s>");
  EXPECT_EQ(t->bos()->id, 6);
  EXPECT_EQ(t->eos()->id, 7);
  EXPECT_FALSE(t->pad());
  EXPECT_EQ(t->unk()->id, std::nullopt);
  EXPECT_EQ(t->chat_templates().standard, "D");
  ASSERT_EQ(t->chat_templates().named.size(), 1u);
  EXPECT_EQ(t->chat_templates().named[0].first, "tool_use");
  EXPECT_EQ(t->vocab_size(), 8);
  EXPECT_TRUE(t->is_special(6));
  EXPECT_FALSE(t->is_special(0));
  EXPECT_EQ(t->token_to_id("aaaa"), 3);
  EXPECT_EQ(t->token_to_id("zz"), std::nullopt);
  EXPECT_EQ(t->id_to_token(7), "</s>");
  EXPECT_EQ(t->id_to_token(4), "Ġ");
  EXPECT_EQ(t->token_bytes(4), " ");
}

TEST(Tokenizer, TemplateFileBesideItWins) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "tokenizer_folder";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << small_tokenizer().dump();
  std::ofstream(folder / "tokenizer_config.json") << R"({"chat_template": "from config", "bos_token": "<s>"})";
  EXPECT_EQ(Tokenizer::load(folder.string())->chat_templates().standard, "from config");
  std::ofstream(folder / "chat_template.jinja") << "from file";
  EXPECT_EQ(Tokenizer::load((folder / "tokenizer.json").string())->chat_templates().standard, "from file");
  std::ofstream(folder / "tokenizer_config.json") << "[]";
  EXPECT_THROW(Tokenizer::load(folder.string()), Error);
  std::filesystem::remove_all(folder);
  EXPECT_THROW(Tokenizer::load(folder.string()), Error);
}

TEST(Tokenizer, ChatGetsNoSpecialTokensButItsOwn) {
  const auto t = Tokenizer::parse(small_tokenizer().dump());
  EXPECT_EQ(t->encode("b", true), (Ids{6, 1, 7}));
  EXPECT_EQ(t->encode_chat("<s>b"), (Ids{6, 1}));
  EXPECT_EQ(t->encode_chat("b"), (Ids{1}));
  EXPECT_EQ(t->encode("<s>b", true), (Ids{6, 6, 1, 7}));  // plain text may ask for it
}

TEST(Tokenizer, InvalidUtf8IsReadAsReplacementCharacters) {
  const auto t = Tokenizer::load(BRAID_SOURCE_DIR "/models/demo");
  EXPECT_EQ(t->encode("a\xFF\xE4\xBD b", false), t->encode("a\uFFFD\uFFFD b", false));
}

TEST(Tokenizer, IdsWithoutATokenDecodeToNothing) {
  const auto t = Tokenizer::parse(small_tokenizer().dump());
  EXPECT_EQ(t->decode(Ids{0, 100000, -1, 1}, true), "ab");
  EXPECT_EQ(t->token_bytes(100000), "");
}

TEST(Tokenizer, BytesOfByteTokens) {
  const auto t =
      Tokenizer::parse(R"({"model": {"type": "BPE", "vocab": {"<0xE4>": 0, "<0xzz>": 1, "▁a": 2}, "merges": []},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}})");
  EXPECT_EQ(t->token_bytes(0), "\xE4");
  EXPECT_EQ(t->token_bytes(1), "<0xzz>");
  EXPECT_EQ(t->token_bytes(2), " a");
}

TEST(Tokenizer, TwoMegabytesOfOneLetterComeBack) {
  const auto t = Tokenizer::parse(small_tokenizer().dump());
  EXPECT_EQ(t->encode(std::string(2'000'000, 'a'), false), Ids(250'000, 5));
  EXPECT_EQ(t->encode(std::string(2'000'000, ' '), false), Ids(2'000'000, 4));
}

// Text of one character, or of two in turn, is one word to many patterns and the worst case of merging it. What is
// quadratic takes minutes to hours here.
TEST(Tokenizer, LongRunsComeBackForEveryKind) {
  for (const GoldenTokenizer& g : golden_tokenizers()) {
    for (const std::string unit : {"a", " ", "\n", "ab", "é", "한", "7", "!"}) {
      std::string text;
      while (text.size() < (unit == "a" ? 2'000'000 : 300'000)) text += unit;
      const std::clock_t start = std::clock();
      const Ids ids = g.tokenizer->encode(text, false);
      g.tokenizer->decode(ids, false);
      EXPECT_LT(std::clock() - start, 10 * CLOCKS_PER_SEC) << g.name << ", \"" << unit << "\"";
    }
  }
}

TEST(Tokenizer, ThreadsShareOne) {
  const auto t = Tokenizer::load(BRAID_SOURCE_DIR "/models/demo");
  const std::string text = "Threads may share one tokenizer, 123 times over.";
  const Ids expected = t->encode(text, true);
  std::vector<std::thread> threads;
  std::atomic<int> n_wrong{0};
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) n_wrong += t->encode(text, true) != expected;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(n_wrong, 0);
}

TEST(Tokenizer, BadFilesAreErrorsThatSayWhy) {
  EXPECT_NE(error_of("{"), "");
  EXPECT_NE(error_of("[1]"), "");
  EXPECT_NE(error_of("{}").find("model"), std::string::npos);
  const auto with = [](const char* pointer, Json value) {
    Json t = small_tokenizer();
    t[Json::json_pointer(pointer)] = std::move(value);
    return t.dump();
  };
  EXPECT_NE(error_of(with("/model/merges", {"a c"})).find("\"c\""), std::string::npos);
  EXPECT_NE(error_of(with("/model/merges", {"a b c"})), "");
  EXPECT_NE(error_of(with("/model/merges", {{"a"}})), "");
  EXPECT_NE(error_of(with("/model/vocab", {{"a", -1}})), "");
  EXPECT_NE(error_of(with("/model/vocab", {{"a", 1e15}})), "");
  EXPECT_NE(error_of(with("/model/vocab", {{"a", "x"}})), "");
  EXPECT_NE(error_of(with("/model/type", "GPT")).find("GPT"), std::string::npos);
  EXPECT_NE(error_of(with("/decoder", {{"type", "Nope"}})).find("Nope"), std::string::npos);
  EXPECT_NE(error_of(with("/normalizer", {{"type", "Prepend"}})).find("prepend"), std::string::npos);
  EXPECT_NE(error_of(small_tokenizer().dump(), "[]"), "");
  EXPECT_NE(error_of(small_tokenizer().dump(), "{"), "");
  EXPECT_NE(error_of(small_tokenizer().dump(), R"({"chat_template": 1})"), "");
}

// Byte-level tokenizers lose nothing, whatever the text.
RC_GTEST_PROP(TokenizerProperty, ByteLevelRoundTrip, (const std::string& bytes)) {
  for (const GoldenTokenizer& g : golden_tokenizers()) {
    if (g.name != "gpt2" && g.name != "o200k" && g.name != "cl100k") continue;
    const Ids ids = g.tokenizer->encode(bytes, false);
    RC_ASSERT(g.tokenizer->decode(ids, false) == to_valid_utf8(bytes));
  }
}

}  // namespace braid
