#include "text/utf8.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace braid {

TEST(Utf8, ReplacesEachMaximalBadStart) {
  EXPECT_EQ(to_valid_utf8("ok é"), "ok é");
  EXPECT_EQ(to_valid_utf8("\xFF\xFF"), "\uFFFD\uFFFD");
  EXPECT_EQ(to_valid_utf8("\xE4\xBDx"), "\uFFFDx");  // cut off: one
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // a surrogate: three
  EXPECT_EQ(to_valid_utf8("\xC0\x80"), "\uFFFD\uFFFD");                      // overlong
  EXPECT_EQ(to_valid_utf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // past U+10FFFF
}

TEST(Utf8, TailThatMayYetBecomeACharacter) {
  EXPECT_EQ(incomplete_utf8_tail(""), 0u);
  EXPECT_EQ(incomplete_utf8_tail("é"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("a\xE4"), 1u);
  EXPECT_EQ(incomplete_utf8_tail("a\xF0\x9F\x98"), 3u);
  EXPECT_EQ(incomplete_utf8_tail("a\xED\xA0"), 0u);  // never one
  EXPECT_EQ(incomplete_utf8_tail("\x80\x80"), 0u);
}

RC_GTEST_PROP(Utf8, WhatIsReplacedIsValidAndStays, (const std::string& bytes)) {
  const std::string valid = to_valid_utf8(bytes);
  RC_ASSERT(is_valid_utf8(valid));
  RC_ASSERT(to_valid_utf8(valid) == valid);
  RC_ASSERT(is_valid_utf8(bytes) == (valid == bytes));
}

RC_GTEST_PROP(Utf8, CharactersComeBack, ()) {
  const auto c = static_cast<char32_t>(*rc::gen::inRange<uint32_t>(0, 0x110000));
  RC_PRE(c < 0xD800 || c > 0xDFFF);
  std::string text = "x";
  append_utf8(text, c);
  size_t pos = 1;
  RC_ASSERT(next_utf8(text, pos) == c);
  RC_ASSERT(pos == text.size());
  RC_ASSERT(previous_utf8(text, pos) == 1u);
}

}  // namespace braid
