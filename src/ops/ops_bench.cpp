// Times the cpu backend's operations: ops_bench [--level L] [--threads N] [--runs N] [words of a case's name]...
// One line per case: time (median), arithmetic and memory rates, and the share of the nearer ceiling, where the
// ceilings are measured in the same run. With one thread times are processor time, with more they are wall time. Small
// weights stay in the caches: their rate may exceed the memory's.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

#include "ops/conformance_cases.h"
#include "ops/cpu/ceilings.h"
#include "ops/cpu/kernels.h"

namespace braid {
namespace {

void time_case(const ConformanceCase& c, Backend& backend, const CpuCeilings& ceiling, int runs, double (*now)()) {
  backend.begin_step();
  const PreparedCase prepared = c.prepare(backend);
  std::vector<double> seconds;
  prepared.run();  // first touch of its memory
  const double begin = now();
  for (int i = 0; i < runs || (now() - begin < 0.05 && i < 10000); ++i) {
    const double start = now();
    prepared.run();
    backend.sync();
    seconds.push_back(now() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2], best = seconds[0];
  const double gflops = prepared.flops / median * 1e-9, gigabytes = prepared.bytes / median * 1e-9;
  const bool bf16 = c.name.find(" bf16 bf16") != std::string::npos ||
                    c.name.find(" bf16 fp8") != std::string::npos || c.name.find(" bf16 int8") != std::string::npos ||
                    c.name.find(" bf16 cache bf16") != std::string::npos ||
                    (c.name.find("attention_rows") == 0 && c.name.find(" bf16") != std::string::npos);
  const double share =
      std::max(gflops / (bf16 ? ceiling.bf16_gflops : ceiling.float32_gflops), gigabytes / ceiling.gigabytes);
  fmt::print("{:11.1f} {:11.1f} {:10.2f} {:10.2f} {:7.0f} %  {}\n", median * 1e6, best * 1e6, gflops, gigabytes,
             share * 100.0, c.name);
}

int run(int argc, char** argv) {
  CpuOptions options;
  int runs = 5;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--level" && i + 1 < argc) {
      options.level = argv[++i];
    } else if (flag == "--threads" && i + 1 < argc) {
      options.n_threads = std::atoi(argv[++i]);
    } else if (flag == "--runs" && i + 1 < argc) {
      runs = std::atoi(argv[++i]);
    } else {
      words.push_back(flag);
    }
  }
  const Kernels* kernels = supported_levels().back();
  for (const Kernels* k : supported_levels()) {
    if (options.level == k->level) kernels = k;
  }
  const CpuCeilings c = measure_ceilings(*kernels, options.n_threads);
  fmt::print("level {}, {} threads; ceilings: {:.0f} GFLOP/s float32, {:.0f} bfloat16, {:.1f} GB/s read\n",
             kernels->level, options.n_threads, c.float32_gflops, c.bf16_gflops, c.gigabytes);
  fmt::print("  median us     best us    GFLOP/s       GB/s    share  case\n");
  for (const ConformanceCase& one : benchmark_cases()) {
    const bool wanted = std::all_of(words.begin(), words.end(),
                                    [&](const std::string& w) { return one.name.find(w) != std::string::npos; });
    if (wanted)
      time_case(one, *make_cpu_backend(options), c, runs, options.n_threads == 1 ? thread_seconds : wall_seconds);
  }
  return 0;
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) { return braid::run(argc, argv); }
