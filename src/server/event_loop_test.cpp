// The loop alone: no post is lost however it falls between a turn and a sleep, and every turn has its order.
#include "server/event_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <condition_variable>
#include <thread>

namespace braid {
namespace {

TEST(EventLoop, EveryPostRunsInOrder) {
  EventLoop loop;
  std::vector<int> seen(4, 0);
  int n_done = 0;
  std::jthread thread([&] { loop.run(); });
  std::vector<std::jthread> posters;
  for (int p = 0; p < 4; ++p)
    posters.emplace_back([&, p] {
      for (int i = 0; i < 5000; ++i)
        loop.post([&, p, i] {
          EXPECT_EQ(seen[static_cast<size_t>(p)]++, i);
          if (i == 4999 && ++n_done == 4) loop.stop();
        });
    });
  posters.clear();
  thread.join();
  EXPECT_EQ(seen, std::vector<int>(4, 5000));
}

// Ping-pong: every post finds the loop asleep, or just about to be.
TEST(EventLoop, WakesFromSleep) {
  EventLoop loop;
  std::jthread thread([&] { loop.run(); });
  std::mutex mutex;
  std::condition_variable changed;
  int n_run = 0;
  for (int i = 1; i <= 5000; ++i) {
    loop.post([&] {
      const std::scoped_lock lock(mutex);
      ++n_run;
      changed.notify_one();
    });
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(10), [&] { return n_run == i; })) << "post " << i;
  }
  loop.post([&] { loop.stop(); });
}

TEST(EventLoop, DescriptorsThenPostsThenDeferred) {
  struct Pipe final : EventLoop::Watcher {
    explicit Pipe(EventLoop& l) : loop(l) {
      int ends[2];
      if (pipe(ends) != 0) std::abort();
      reader.reset(ends[0]);
      writer.reset(ends[1]);
      loop.watch(reader.get(), EPOLLIN, *this);
    }
    void on_ready(uint32_t) override {
      char byte;
      if (read(reader.get(), &byte, 1) != 1) return;
      order += 'r';
      loop.defer([this] {
        order += 'd';
        loop.defer([this] {  // the turn is ending: the next one, without a sleep
          order += 'e';
          loop.stop();
        });
      });
      loop.post([this] { order += 'p'; });
      loop.unwatch(reader.get());
    }
    EventLoop& loop;
    OwnedFd reader, writer;
    std::string order{};
  };
  EventLoop loop;
  Pipe p(loop);
  ASSERT_EQ(write(p.writer.get(), "xx", 2), 2);
  loop.run();
  EXPECT_EQ(p.order, "rpde");
}

TEST(EventLoop, EveryPeriod) {
  EventLoop loop;
  int n = 0;
  const auto begin = std::chrono::steady_clock::now();
  loop.every(std::chrono::milliseconds(20), [&] {
    if (++n == 3) loop.stop();
  });
  loop.run();
  EXPECT_EQ(n, 3);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(59));
}

}  // namespace
}  // namespace braid
