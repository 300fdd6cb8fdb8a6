// braid bench: picks the benchmark.
#include "apps/bench.h"

#include <cstdio>

#include "apps/app.h"

namespace braid {

int run_bench(const Arguments& arguments) {
  struct Benchmark {
    const char* name;
    const char* summary;
    int (*run)(const Arguments&);
  };
  static const Benchmark kBenchmarks[] = {
      {"latency", "time of one batch, in process", run_bench_latency},
      {"throughput", "tokens per second of many requests, in process", run_bench_throughput},
      {"decode", "decode steps at any batch and context, without prompts", run_bench_decode},
      {"serve", "load on an OpenAI-compatible server", run_bench_serve},
  };
  const std::string name = arguments.words.empty() ? "" : arguments.words[0];
  for (const Benchmark& b : kBenchmarks) {
    if (name == b.name) return b.run({{arguments.words.begin() + 1, arguments.words.end()}});
  }
  const bool help = name == "--help" || name == "-h" || name == "help";
  std::FILE* to = help ? stdout : stderr;
  if (!help) std::fprintf(to, name.empty() ? "braid bench: which?\n" : "braid bench: '%s' is unknown\n", name.c_str());
  std::fprintf(to, "usage: braid bench BENCHMARK [options]; braid bench BENCHMARK --help\n\n");
  for (const Benchmark& b : kBenchmarks) std::fprintf(to, "  %-10s %s\n", b.name, b.summary);
  return help ? kOk : kUsage;
}

}  // namespace braid
