// The escape must give JSON that reads back as the same text, and never invalid UTF-8, for any bytes.
#include "server/json_escape.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace braid {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

TEST(JsonEscape, KnownCases) {
  EXPECT_EQ(escaped(""), "\"\"");
  EXPECT_EQ(escaped("a\"b\\c\n\t\x01"), "\"a\\\"b\\\\c\\n\\t\\u0001\"");
  EXPECT_EQ(escaped("\xC3\xB6\xE2\x82\xAC\xF0\x9F\x98\x80"), "\"\xC3\xB6\xE2\x82\xAC\xF0\x9F\x98\x80\"");
  EXPECT_EQ(escaped("a\xFFz"), "\"a\xEF\xBF\xBDz\"");
  EXPECT_EQ(escaped("\xE2\x82"), "\"\xEF\xBF\xBD\"");                              // cut short: one replacement
  EXPECT_EQ(escaped("\xED\xA0\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");  // a surrogate
  EXPECT_EQ(escaped(std::string_view("\0", 1)), "\"\\u0000\"");
}

// nlohmann with `replace` is the oracle, on bytes likely to make and break sequences.
RC_GTEST_PROP(JsonEscape, AgreesWithNlohmann, ()) {
  const auto bytes = *rc::gen::container<std::string>(
      rc::gen::oneOf(rc::gen::arbitrary<char>(), rc::gen::element('a', '"', '\\', '\n', '\x7f'),
                     rc::gen::element('\xC3', '\xE2', '\xF0', '\xED', '\xF4', '\x80', '\x82', '\xA0', '\x9F', '\xBF')));
  const std::string text = Json::parse(escaped(bytes)).get<std::string>();
  RC_ASSERT(text == Json::parse(to_string(Json(bytes))).get<std::string>());
}

}  // namespace
}  // namespace braid
