// One thread that sleeps until a descriptor is ready, another thread posts a task, or a period is over. Every turn runs
// what the ready descriptors, then the posted tasks, then the deferred tasks ask for; a post wakes the thread only if
// it sleeps, so what is posted while a turn runs costs no system call.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace braid {

// A file descriptor that is closed with its owner; -1: none.
class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  ~OwnedFd() { reset(); }
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    reset(std::exchange(other.fd_, -1));
    return *this;
  }
  void reset(int fd = -1);
  int get() const { return fd_; }

 private:
  int fd_;
};

class EventLoop {
 public:
  class Watcher {
   public:
    virtual void on_ready(uint32_t epoll_events) = 0;

   protected:
    ~Watcher() = default;
  };

  EventLoop();
  ~EventLoop();

  void run();   // until stop()
  void stop();  // loop thread

  void post(std::function<void()> task);   // any thread: run in this turn or the next
  void defer(std::function<void()> task);  // loop thread: run at the end of this turn, or of the next if it is ending

  // Loop thread, or before run(). Level-triggered. A watcher must live until the end of the turn that unwatches it.
  void watch(int fd, uint32_t epoll_events, Watcher& watcher);
  void watch_for(int fd, uint32_t other_epoll_events, Watcher& watcher);
  void unwatch(int fd);
  void every(std::chrono::milliseconds period, std::function<void()> task);

 private:
  class Periodic;

  bool may_sleep();

  OwnedFd epoll_, wake_;
  std::vector<std::unique_ptr<Periodic>> periodic_;
  std::vector<std::function<void()>> deferred_;
  bool stopping_ = false;

  std::atomic<bool> asleep_{false};  // or about to; whoever clears it in post() writes to wake_
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
};

}  // namespace braid
