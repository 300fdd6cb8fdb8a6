#include "text/added_tokens.h"

#include <gtest/gtest.h>

namespace braid {

namespace {

std::vector<std::string> cut(std::vector<AddedToken> tokens, const std::string& text) {
  std::vector<std::string> patterns;
  for (const AddedToken& t : tokens) patterns.push_back(t.content);
  const AddedTokenMatcher matcher(std::move(tokens), patterns);
  std::vector<std::string> found;
  matcher.cut(text, [&](size_t begin, size_t end, int32_t id) {
    found.push_back((id < 0 ? "" : std::to_string(id) + ":") + text.substr(begin, end - begin));
  });
  return found;
}

using Strings = std::vector<std::string>;

}  // namespace

TEST(AddedTokens, LongestAtTheLeftmostPlace) {
  EXPECT_EQ(cut({{1, "<a"}, {2, "<a>"}, {3, "a>b"}}, "x<a>b<ay"), (Strings{"x", "2:<a>", "b", "1:<a", "y"}));
  EXPECT_EQ(cut({}, "x"), Strings{"x"});
  EXPECT_EQ(cut({{1, "a"}}, ""), Strings{});
}

TEST(AddedTokens, SingleWord) {
  EXPECT_EQ(cut({{.id = 1, .content = "of", .single_word = true}}, "of off (of) éof of_"),
            (Strings{"1:of", " off (", "1:of", ") éof of_"}));
}

TEST(AddedTokens, TakesBlanksAlong) {
  EXPECT_EQ(cut({{.id = 1, .content = "<m>", .lstrip = true}}, "a \u3000<m> b"), (Strings{"a", "1: \u3000<m>", " b"}));
  EXPECT_EQ(cut({{.id = 1, .content = "<m>", .rstrip = true}}, "a <m> \nb"), (Strings{"a ", "1:<m> \n", "b"}));
  EXPECT_EQ(cut({{.id = 1, .content = "<l>", .lstrip = true}, {.id = 2, .content = "<r>", .rstrip = true}}, "<r>  <l>"),
            (Strings{"2:<r>  ", "1:<l>"}));
}

}  // namespace braid
