// A few threads for work that would hold up the io thread: parsing, rendering and tokenising long prompts.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace braid {

class WorkerPool {
 public:
  explicit WorkerPool(int n_threads);
  ~WorkerPool();  // finishes running tasks, drops waiting ones

  void submit(std::function<void()> task);  // any thread; the task must not throw

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace braid
