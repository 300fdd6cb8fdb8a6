// Where the engine thread leaves what its steps made, for the io thread. The first delta after a pick-up wakes the io
// thread once; the others of the step only append, so a step costs one hand-over however many streams it feeds.
#pragma once
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "sched/request.h"

namespace braid {

class DeltaMailbox {
 public:
  explicit DeltaMailbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  void push(Delta&& delta) {  // engine thread
    {
      const std::scoped_lock lock(mutex_);
      if (closed_) return;
      deltas_.push_back(std::move(delta));
      if (deltas_.size() > 1) return;
    }
    const std::scoped_lock lock(wake_mutex_);  // its own: the io thread, once awake, must not find `mutex_` held
    if (wake_) wake_();
  }
  std::vector<Delta> take() {  // io thread
    const std::scoped_lock lock(mutex_);
    return std::exchange(deltas_, {});
  }
  void close() {  // no wake-up after this; later deltas are dropped
    const std::scoped_lock lock(wake_mutex_, mutex_);
    wake_ = nullptr;
    closed_ = true;
    deltas_.clear();
  }

 private:
  std::mutex mutex_, wake_mutex_;
  std::vector<Delta> deltas_;
  std::function<void()> wake_;
  bool closed_ = false;
};

}  // namespace braid
