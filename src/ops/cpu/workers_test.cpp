// Worker threads: every task once, whatever the sizes, also in thousands of short jobs in a row; who does which.
#include "ops/cpu/workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

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

TEST(Workers, EveryThreadTakesItsOwnTasksFromTheFront) {
  constexpr int kThreads = 3, kTasks = 100;
  Workers workers(kThreads);
  for (int job = 0; job < 200; ++job) {
    std::vector<int> by(kTasks, -1);
    workers.run(kTasks, kLong, [&](int64_t task, int worker) { by[static_cast<size_t>(task)] = worker; });
    for (int w = 0; w < kThreads; ++w) {
      const auto begin = by.begin() + kTasks * w / kThreads, end = by.begin() + kTasks * (w + 1) / kThreads;
      ASSERT_TRUE(std::is_partitioned(begin, end, [&](int worker) { return worker == w; })) << "thread " << w;
    }
  }
}

TEST(Workers, ASlowThreadHoldsUpOneTaskOnly) {
  Workers workers(2);
  std::atomic<int> others{0};
  workers.run(100, kLong, [&](int64_t task, int worker) {
    if (task == 0) {
      while (others < 99) std::this_thread::yield();
    } else {
      ++others;
    }
  });
  EXPECT_EQ(others, 99);
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
