#include "base/option_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace braid {

using ::testing::HasSubstr;

TEST(OptionTable, AliasesAndUnderscoresReachTheSameRow) {
  int tp = 1;
  bool cache = true;
  OptionTable table;
  table.add("tensor-parallel-size", &tp, "ranks", {"tp"}).min = 1;
  table.add("enable-prefix-caching", &cache, "prefix cache");
  EXPECT_FALSE(table.set("tp", "4"));
  EXPECT_EQ(tp, 4);
  EXPECT_FALSE(table.set("tensor_parallel_size", "2"));
  EXPECT_EQ(tp, 2);
  EXPECT_TRUE(table.asked("tp"));
  EXPECT_FALSE(table.asked("enable-prefix-caching"));
  EXPECT_FALSE(table.set("enable_prefix_caching", "false"));
  EXPECT_FALSE(cache);
}

TEST(OptionTable, ProblemsAreSentences) {
  int tp = 1;
  std::string dtype = "auto";
  OptionTable table;
  auto& row = table.add("tensor-parallel-size", &tp, "ranks", {"tp"});
  row.min = 1, row.max = 64;
  table.add("dtype", &dtype, "type").choices = {"auto", "float32"};
  EXPECT_THAT(*table.set("tp", "0"), HasSubstr("outside 1 to 64"));
  EXPECT_THAT(*table.set("tp", "2x"), HasSubstr("whole number"));
  EXPECT_THAT(*table.set("tp", ""), HasSubstr("whole number"));
  EXPECT_THAT(*table.set("dtype", "int3"), HasSubstr("use auto, float32"));
  EXPECT_THAT(*table.set("tensor-paralel-size", "2"), HasSubstr("did you mean --tensor-parallel-size?"));
  EXPECT_EQ(tp, 1);
}

TEST(ParseBytes, DecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("141G"), 141'000'000'000);
  EXPECT_EQ(parse_bytes("1.5GiB"), 1610612736);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  for (const char* bad : {"", "G", "12X", "-1", "1e30"}) EXPECT_THROW(parse_bytes(bad), Error) << bad;
}

}  // namespace braid
