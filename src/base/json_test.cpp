#include "base/json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace braid {

TEST(Json, ErrorsNameFileLineAndColumn) {
  const std::string path = ::testing::TempDir() + "bad.json";
  std::ofstream(path) << "{\n  \"a\": 1,\n  oops\n}";
  try {
    read_json_file(path);
    FAIL() << "bad JSON was accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("bad.json"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("line 3, column 3"), std::string::npos) << e.what();
  }
  EXPECT_THROW(read_json_file(path + ".missing"), Error);
}

TEST(Json, InvalidUtf8IsReplacedNotThrown) { EXPECT_EQ(to_string(Json("a\xff")), "\"a\xEF\xBF\xBD\""); }

}  // namespace braid
