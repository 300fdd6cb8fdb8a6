// Worker threads: every task once, whatever the sizes, also in thousands of short jobs in a row.
#include "ops/cpu/workers.h"

#include <gtest/gtest.h>

#include <numeric>

namespace braid {
namespace {

constexpr double kLong = 1e9;  // always worth sharing

TEST(Workers, EveryTaskRunsOnce) {
  for (const int threads : {1, 2, 5}) {
    Workers workers(threads);
    EXPECT_EQ(workers.size(), threads);
    for (const int64_t n : {0, 1, 2, 7, 1000}) {
      std::vector<int> times(static_cast<size_t>(n), 0);
      workers.run(n, kLong, [&](int64_t task, int worker) {
        EXPECT_TRUE(0 <= worker && worker < threads);
        ++times[static_cast<size_t>(task)];
      });
      EXPECT_EQ(times, std::vector<int>(static_cast<size_t>(n), 1));
    }
  }
}

TEST(Workers, ManyShortJobsFollowEachOther) {
  Workers workers(4);
  std::vector<int64_t> values(64);
  for (int64_t job = 0; job < 3000; ++job) {
    const auto n = static_cast<size_t>(1 + job % 64);
    std::fill(values.begin(), values.end(), 0);
    workers.run(static_cast<int64_t>(n), kLong,
                [&](int64_t task, int) { values[static_cast<size_t>(task)] = job + task; });
    int64_t want = 0;
    for (size_t i = 0; i < n; ++i) want += job + static_cast<int64_t>(i);
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), want) << "job " << job;
  }
}

TEST(Workers, ShortWorkStaysWithTheCaller) {
  Workers workers(3);
  workers.run(100, 10.0, [&](int64_t, int worker) { EXPECT_EQ(worker, 0); });
}

TEST(Workers, IdleWorkersEndWhileAsleep) {
  for (int i = 0; i < 50; ++i) Workers workers(3);
}

}  // namespace
}  // namespace braid
