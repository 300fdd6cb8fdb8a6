#include "text/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace braid {

namespace {

std::vector<std::string> pieces(const Json& config, const std::string& text, bool at_start = true) {
  std::vector<std::string> found;
  const PreTokenizerChain chain(config);
  chain.split({text, at_start, 1}, [&](const Piece& p) { found.emplace_back(p.text); });
  return found;
}

Json split(const char* behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behavior}, {"invert", invert}};
}

using Strings = std::vector<std::string>;

}  // namespace

TEST(PreTokenizer, Behaviors) {
  const std::string text = "-a--b-";
  EXPECT_EQ(pieces(split("Removed"), text), (Strings{"a", "b"}));
  EXPECT_EQ(pieces(split("Isolated"), text), (Strings{"-", "a", "-", "-", "b", "-"}));
  EXPECT_EQ(pieces(split("MergedWithPrevious"), text), (Strings{"-", "a-", "-", "b-"}));
  EXPECT_EQ(pieces(split("MergedWithNext"), text), (Strings{"-a", "-", "-b", "-"}));
  EXPECT_EQ(pieces(split("Contiguous"), text), (Strings{"-", "a", "--", "b", "-"}));
  EXPECT_EQ(pieces(split("Removed", true), text), (Strings{"-", "-", "-", "-"}));
}

TEST(PreTokenizer, ByteLevelSpellsBytes) {
  Json config = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  EXPECT_EQ(pieces(config, "Hi é's"), (Strings{"ĠHi", "ĠÃ©", "'s"}));
  PreTokenizerChain chain(config);
  EXPECT_TRUE(chain.drop_last_byte_spelling());
  EXPECT_FALSE(chain.drop_last_byte_spelling());
}

TEST(PreTokenizer, Metaspace) {
  const auto config = [](const char* scheme, bool cut) {
    return Json{{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", cut}};
  };
  EXPECT_EQ(pieces(config("always", true), "a b  c", false), (Strings{"▁a", "▁b", "▁", "▁c"}));
  EXPECT_EQ(pieces(config("first", true), "a b"), (Strings{"▁a", "▁b"}));
  EXPECT_EQ(pieces(config("first", true), "a b", false), (Strings{"a", "▁b"}));
  EXPECT_EQ(pieces(config("never", false), "a b"), Strings{"a▁b"});
  EXPECT_EQ(pieces(config("always", false), " a"), Strings{"▁a"});
}

TEST(PreTokenizer, Words) {
  EXPECT_EQ(pieces({{"type", "Whitespace"}}, "Hi, a_b  ½!"), (Strings{"Hi", ",", "a_b", "½!"}));
  EXPECT_EQ(pieces({{"type", "WhitespaceSplit"}}, " Hi,\u3000x "), (Strings{"Hi,", "x"}));
  EXPECT_EQ(pieces({{"type", "BertPreTokenizer"}}, "Hi, $x。"), (Strings{"Hi", ",", "$", "x", "。"}));
  EXPECT_EQ(pieces({{"type", "Digits"}, {"individual_digits", true}}, "a12"), (Strings{"a", "1", "2"}));
  EXPECT_EQ(pieces({{"type", "Digits"}, {"individual_digits", false}}, "a1²b"), (Strings{"a", "1²", "b"}));
  EXPECT_EQ(pieces({{"type", "Punctuation"}}, "a!?b"), (Strings{"a", "!", "?", "b"}));
  EXPECT_EQ(pieces({{"type", "CharDelimiterSplit"}, {"delimiter", "é"}}, "aébé"), (Strings{"a", "b"}));
  EXPECT_EQ(pieces({{"type", "FixedLength"}, {"length", 2}}, "aébcd"), (Strings{"aé", "bc", "d"}));
}

TEST(PreTokenizer, SequencePassesEachPieceOn) {
  const Json config = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "WhitespaceSplit"}}, split("Isolated"), {{"type", "Digits"}, {"individual_digits", true}}}}};
  EXPECT_EQ(pieces(config, "a-1 23"), (Strings{"a", "-", "1", "2", "3"}));
  EXPECT_EQ(pieces(Json(), "a b"), Strings{"a b"});
}

TEST(PreTokenizer, BadConfigsAreErrors) {
  EXPECT_THROW(PreTokenizerChain(split("Sideways")), Error);
  EXPECT_THROW(PreTokenizerChain({{"type", "Metaspace"}, {"replacement", "ab"}}), Error);
  EXPECT_THROW(PreTokenizerChain({{"type", "FixedLength"}, {"length", 0}}), Error);
  const Json many = {{"type", "Sequence"}, {"pretokenizers", Json(100, {{"type", "Whitespace"}})}};
  EXPECT_THROW(PreTokenizerChain{many}, Error);
}

}  // namespace braid
