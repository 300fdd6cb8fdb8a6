#include "text/normalizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/unicode.h"

namespace braid {

namespace {

std::string normalized(const std::string& config, const std::string& text) {
  NormalText t{text, true, 0};
  make_normalizer(Json::parse(config))->normalize(t);
  return t.text;
}

size_t start_bytes(const std::string& config, const std::string& text, size_t before) {
  NormalText t{text, true, before};
  make_normalizer(Json::parse(config))->normalize(t);
  return t.start_bytes;
}

}  // namespace

TEST(Normalizer, Forms) {
  EXPECT_EQ(normalized(R"({"type": "NFC"})", "e\u0301 \u1100\u1161"), "é \uAC00");
  EXPECT_EQ(normalized(R"({"type": "NFD"})", "é"), "e\u0301");
  EXPECT_EQ(normalized(R"({"type": "NFKC"})", "ﬁ ① ｆ"), "fi 1 f");
  EXPECT_EQ(normalized(R"({"type": "NFKD"})", "ǆ"), "dz\u030C");
  // A character that the reference's older tables do not know stays (U+32FF would be 令和).
  EXPECT_EQ(normalized(R"({"type": "NFKC"})", "ﬁ\u32FFﬁ"), "fi\u32FFfi");
}

TEST(Normalizer, Characters) {
  EXPECT_EQ(normalized(R"({"type": "Lowercase"})", "ÀB\u0130Σ"), "àbi\u0307σ");
  EXPECT_EQ(normalized(R"({"type": "StripAccents"})", "e\u0301a\u0308"), "ea");
  EXPECT_EQ(normalized(R"({"type": "Strip", "strip_left": true, "strip_right": true})", " \u3000a b\n"), "a b");
  EXPECT_EQ(normalized(R"({"type": "Strip", "strip_left": false, "strip_right": true})", " a "), " a");
  EXPECT_EQ(normalized(R"({"type": "Prepend", "prepend": "_"})", "a"), "_a");
  EXPECT_EQ(normalized(R"({"type": "Prepend", "prepend": "_"})", ""), "");
  EXPECT_EQ(normalized(R"({"type": "Nmt"})", "a\u0001\tb\u200Bc"), "a b c");
  EXPECT_EQ(normalized(R"({"type": "ByteLevel"})", " é"), "ĠÃ©");
}

TEST(Normalizer, Replace) {
  EXPECT_EQ(normalized(R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})", "a b  "), "a▁b▁▁");
  EXPECT_EQ(normalized(R"({"type": "Replace", "pattern": {"String": ".."}, "content": "$1"})", "a...b"), "a$1.b");
  EXPECT_EQ(normalized(R"({"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "})", "a \n b"), "a b");
}

TEST(Normalizer, Bert) {
  const std::string config = R"({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                                 "strip_accents": null, "lowercase": true})";
  EXPECT_EQ(normalized(config, "CafÉ Ü中\tx\u200By"), "cafe u 中  xy");
}

TEST(Normalizer, SequenceAndNull) {
  EXPECT_EQ(make_normalizer(Json()), nullptr);
  EXPECT_EQ(
      normalized(R"({"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "Prepend", "prepend": "X"}]})",
                 "A"),
      "Xa");
}

TEST(Normalizer, StepsThatMultiplyTextHaveAnEnd) {
  Json steps = Json::array();
  for (int i = 0; i < 12; ++i)
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaa"}});
  NormalText t{"a", true, 0};
  const auto normalizer = make_normalizer({{"type", "Sequence"}, {"normalizers", steps}});
  EXPECT_THROW(normalizer->normalize(t), Error);
}

TEST(Normalizer, RemembersWhatStemsFromTheFirstCharacter) {
  EXPECT_EQ(start_bytes(R"({"type": "Prepend", "prepend": "▁"})", "ab", 1), 4u);
  EXPECT_EQ(start_bytes(R"({"type": "Strip", "strip_left": true, "strip_right": false})", " ab", 1), 0u);
  EXPECT_EQ(start_bytes(R"({"type": "NFD"})", "éb", 2), 3u);
  EXPECT_EQ(start_bytes(R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})", " b", 1), 3u);
  EXPECT_EQ(start_bytes(R"({"type": "Replace", "pattern": {"Regex": "b"}, "content": "xyz"})", "ab", 1), 1u);
}

TEST(Normalizer, BadConfigsAreErrors) {
  for (const char* config :
       {"[]", R"({"type": "Nope"})", R"({"type": 1})", R"({"type": "Strip", "strip_left": 1, "strip_right": true})",
        R"({"type": "Replace", "content": "x"})", R"({"type": "Replace", "pattern": {"Regex": "("}, "content": "x"})",
        R"({"type": "Precompiled", "precompiled_charsmap": "!!!"})",
        R"({"type": "Precompiled", "precompiled_charsmap": "AAAA"})"})
    EXPECT_THROW(make_normalizer(Json::parse(config)), Error) << config;
  std::string deep = "null";
  for (int i = 0; i < 40; ++i) deep = R"({"type": "Sequence", "normalizers": [)" + deep + "]}";
  EXPECT_THROW(make_normalizer(Json::parse(deep)), Error);
}

TEST(Unicode, GraphemesKeepMarksAndJoiners) {
  const std::string text = "e\u0301\U0001F469\u200D\U0001F467\r\nx";
  std::vector<size_t> ends;
  for (size_t pos = 0; pos < text.size();) ends.push_back(pos = next_grapheme(text, pos));
  EXPECT_EQ(ends, (std::vector<size_t>{3, 14, 16, 17}));
}

}  // namespace braid
