// Spin, then sleep on the generation word. std::atomic::wait has no time limit, so the kernel is asked directly.
#include "comm/meeting.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

long futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void Meeting::release(uint64_t number) {
  generation_.store(static_cast<uint32_t>(number), std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) futex(&generation_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr);
}

bool Meeting::wait(uint64_t number, const std::function<bool(double)>& tick) {
  const auto start = Clock::now();
  do {
    for (int i = 0; i < 16; ++i) {
      if (released(number)) return true;
      pause_cpu();
    }
  } while (Clock::now() - start < std::chrono::nanoseconds(spin_ns_));

  constexpr timespec kTick{0, 50'000'000};
  double waited = 0;
  auto last = start;
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  bool on = true;
  while (on && !released(number)) {
    futex(&generation_, FUTEX_WAIT_PRIVATE, static_cast<uint32_t>(number) - 1, &kTick);
    const auto now = Clock::now();
    const double slept = std::chrono::duration<double>(now - last).count();
    if (released(number)) break;
    if (slept < 0.04) continue;  // woken for another reason
    waited += std::min(slept, 0.5);
    last = now;
    on = tick(waited);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return on || released(number);
}

bool Meeting::withdraw(uint64_t number) {
  uint64_t arrived = arrived_.load(std::memory_order_acquire);
  while (arrived < number * size_) {
    if (arrived_.compare_exchange_weak(arrived, arrived - 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

}  // namespace braid
