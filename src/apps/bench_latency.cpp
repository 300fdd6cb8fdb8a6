// braid bench latency: one batch of random prompts, from its submission to its last token, over and over.
#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/bench.h"
#include "base/error.h"
#include "base/progress.h"
#include "client/dataset.h"
#include "client/distribution.h"

namespace braid {
namespace {

struct LatencyOptions {
  EngineConfig engine;
  int input_len = 32, output_len = 128, batch_size = 8, n_warmup = 10, n_iterations = 30;
  std::string output_json;
  bool json = false;
};

void add_latency_options(OptionTable& t, LatencyOptions& o) {
  const auto least = [](OptionRow& row, double min) { row.min = min, row.max = 1 << 30; };
  least(t.add("input-len", &o.input_len, "tokens of a prompt"), 1);
  least(t.add("output-len", &o.output_len, "tokens of an answer"), 1);
  least(t.add("batch-size", &o.batch_size, "requests of a batch"), 1);
  least(t.add("num-iters-warmup", &o.n_warmup, "batches before the first that counts"), 0);
  least(t.add("num-iters", &o.n_iterations, "batches that count"), 1);
  t.add("output-json", &o.output_json, "write the result to this file");
  t.add("json", &o.json, "print the result as JSON");
}

// Every batch has prompts of its own, so that none is found in the prefix cache.
double run_batch(EngineLoop& engine, const LatencyOptions& o, uint64_t seed) {
  DatasetOptions prompts;
  prompts.num_prompts = o.batch_size;
  prompts.input_len = o.input_len;
  prompts.output_len = o.output_len;
  std::vector<Request> batch;
  for (BenchPrompt& p : make_dataset(prompts, seed, nullptr, engine.vocab_size())) {
    batch.push_back(bench_request(std::move(p.tokens), p.n_output));
  }
  Completions completions(engine);
  const auto start = std::chrono::steady_clock::now();
  completions.submit_together(std::move(batch));
  for (int i = 0; i < o.batch_size; ++i) {
    const Completion& c = completions.wait(static_cast<size_t>(i));
    if (c.finish != FinishReason::kLength)
      throw RuntimeFailure(fmt::format("a request was not answered: {}", c.message));
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int run_bench_latency(const Arguments& arguments) {
  LatencyOptions o;
  OptionTable table("benchmark");
  add_latency_options(table, o);
  add_engine_options(table, o.engine);
  std::vector<std::string> problems;
  if (parse_or_help("bench latency", "time of one batch, in process", table, arguments, problems)) return kOk;
  const RankSetup setup = resolve(o.engine, problems);
  if (problems.empty() && o.input_len + o.output_len > setup.max_model_len) {
    problems.push_back(fmt::format("--input-len {} and --output-len {} together are above --max-model-len {}",
                                   o.input_len, o.output_len, setup.max_model_len));
  }
  if (!problems.empty()) return refuse("bench latency", problems);
  const auto engine = start_engine(setup);
  if (!engine) return kOk;

  std::vector<double> seconds;
  {
    Progress progress("bench latency", o.n_warmup + o.n_iterations, Progress::Unit::kCount);
    for (int i = -o.n_warmup; i < o.n_iterations; ++i) {
      const double s = run_batch(*engine, o, o.engine.seed + static_cast<uint64_t>(i + o.n_warmup));
      if (i >= 0) seconds.push_back(s);
      progress.add(1);
    }
  }
  const Distribution d = distribution(seconds, {10, 25, 50, 75, 90, 99});
  Json result = {{"layout", layout_text(setup)},  {"input_len", o.input_len},
                 {"output_len", o.output_len},    {"batch_size", o.batch_size},
                 {"avg_latency", d.mean},         {"latencies", seconds},
                 {"percentiles", Json::object()}, {"counters", engine_counters(*engine)}};
  for (const auto& [percent, value] : d.percentiles) result["percentiles"][fmt::format("{:g}", percent)] = value;
  write_result_file(o.output_json, result);
  if (o.json) {
    std::printf("%s\n", to_string(result, 1).c_str());
  } else {
    std::printf("Avg latency: %.6f seconds\n", d.mean);
    for (const auto& [percent, value] : d.percentiles)
      std::printf("%g%% percentile latency: %.6f seconds\n", percent, value);
  }
  print_counters(*engine);
  return kOk;
}

}  // namespace braid
