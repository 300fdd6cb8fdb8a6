#include "ops/cpu/workers.h"

#include "base/error.h"

namespace braid {
namespace {

// About 20 microseconds of pauses: longer than the gap between two operations of a step, far shorter than a time slice.
constexpr int kSpins = 1000;

void pause() { __builtin_ia32_pause(); }

// Returns once value != seen; spins first.
uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t seen) {
  for (int i = 0; i < kSpins; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != seen) return now;
    pause();
  }
  uint32_t now;
  while ((now = value.load(std::memory_order_acquire)) == seen) value.wait(seen, std::memory_order_acquire);
  return now;
}

}  // namespace

Workers::Workers(int n_threads) {
  BRAID_CHECK(n_threads >= 1, "{} threads", n_threads);
  ranges_ = std::make_unique<Range[]>(static_cast<size_t>(n_threads));
  for (int w = 1; w < n_threads; ++w) threads_.emplace_back([this, w] { serve(w); });
}

Workers::~Workers() {
  stopping_ = true;
  job_number_.fetch_add(1, std::memory_order_release);
  job_number_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void Workers::serve(int worker) {
  uint32_t seen = 0;
  while (true) {
    seen = wait_for_change(job_number_, seen);
    if (stopping_) return;
    work(worker);
  }
}

int64_t Workers::work_on(int victim, int worker) {
  std::atomic<uint64_t>& range = ranges_[static_cast<size_t>(victim)].left;
  int64_t done = 0;
  uint64_t left = range.load(std::memory_order_acquire);
  while (true) {
    const uint64_t first = left >> kTaskBits & kMostTasks, end = left & kMostTasks;
    if (first >= end) return done;
    const Job job = job_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    const bool own = victim == worker;
    const uint64_t rest = own ? left + (uint64_t{1} << kTaskBits) : left - 1;
    if (!range.compare_exchange_weak(left, rest, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    job(context, static_cast<int64_t>(own ? first : end - 1), worker);
    ++done;
    left = range.load(std::memory_order_acquire);
  }
}

void Workers::work(int worker) {
  int64_t done = 0;
  for (int i = 0; i < size(); ++i) done += work_on((worker + i) % size(), worker);
  if (done == 0) return;
  const uint32_t n = n_tasks_.load(std::memory_order_relaxed);  // of this job still: these are not yet counted
  const auto count = static_cast<uint32_t>(done);
  if (n_done_.fetch_add(count, std::memory_order_acq_rel) + count == n) n_done_.notify_one();
}

void Workers::run_shared(int64_t n_tasks, Job job, const void* context) {
  if (n_tasks == 0) return;
  BRAID_CHECK(n_tasks <= static_cast<int64_t>(kMostTasks), "{} tasks", n_tasks);
  const uint64_t number = job_number_.load(std::memory_order_relaxed) + 1;
  n_done_.store(0, std::memory_order_relaxed);
  n_tasks_.store(static_cast<uint32_t>(n_tasks), std::memory_order_relaxed);
  job_.store(job, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  for (int w = 0; w < size(); ++w) {
    const auto first = static_cast<uint64_t>(n_tasks * w / size()),
               end = static_cast<uint64_t>(n_tasks * (w + 1) / size());
    ranges_[static_cast<size_t>(w)].left.store(number << 2 * kTaskBits | first << kTaskBits | end,
                                               std::memory_order_release);
  }
  job_number_.store(static_cast<uint32_t>(number), std::memory_order_release);
  job_number_.notify_all();

  work(0);
  uint32_t done = n_done_.load(std::memory_order_acquire);
  while (done != static_cast<uint32_t>(n_tasks)) done = wait_for_change(n_done_, done);
}

}  // namespace braid
