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

void Workers::work(int worker) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (true) {
    const uint32_t n = n_tasks_.load(std::memory_order_acquire);
    const Job job = job_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    const auto task = static_cast<uint32_t>(ticket);
    if (task >= n) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    job(context, task, worker);
    if (n_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == n) n_done_.notify_one();
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void Workers::run_shared(int64_t n_tasks, Job job, const void* context) {
  if (n_tasks == 0) return;
  BRAID_CHECK(n_tasks < static_cast<int64_t>(kClosed), "{} tasks", n_tasks);
  const uint64_t number = job_number_.load(std::memory_order_relaxed) + 1;
  // Closed first: whoever still holds the last job's ticket may read the new fields, but can no longer claim.
  ticket_.store(number << 32 | kClosed, std::memory_order_release);
  n_done_.store(0, std::memory_order_relaxed);
  job_.store(job, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  n_tasks_.store(static_cast<uint32_t>(n_tasks), std::memory_order_release);
  ticket_.store(number << 32, std::memory_order_release);
  job_number_.store(static_cast<uint32_t>(number), std::memory_order_release);
  job_number_.notify_all();

  work(0);
  uint32_t done = n_done_.load(std::memory_order_acquire);
  while (done != static_cast<uint32_t>(n_tasks)) done = wait_for_change(n_done_, done);
}

}  // namespace braid
