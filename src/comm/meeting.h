// Where the ranks of a group that are threads of this process meet. Each arrives once per meeting; the last to arrive
// is told so, does what the meeting is for on everybody's behalf (copies, sums, messages to other processes) and
// releases the others, which wait: spinning for a few microseconds, then asleep in the kernel, since there may be more
// ranks than cores. One atomic increment and one wait per rank.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

namespace braid {

class Meeting {
 public:
  Meeting(int size, int64_t spin_ns) : size_(static_cast<uint64_t>(size)), spin_ns_(spin_ns) {}

  // `number` counts the meetings from 1; every rank passes the same. True: the caller is the last and must release().
  bool arrive(uint64_t number) { return arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == number * size_; }
  void release(uint64_t number);
  bool complete(uint64_t number) const { return arrived_.load(std::memory_order_acquire) >= number * size_; }
  // Until release(number). `tick` is called about every 50 ms with the seconds waited so far; when it returns false the
  // wait ends with false. Time in which this thread could not run (a suspended machine) counts as little.
  bool wait(uint64_t number, const std::function<bool(double)>& tick);
  // Takes back an arrival, unless all have arrived: then the meeting takes place and its end must be waited for.
  bool withdraw(uint64_t number);

 private:
  bool released(uint64_t number) const {
    return static_cast<int32_t>(generation_.load(std::memory_order_seq_cst) - static_cast<uint32_t>(number)) >= 0;
  }

  const uint64_t size_;
  const int64_t spin_ns_;
  alignas(64) std::atomic<uint64_t> arrived_{0};     // in all meetings together
  alignas(64) std::atomic<uint32_t> generation_{0};  // the last meeting released; the kernel waits on this word
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace braid
