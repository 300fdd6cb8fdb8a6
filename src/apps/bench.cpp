// braid bench: picks the benchmark.
#include "apps/bench.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/app.h"
#include "base/error.h"

namespace braid {

int run_bench(const Arguments& arguments) {
  struct Benchmark {
    const char* name;
    const char* summary;
    int (*run)(const Arguments&);
  };
  static const Benchmark kBenchmarks[] = {
      {"decode", "decode steps at any batch and context", run_bench_decode},
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

void write_result_file(const std::string& file, const Json& result) {
  if (file.empty()) return;
  std::ofstream out(file, std::ios::binary);
  out << to_string(result, 1) << '\n';
  if (!out.flush()) throw Error("cannot write {}: {}", file, std::strerror(errno));
}

}  // namespace braid
