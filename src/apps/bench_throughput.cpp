// braid bench throughput: all requests of a data set at once, in process; tokens per second.
#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/bench.h"
#include "base/log.h"
#include "base/progress.h"
#include "client/dataset.h"
#include "text/tokenizer.h"

namespace braid {
namespace {

struct ThroughputOptions {
  EngineConfig engine;
  DatasetOptions data;
  std::string output_json;
  bool json = false;
};

struct ThroughputResult {
  double seconds = 0;
  int64_t requests = 0, failed = 0, input_tokens = 0, output_tokens = 0;

  double per_second(int64_t n) const { return seconds > 0 ? static_cast<double>(n) / seconds : 0; }
};

ThroughputResult run_all(EngineLoop& engine, std::vector<BenchPrompt> prompts) {
  ThroughputResult r;
  Progress progress("bench throughput", static_cast<int64_t>(prompts.size()), Progress::Unit::kCount);
  Completions completions(engine);
  std::vector<Request> requests;
  std::vector<int64_t> n_input;
  for (BenchPrompt& p : prompts) {
    n_input.push_back(static_cast<int64_t>(p.tokens.size()));
    requests.push_back(bench_request(std::move(p.tokens), p.n_output));
  }
  const auto start = std::chrono::steady_clock::now();
  completions.submit_together(std::move(requests));
  for (size_t i = 0; i < n_input.size(); ++i) {
    const Completion& c = completions.wait(i);
    progress.add(1);
    if (c.finish != FinishReason::kLength) {
      ++r.failed;
      log_error("request {} of {} tokens was not answered: {}", i, n_input[i], c.message);
      continue;
    }
    ++r.requests;
    r.input_tokens += n_input[i];
    r.output_tokens += static_cast<int64_t>(c.tokens.size());
  }
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return r;
}

}  // namespace

int run_bench_throughput(const Arguments& arguments) {
  ThroughputOptions o;
  OptionTable table("benchmark");
  table.add("output-json", &o.output_json, "write the result to this file");
  table.add("json", &o.json, "print the result as JSON");
  add_dataset_options(table, o.data);
  add_engine_options(table, o.engine);
  std::vector<std::string> problems;
  if (parse_or_help("bench throughput", "tokens per second of many requests, in process", table, arguments, problems)) {
    return kOk;
  }
  // Ids serve the engine as they are: only a file's text needs a tokenizer.
  const bool text = o.data.name == "sharegpt" || o.data.name == "custom";
  check_dataset(o.data, true, problems);
  const RankSetup setup = resolve(o.engine, problems);
  if (!problems.empty()) return refuse("bench throughput", problems);
  const auto tokenizer =
      text ? Tokenizer::load(tokenizer_folder(o.engine)) : nullptr;
  std::vector<BenchPrompt> prompts =
      make_dataset(o.data, o.engine.seed, tokenizer.get(), static_cast<int>(setup.model.vocab));
  const auto engine = start_engine(setup);
  if (!engine) return kOk;

  const ThroughputResult r = run_all(*engine, std::move(prompts));
  const Json result = {{"layout", layout_text(setup)},
                       {"elapsed_time", r.seconds},
                       {"num_requests", r.requests},
                       {"failed", r.failed},
                       {"total_input_tokens", r.input_tokens},
                       {"total_output_tokens", r.output_tokens},
                       {"requests_per_second", r.per_second(r.requests)},
                       {"tokens_per_second", r.per_second(r.input_tokens + r.output_tokens)},
                       {"output_tokens_per_second", r.per_second(r.output_tokens)},
                       {"counters", engine_counters(*engine)}};
  write_result_file(o.output_json, result);
  if (o.json) {
    std::printf("%s\n", to_string(result, 1).c_str());
  } else {
    std::printf("Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n", r.per_second(r.requests),
                r.per_second(r.input_tokens + r.output_tokens), r.per_second(r.output_tokens));
    std::printf("Total num prompt tokens: %lld\nTotal num output tokens: %lld\n",
                static_cast<long long>(r.input_tokens), static_cast<long long>(r.output_tokens));
  }
  print_counters(*engine);
  return r.failed == 0 ? kOk : kFailed;
}

}  // namespace braid
