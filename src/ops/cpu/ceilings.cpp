#include "ops/cpu/ceilings.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>

namespace braid {
namespace {

// Amounts per nanosecond of all threads together.
template <typename F>
double best_rate(int n_threads, const F& amount_of_one) {
  std::vector<double> rates(static_cast<size_t>(n_threads), 0.0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < rates.size(); ++t) {
    threads.emplace_back([&rates, &amount_of_one, t] {
      for (int i = 0; i < 10; ++i) {
        const double start = thread_seconds();
        const double amount = amount_of_one(t);
        rates[t] = std::max(rates[t], amount / (thread_seconds() - start) * 1e-9);
      }
    });
  }
  double sum = 0.0;
  for (std::thread& t : threads) t.join();
  for (const double rate : rates) sum += rate;
  return sum;
}

// Memory in large pages, as weights have it.
class LargePages {
 public:
  explicit LargePages(size_t bytes) : bytes_(bytes) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ::madvise(data_, bytes, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes);
  }
  ~LargePages() { ::munmap(data_, bytes_); }
  LargePages(const LargePages&) = delete;
  LargePages& operator=(const LargePages&) = delete;
  const float* floats() const { return static_cast<const float*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

}  // namespace

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

CpuCeilings measure_ceilings(const Kernels& kernels, int n_threads) {
  CpuCeilings c;
  c.float32_gflops = best_rate(n_threads, [&](size_t) {
    float sink = 0.0f;
    return static_cast<double>(kernels.ceilings.float32_flops(1000000, &sink));
  });
  c.bf16_gflops = best_rate(n_threads, [&](size_t) {
    float sink = 0.0f;
    return static_cast<double>(kernels.ceilings.bf16_flops(1000000, &sink));
  });
  constexpr int64_t kFloats = int64_t{64} << 20;  // per thread; far beyond the caches
  const LargePages memory(static_cast<size_t>(n_threads * kFloats) * sizeof(float));
  c.gigabytes = best_rate(n_threads, [&](size_t thread) {
    float sink = 0.0f;
    kernels.ceilings.read(memory.floats() + static_cast<int64_t>(thread) * kFloats, kFloats, &sink);
    return static_cast<double>(kFloats) * sizeof(float);
  });
  return c;
}

}  // namespace braid
