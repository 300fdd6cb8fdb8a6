// A progress bar on stderr, drawn only when that is a terminal: share done, rate, time left. Any thread may add.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace braid {

class Progress {
 public:
  enum class Unit { kBytes, kCount };
  Progress(std::string title, int64_t total, Unit unit, bool wanted = true);
  ~Progress();  // draws the final state and ends the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(int64_t n);
  int64_t done() const { return done_.load(std::memory_order_relaxed); }
  std::string line() const;  // what is drawn

 private:
  using Clock = std::chrono::steady_clock;
  void draw();

  const std::string title_;
  const int64_t total_;
  const Unit unit_;
  const bool visible_;
  const Clock::time_point start_ = Clock::now();
  std::atomic<int64_t> done_{0};
  std::mutex drawing_;
  Clock::time_point drawn_ = start_;
};

}  // namespace braid
