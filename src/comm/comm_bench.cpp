// Microseconds per all_reduce between threads: ranks by payload.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "comm/comm.h"

namespace {

// Many short rounds, of which the best counts: other programs on the machine take some of them.
constexpr int kRounds = 40;

double time_all_reduce(int size, int64_t bytes) {
  using Clock = std::chrono::steady_clock;
  auto world = braid::make_world({size, 60});
  const int calls = static_cast<int>(std::clamp<int64_t>((int64_t{16} << 20) / (bytes * size), 4, 200));
  double best = 1e9;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<int> ranks;
      for (int r = 0; r < size; ++r) ranks.push_back(r);
      auto comm = world->group(rank, "bench", ranks);
      std::vector<float> x(static_cast<size_t>(bytes / 4));
      const braid::Tensor t(x.data(), braid::DType::kF32, {bytes / 4});
      for (int round = 0; round < kRounds; ++round) {  // the first warms up
        comm->barrier("start");
        const auto start = Clock::now();
        for (int i = 0; i < calls; ++i) comm->all_reduce(t, "bench");
        const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count() / calls;
        if (rank == 0 && round > 0) best = std::min(best, us);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return best;
}

}  // namespace

int main() {
  fmt::print("us per all_reduce (best of many short rounds)\n{:>10} {:>10} {:>10} {:>10}\n", "bytes", "2 ranks",
             "4 ranks", "8 ranks");
  for (int64_t bytes = 1 << 10; bytes <= 4 << 20; bytes *= 4) {
    fmt::print("{:>10}", bytes);
    for (int size : {2, 4, 8}) fmt::print(" {:>10.1f}", time_all_reduce(size, bytes));
    fmt::print("\n");
  }
}
