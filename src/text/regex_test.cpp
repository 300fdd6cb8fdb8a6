#include "text/regex.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace braid {

namespace {

std::vector<std::string> all_matches(const std::string& pattern, const std::string& text) {
  const Regex regex(pattern);
  RegexMatches matches(regex, text);
  std::vector<std::string> found;
  while (const auto m = matches.next()) found.push_back(text.substr(m->first, m->second - m->first));
  return found;
}

using Strings = std::vector<std::string>;

}  // namespace

TEST(Regex, BlanksAreUnicodesWithoutU180E) {
  EXPECT_EQ(all_matches(R"(\s+)", "a \u2003\u0085b\u180Ec"), Strings{" \u2003\u0085"});
  EXPECT_EQ(all_matches(R"([^\sb]+)", "ab c"), (Strings{"a", "c"}));
  EXPECT_EQ(all_matches(R"(\S+|[\S]+)", "a\u180E b"), (Strings{"a\u180E", "b"}));
}

TEST(Regex, WordsHaveMarksAndConnectors) {
  EXPECT_EQ(all_matches(R"(\w+)", "e\u0301_x\u203Fy ½"), Strings{"e\u0301_x\u203Fy"});
  EXPECT_EQ(all_matches(R"([\W]+)", "ab, c"), Strings{", "});
  EXPECT_EQ(all_matches(R"(\bof\b)", "of off e\u0301of of"), (Strings{"of", "of"}));
}

TEST(Regex, OnigurumasOwnEscapes) {
  EXPECT_EQ(all_matches(R"(\h+)", "fade to 7x"), (Strings{"fade", "7"}));
  EXPECT_EQ(all_matches("[\\u4e00-\\u9fff]+", "a中文b"), Strings{"中文"});
  EXPECT_EQ(all_matches(R"(\p{Han}+)", "a中文、b"), Strings{"中文"});  // the script, without its extensions
  EXPECT_EQ(all_matches(R"(\p{Letter}+|\p{^L})", "ab1"), (Strings{"ab", "1"}));
  EXPECT_EQ(all_matches(R"(a{,2}b)", "aab"), Strings{"aab"});
  EXPECT_EQ(all_matches(R"({a})", "{a}"), Strings{"{a}"});
  EXPECT_EQ(all_matches(R"((?m:a.b))", "a\nb"), Strings{"a\nb"});
}

TEST(Regex, RepeatBehindAnIntervalIsNotPossessive) {
  EXPECT_EQ(all_matches(R"(\d{1,3}+)", "1234567"), Strings{"1234567"});
  EXPECT_EQ(all_matches(R"((?:ab){2}+)", "abababab"), Strings{"abababab"});
  EXPECT_EQ(all_matches(R"([a-c]++c)", "abc"), Strings{});  // this one is
}

TEST(Regex, ClassIntersectionsAndNesting) {
  EXPECT_EQ(all_matches(R"([\p{L}&&[^\p{Han}]]+)", "ab中c"), (Strings{"ab", "c"}));
  EXPECT_EQ(all_matches(R"([a-z&&[^aeiou]&&[^x]]+)", "baxc"), (Strings{"b", "c"}));
  EXPECT_EQ(all_matches(R"([ab[0-9]]+)", "xa1bz"), Strings{"a1b"});
  EXPECT_EQ(all_matches(R"([^a-y&&[^b]]+)", "bz"), Strings{"bz"});
  EXPECT_EQ(all_matches(R"([\]\[&]+)", "a[&]"), Strings{"[&]"});
}

TEST(Regex, EmptyMatchesGoOn) {
  EXPECT_EQ(all_matches("x*", "axxb"), (Strings{"", "xx", ""}));
  EXPECT_EQ(all_matches("", "é"), (Strings{"", ""}));
}

TEST(Regex, BadPatternsAreErrorsThatNameThem) {
  for (const char* pattern : {"(", "[a", "a)", "\\p{Nope}", "*", "\\"}) {
    try {
      const Regex regex(pattern);
      FAIL() << pattern;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(pattern), std::string::npos) << e.what();
    }
  }
}

TEST(Regex, EndlessBacktrackingComesBack) {
  const Regex regex("(?:a+)+(?:b|c)");
  EXPECT_THROW(regex.find(std::string(64, 'a') + "d", 0), Error);
}

TEST(Regex, LiteralsHaveNoOperators) {
  const std::string text = std::string("a.b*[c]\\d\0e", 11);
  const Regex regex = Regex::literal(text);
  EXPECT_EQ(regex.find("xa.b*" + text, 0)->first, 5u);
}

}  // namespace braid
