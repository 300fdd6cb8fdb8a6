#include "text/decoder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/post_processor.h"
#include "text/tokenizer_file.h"

namespace braid {

namespace {

// What comes out after each token, and at the end.
std::vector<std::string> steps(const Json& config, const std::vector<std::string>& tokens) {
  const Decoder decoder(config);
  DecodeStream stream = decoder.stream();
  std::vector<std::string> out;
  for (const std::string& token : tokens) stream.push(token, out.emplace_back());
  stream.flush(out.emplace_back());
  return out;
}

Json sequence(std::vector<Json> decoders) { return {{"type", "Sequence"}, {"decoders", std::move(decoders)}}; }

using Strings = std::vector<std::string>;

}  // namespace

TEST(Decoder, WithoutOneTokensAreJoinedByBlanks) { EXPECT_EQ(steps(Json(), {"a", "b"}), (Strings{"a", " b", ""})); }

TEST(Decoder, ByteLevelHoldsIncompleteCharacters) {
  const Json config = {{"type", "ByteLevel"}};
  EXPECT_EQ(steps(config, {"Ġa", "Ã", "©", "Ã"}), (Strings{" a", "", "é", "", "\uFFFD"}));
  EXPECT_EQ(steps(config, {"a▁b"}), (Strings{"a▁b", ""}));  // not of the alphabet: as it is
}

TEST(Decoder, ByteFallbackHoldsARun) {
  const Json config = {{"type", "ByteFallback"}};
  EXPECT_EQ(steps(config, {"<0xC3>", "<0xA9>", "a"}), (Strings{"", "", "éa", ""}));
  EXPECT_EQ(steps(config, {"<0xC3>", "a", "<0xzz>"}), (Strings{"", "\uFFFDa", "<0xzz>", ""}));
}

TEST(Decoder, StepsThatMultiplyTextHaveAnEnd) {
  const Json tenfold = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaa"}};
  EXPECT_THROW(steps(sequence(std::vector<Json>(12, tenfold)), {"a"}), Error);
}

TEST(Decoder, LlamaStripsOneBlankOfAll) {
  const Json config = sequence({{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                                {{"type", "ByteFallback"}},
                                {{"type", "Fuse"}},
                                {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}});
  EXPECT_EQ(steps(config, {"▁▁Hi", "▁you"}), (Strings{" Hi", " you", ""}));
}

TEST(Decoder, PatternsAfterFuseSeeAllOfIt) {
  const Json config =
      sequence({{{"type", "Fuse"}}, {{"type", "Replace"}, {"pattern", {{"String", "ab"}}}, {"content", "x"}}});
  EXPECT_EQ(steps(config, {"a", "b"}), (Strings{"", "", "x"}));
}

TEST(Decoder, Others) {
  EXPECT_EQ(steps({{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}}, {"▁a", "▁b▁"}),
            (Strings{"a", " b ", ""}));
  EXPECT_EQ(steps({{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "never"}}, {"▁a"}),
            (Strings{" a", ""}));
  EXPECT_EQ(steps({{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}, {"do", "##g", ".", "do", "not"}),
            (Strings{"do", "g", ".", " do", " not", ""}));
  EXPECT_EQ(steps({{"type", "BPEDecoder"}, {"suffix", "</w>"}}, {"a</w>", "b</w>"}), (Strings{"", "a ", "b"}));
  EXPECT_EQ(steps({{"type", "Strip"}, {"content", "_"}, {"start", 1}, {"stop", 1}}, {"__a__", "_"}),
            (Strings{"_a_", "", ""}));
  EXPECT_EQ(steps({{"type", "CTC"}, {"pad_token", "<p>"}, {"word_delimiter_token", "|"}, {"cleanup", true}},
                  {"a", "a", "<p>", "a", "|"}),
            (Strings{"a", "", "", "a", " ", ""}));
  EXPECT_THROW(Decoder(Json{{"type", "Nope"}}), Error);
}

TEST(PostProcessor, IdsAround) {
  const Json bert = {{"type", "BertProcessing"}, {"sep", {"[SEP]", 3}}, {"cls", {"[CLS]", 2}}};
  EXPECT_EQ(make_post_processor(bert).before, std::vector<int32_t>{2});
  EXPECT_EQ(make_post_processor(bert).after, std::vector<int32_t>{3});
  EXPECT_TRUE(make_post_processor(Json()).before.empty());
  const Json text = {{"Sequence", {{"id", "A"}}}};
  const auto by_template = [](Json single) {
    return Json{{"type", "TemplateProcessing"}, {"single", std::move(single)}, {"special_tokens", Json::object()}};
  };
  EXPECT_THROW(make_post_processor(by_template({text, text})), Error);
  EXPECT_THROW(make_post_processor(by_template(Json::array())), Error);
  EXPECT_THROW(make_post_processor(by_template({{{"SpecialToken", {{"id", "<s>"}}}}, text})), Error);
  const Json both = {{"type", "Sequence"}, {"processors", {bert, {{"type", "ByteLevel"}}, bert}}};
  EXPECT_EQ(make_post_processor(both).before, (std::vector<int32_t>{2, 2}));
}

TEST(TokenizerFile, SetsVocabularyAndMergesApart) {
  const TokenizerFile file = parse_tokenizer_file(
      R"({"model": {"merges": ["#version: 0.2", "a b", ["c", "d e"]], "vocab": {"a": 1}, "type": "BPE"}, "vocab": {"x": 1}})");
  ASSERT_EQ(file.merges.size(), 2u);
  EXPECT_EQ(file.text(file.merges[0].right), "b");
  EXPECT_EQ(file.text(file.merges[1].right), "d e");
  ASSERT_EQ(file.vocab.size(), 1u);
  EXPECT_EQ(file.vocab[0].id, 1);
  EXPECT_EQ(file.rest, Json::parse(R"({"model": {"merges": [], "vocab": {}, "type": "BPE"}, "vocab": {"x": 1}})"));
  const TokenizerFile scored = parse_tokenizer_file(R"({"model": {"vocab": [["a", -1.5], ["b", 0]]}})");
  EXPECT_TRUE(scored.vocab_has_scores);
  EXPECT_EQ(scored.vocab[0].score, -1.5);
  for (const char* bad :
       {R"({"model": {"vocab": [["a"]]}})", R"({"model": {"vocab": [["a", 1, 2]]}})", R"({"model": {"vocab": ["a"]}})",
        R"({"model": {"vocab": {"a": null}}})", R"({"model": {"merges": [["a", "b", "c"]]}})",
        R"({"model": {"merges": [[["a"]]]}})", R"({"model": {"merges": {"a": 1}, "vocab": [{}]}})"})
    EXPECT_THROW(parse_tokenizer_file(bad), Error) << bad;
}

}  // namespace braid
