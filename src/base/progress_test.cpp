#include "base/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace braid {

TEST(Progress, ThreadsAddUp) {
  Progress bar("loading", 4000, Progress::Unit::kCount);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) bar.add(1);
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(bar.done(), 2000);
  EXPECT_THAT(bar.line(), ::testing::HasSubstr("loading [###############...............]  50% 2000/4000, "));
}

TEST(Progress, BytesAndEdges) {
  Progress bytes("weights", 2'000'000'000, Progress::Unit::kBytes);
  bytes.add(3'000'000'000);  // more than promised is not more than all
  EXPECT_THAT(bytes.line(), ::testing::HasSubstr("100% 3.00/2.00 GB, "));
  EXPECT_THAT(Progress("none", 0, Progress::Unit::kCount).line(), ::testing::HasSubstr("100% 0/0"));
}

}  // namespace braid
