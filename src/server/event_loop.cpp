// See event_loop.h.
#include "server/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace braid {
namespace {

constexpr int kEventsPerTurn = 256;

int opened(int fd, const char* what) {
  if (fd < 0) throw Error("cannot make {} for the server's thread: {}", what, std::strerror(errno));
  return fd;
}

}  // namespace

void OwnedFd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

class EventLoop::Periodic final : public Watcher {
 public:
  Periodic(std::chrono::milliseconds period, std::function<void()> task)
      : timer_(opened(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), "a timer")), task_(std::move(task)) {
    const timespec t{.tv_sec = period.count() / 1000, .tv_nsec = period.count() % 1000 * 1'000'000};
    const itimerspec both{.it_interval = t, .it_value = t};
    timerfd_settime(timer_.get(), 0, &both, nullptr);
  }
  void on_ready(uint32_t) override {
    uint64_t n_periods = 0;  // several, when a turn was long: once is enough
    if (read(timer_.get(), &n_periods, sizeof n_periods) == sizeof n_periods) task_();
  }
  int fd() const { return timer_.get(); }

 private:
  OwnedFd timer_;
  std::function<void()> task_;
};

EventLoop::EventLoop()
    : epoll_(opened(epoll_create1(EPOLL_CLOEXEC), "an epoll set")),
      wake_(opened(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "an event")) {
  // Edge-triggered: every write wakes, and nobody needs to read.
  epoll_event e{.events = EPOLLIN | EPOLLET, .data = {.ptr = nullptr}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &e);
}

EventLoop::~EventLoop() = default;

void EventLoop::watch(int fd, uint32_t epoll_events, Watcher& watcher) {
  epoll_event e{.events = epoll_events, .data = {.ptr = &watcher}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &e);
}

void EventLoop::watch_for(int fd, uint32_t other_epoll_events, Watcher& watcher) {
  epoll_event e{.events = other_epoll_events, .data = {.ptr = &watcher}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &e);
}

void EventLoop::unwatch(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void EventLoop::every(std::chrono::milliseconds period, std::function<void()> task) {
  periodic_.push_back(std::make_unique<Periodic>(period, std::move(task)));
  watch(periodic_.back()->fd(), EPOLLIN, *periodic_.back());
}

void EventLoop::post(std::function<void()> task) {
  {
    const std::scoped_lock lock(mutex_);
    posted_.push_back(std::move(task));
  }
  if (!asleep_.exchange(false)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof one);
}

void EventLoop::defer(std::function<void()> task) { deferred_.push_back(std::move(task)); }

void EventLoop::stop() { stopping_ = true; }

// Whoever posts after this has looked finds `asleep_` set, and wakes.
bool EventLoop::may_sleep() {
  if (!deferred_.empty()) return false;
  asleep_ = true;
  const std::scoped_lock lock(mutex_);
  if (!posted_.empty()) asleep_ = false;
  return posted_.empty();
}

void EventLoop::run() {
  std::vector<epoll_event> events(kEventsPerTurn);
  std::vector<std::function<void()>> tasks;
  const auto run_all = [&] {
    for (const auto& task : tasks) task();
    tasks.clear();
  };
  while (!stopping_) {
    const int n = epoll_wait(epoll_.get(), events.data(), kEventsPerTurn, may_sleep() ? -1 : 0);
    asleep_ = false;
    for (int i = 0; i < n; ++i)
      if (auto* watcher = static_cast<Watcher*>(events[static_cast<size_t>(i)].data.ptr))
        watcher->on_ready(events[static_cast<size_t>(i)].events);
    {
      const std::scoped_lock lock(mutex_);
      tasks.swap(posted_);
    }
    run_all();
    tasks.swap(deferred_);
    run_all();
  }
}

}  // namespace braid
