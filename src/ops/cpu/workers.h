// The threads of one CPU rank. run() gives every thread an equal range of consecutive tasks, since tasks that follow
// each other mostly read memory that does: a thread that skips pieces of it loses a third of its rate. Within its range
// a thread claims task by task from the front; whoever has finished claims from the back of the others'. So a slow or
// descheduled thread delays at most the task it holds. The caller works too and waits only for tasks that somebody has
// begun. Workers spin for some microseconds after a job, since the next one usually follows at once, then sleep: ranks
// may outnumber cores. With one thread nothing is started and run() is a loop. Owned by one backend; run() is called by
// its thread only.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace braid {

class Workers {
 public:
  explicit Workers(int n_threads);  // the caller included
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // f(task, worker) for every task in [0, n_tasks), worker in [0, size()). `nanoseconds` is a guess of the whole job's
  // length: what is shorter than waking somebody is done here. f must not throw.
  template <typename F>
  void run(int64_t n_tasks, double nanoseconds, const F& f) {
    if (n_tasks == 1 || threads_.empty() || nanoseconds < kWorthSharing) {
      for (int64_t i = 0; i < n_tasks; ++i) f(i, 0);
      return;
    }
    run_shared(
        n_tasks, [](const void* context, int64_t task, int worker) { (*static_cast<const F*>(context))(task, worker); },
        &f);
  }

 private:
  using Job = void (*)(const void* context, int64_t task, int worker);
  static constexpr double kWorthSharing = 8000.0;

  void run_shared(int64_t n_tasks, Job, const void* context);
  void serve(int worker);
  void work(int worker);
  int64_t work_on(int victim, int worker);  // tasks done

  // What is left of one thread's tasks, as [job number, first, one behind the last]. A task is claimed by
  // compare-and-swap, which fails when the job has changed since the other fields were read. Between two jobs all
  // ranges are empty.
  struct alignas(64) Range {
    std::atomic<uint64_t> left{0};
  };
  std::unique_ptr<Range[]> ranges_;  // [size()]
  alignas(64) std::atomic<Job> job_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<uint32_t> n_tasks_{0};
  alignas(64) std::atomic<uint32_t> n_done_{0};
  alignas(64) std::atomic<uint32_t> job_number_{0};  // workers sleep on it
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;

  static constexpr int kTaskBits = 22;
  static constexpr uint64_t kMostTasks = (uint64_t{1} << kTaskBits) - 1;
};

// Tasks from long to short in the order for run() in which every thread's range goes from long to short, so that all
// end at about the same time.
template <typename Task>
std::vector<Task> dealt(const std::vector<Task>& tasks, int n_threads) {
  std::vector<Task> order;
  order.reserve(tasks.size());
  const auto n = static_cast<size_t>(n_threads);
  for (size_t first = 0; first < n; ++first) {
    for (size_t i = first; i < tasks.size(); i += n) order.push_back(tasks[i]);
  }
  return order;
}

}  // namespace braid
