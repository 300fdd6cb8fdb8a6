// Progress: at most ten drawings a second, by whichever thread comes by.
#include "base/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace braid {

Progress::Progress(std::string title, int64_t total, Unit unit, bool wanted)
    : title_(std::move(title)), total_(total), unit_(unit), visible_(wanted && ::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (!visible_) return;
  draw();
  std::fputc('\n', stderr);
}

void Progress::add(int64_t n) {
  done_.fetch_add(n, std::memory_order_relaxed);
  if (!visible_) return;
  const std::unique_lock lock(drawing_, std::try_to_lock);  // somebody else is drawing: fine
  if (!lock || Clock::now() - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = Clock::now();
  draw();
}

void Progress::draw() {
  std::fprintf(stderr, "\r\x1b[K%s", line().c_str());
  std::fflush(stderr);
}

std::string Progress::line() const {
  constexpr int kWidth = 30;
  const int64_t n = done();
  const double share = total_ > 0 ? std::clamp(static_cast<double>(n) / static_cast<double>(total_), 0.0, 1.0) : 1.0;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(n) / seconds : 0.0;
  const int filled = static_cast<int>(share * kWidth);
  const std::string amount = unit_ == Unit::kBytes
                                 ? fmt::format("{:.2f}/{:.2f} GB, {:.2f} GB/s", static_cast<double>(n) / 1e9,
                                               static_cast<double>(total_) / 1e9, rate / 1e9)
                                 : fmt::format("{}/{}, {:.1f}/s", n, total_, rate);
  const double left = rate > 0 ? static_cast<double>(std::max<int64_t>(total_ - n, 0)) / rate : 0.0;
  return fmt::format("{} [{}{}] {:3.0f}% {}, {:.0f} s left", title_, std::string(static_cast<size_t>(filled), '#'),
                     std::string(static_cast<size_t>(kWidth - filled), '.'), share * 100.0, amount, left);
}

}  // namespace braid
