// The whole engine on the CPU beside what this machine can do at most: cpu_e2e_bench [--model FOLDER] [--threads N,M]
// [--neighbour] [--json] [--load-format auto] [--quantization fp8|int8] [--top N]. For every number of threads: ceilings, prefill of 512 and of
// 4,096 tokens as shares of the bfloat16 rate, decoding of one sequence as a share of the memory rate; then the gain of
// the last number of threads over the first, and the host's time per step. --neighbour repeats the figures beside one
// busy process. Weights are dummies unless --load-format says otherwise: speed does not depend on them. --top prints,
// instead of all that, the N likeliest tokens after token i * 7919 % vocabulary for i in [0, 512), for comparisons with
// other programs. One thread's times are processor time, which other programs stretch little; with more threads they
// are wall time, and mean something on a quiet machine only.
//
// A prefill's operations are those that the mathematics needs: every product once per token (the head once per prompt)
// and attention in its expanded form. A decoding step's bytes are the weights that one token touches and the cached
// rows that it sees.
#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "ops/cpu/ceilings.h"
#include "runtime/engine_loop.h"

namespace braid {
namespace {

constexpr int kDecodeSteps = 24;

struct Options {
  std::string model = "bench/models/tiny-mla";
  std::vector<int> threads = {1, 2};
  bool neighbour = false, json = false;
  std::string load_format = "dummy", quantization = "auto";
  int top = 0;
};

// Multiply-adds of one token of a latent-attention mixture model, attention over earlier tokens apart.
struct ModelCost {
  double per_token = 0.0, head = 0.0;  // weights that a token touches; the head's
  double wide = 0.0;                   // of per_token's: those that are never in eight bits
  double per_pair = 0.0;               // of attention, per query and visible token, all layers
  double cached_bytes = 0.0;           // per token, all layers
};

ModelCost cost_of(const ModelConfig& c) {
  BRAID_CHECK(c.mla.has_value(), "only latent attention is counted here");
  const MlaConfig& m = *c.mla;
  const auto hidden = static_cast<double>(c.hidden), heads = static_cast<double>(c.n_heads);
  const auto qk = static_cast<double>(m.qk_head()), v = static_cast<double>(m.v_head);
  const auto q_rank = static_cast<double>(m.q_lora_rank), rank = static_cast<double>(m.kv_lora_rank);
  ModelCost cost;
  for (int i = 0; i < c.n_layers; ++i) {
    cost.per_token += q_rank > 0 ? hidden * q_rank + q_rank * heads * qk : hidden * heads * qk;
    cost.per_token += hidden * (rank + static_cast<double>(m.qk_rope));
    cost.wide += rank * heads * (static_cast<double>(m.qk_nope) + v);
    cost.per_token += rank * heads * (static_cast<double>(m.qk_nope) + v) + heads * v * hidden;
    if (c.is_moe_layer(i)) {
      const auto width = static_cast<double>(c.moe.router.top_k * c.moe.intermediate + c.moe.shared_intermediate);
      cost.wide += hidden * static_cast<double>(c.moe.n_experts);
      cost.per_token += hidden * (static_cast<double>(c.moe.n_experts) + 3.0 * width);
    } else {
      cost.per_token += 3.0 * hidden * static_cast<double>(c.intermediate);
    }
  }
  cost.head = hidden * static_cast<double>(c.vocab);
  cost.per_pair = static_cast<double>(c.n_layers) * heads * (qk + v);
  cost.cached_bytes = static_cast<double>(c.n_layers) * 2.0 * (rank + static_cast<double>(m.qk_rope));
  return cost;
}

// One sequence, driven step by step.
class OneSequence {
 public:
  OneSequence(Executor& executor, int64_t max_tokens) : executor_(executor) {
    const int64_t block = executor.setup().config.block_size;
    for (int64_t b = 0; b < (max_tokens + block - 1) / block; ++b) sequence_.blocks.push_back(BlockId(b));
    sequence_.id = RequestId(1);
  }
  // Seconds of the step that computes these tokens and samples the next.
  double step(int64_t start, int64_t n, int n_top = 0) {
    sequence_.start = TokenPos(start);
    sequence_.tokens.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      sequence_.tokens[static_cast<size_t>(i)] =
          static_cast<int32_t>((start + i) * 7919 % executor_.setup().model.vocab);
    }
    sequence_.sample = true;
    plan_.step += 1;
    plan_.sequences.assign(1, sequence_);
    SamplingRow row;
    row.n_top_logprobs = n_top;
    const auto now = executor_.setup().threads == 1 ? thread_seconds : wall_seconds;
    const double begin = now();
    result_ = executor_.run(plan_, {&row, 1});
    return now() - begin;
  }
  const TokenOutput& next() const { return result_.sequences[0].token; }

 private:
  Executor& executor_;
  PlannedSequence sequence_;
  StepPlan plan_;
  StepResult result_;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

struct Figures {
  double prefill_512 = 0.0, prefill_4096 = 0.0, decode = 0.0;  // seconds: median of a prompt, of a step
};

double prefill_seconds(OneSequence& s, int64_t n, int64_t chunk, int runs) {
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    double sum = 0.0;
    for (int64_t at = 0; at < n; at += chunk) sum += s.step(at, std::min(chunk, n - at));
    seconds.push_back(sum);
  }
  return median(seconds);
}

Figures measure(Executor& executor) {
  OneSequence s(executor, 4096 + 64);
  const int64_t chunk = executor.setup().config.max_num_batched_tokens;
  Figures f;
  s.step(0, 512);
  f.prefill_512 = prefill_seconds(s, 512, chunk, 5);
  std::vector<double> steps;
  for (int i = 0; i < kDecodeSteps; ++i) steps.push_back(s.step(512 + i, 1));
  f.decode = median(steps);
  f.prefill_4096 = prefill_seconds(s, 4096, chunk, 2);
  return f;
}

// One process that wants a core for itself.
class Neighbour {
 public:
  Neighbour() : child_(::fork()) {
    if (child_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) asm volatile("");
  }
  ~Neighbour() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

 private:
  pid_t child_;
};

class Report {
 public:
  Report(const Options& o, const RankSetup& setup)
      : json_(o.json), cost_(cost_of(setup.model)), weight_bytes_(setup.weights.rounded.scaled() ? setup.weights.rounded.bytes() : 2.0) {}

  void line(const std::string& what, double figure, const char* unit, double limit, double ratio) const {
    if (json_) {
      fmt::print("{{\"what\": \"{}\", \"figure\": {:.6g}, \"unit\": \"{}\", \"limit\": {:.6g}, \"ratio\": {:.4f}}}\n",
                 what, figure, unit, limit, ratio);
    } else {
      fmt::print("{:<52} {:>10.1f} {:<8} limit {:>10.1f}  ratio {:.3f}\n", what, figure, unit, limit, ratio);
    }
    std::fflush(stdout);
  }
  void figures(int threads, const CpuCeilings& c, const Figures& f) const {
    const std::string suffix = fmt::format(", {} thread{}", threads, threads == 1 ? "" : "s");
    prefill("prefill of 512 tokens" + suffix, 512, f.prefill_512, c);
    prefill("prefill of 4,096 tokens" + suffix, 4096, f.prefill_4096, c);
    const double weights = weight_bytes_ * (cost_.per_token - cost_.wide) + 2.0 * (cost_.wide + cost_.head);
    const double bytes = weights + (512.0 + kDecodeSteps / 2.0) * cost_.cached_bytes;
    const double limit = c.gigabytes * 1e9 / bytes, figure = 1.0 / f.decode;
    line("decoding, one sequence, 512 tokens behind it" + suffix, figure, "tokens/s", limit, figure / limit);
  }

 private:
  void prefill(const std::string& what, double n, double seconds, const CpuCeilings& c) const {
    const double flops = 2.0 * (n * cost_.per_token + cost_.head + n * (n + 1.0) / 2.0 * cost_.per_pair);
    const double limit = c.bf16_gflops * 1e9 / flops * n, figure = n / seconds;
    line(what, figure, "tokens/s", limit, figure / limit);
  }

  bool json_;
  ModelCost cost_;
  double weight_bytes_;  // of one that may be in eight bits
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--model" && i + 1 < argc) {
      o.model = argv[++i];
    } else if (flag == "--threads" && i + 1 < argc) {
      o.threads.clear();
      std::istringstream list(argv[++i]);
      for (std::string n; std::getline(list, n, ',');) o.threads.push_back(std::max(1, std::atoi(n.c_str())));
    } else if (flag == "--load-format" && i + 1 < argc) {
      o.load_format = argv[++i];
    } else if (flag == "--quantization" && i + 1 < argc) {
      o.quantization = argv[++i];
    } else if (flag == "--top" && i + 1 < argc) {
      o.top = std::atoi(argv[++i]);
    } else if (flag == "--neighbour") {
      o.neighbour = true;
    } else if (flag == "--json") {
      o.json = true;
    } else {
      throw Error("{} is not an option of cpu_e2e_bench; see the top of its source", flag);
    }
  }
  return o;
}

EngineConfig config_of(const Options& o, int threads) {
  EngineConfig config;
  config.model = o.model;
  config.device = "cpu";
  config.load_format = o.load_format;
  config.quantization = o.quantization;
  config.threads = threads;
  config.kv_cache_memory = "128M";
  config.prefix_caching = false;
  return config;
}
RankSetup setup_of(const Options& o, int threads) { return resolve_or_throw(config_of(o, threads)); }

// Seconds from token to token of one request, through scheduler, lowering, sampling and delivery, with a model so small
// that its own work is a part of them only.
double host_seconds(const Options& o) {
  EngineConfig config = config_of(o, 1);
  config.load_format = "dummy";
  config.hf_overrides =
      R"({"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 256, "q_lora_rank": 16,
          "kv_lora_rank": 16, "num_attention_heads": 1, "num_key_value_heads": 1, "qk_nope_head_dim": 16,
          "qk_rope_head_dim": 16, "v_head_dim": 16})";
  const RankSetup setup = resolve_or_throw(config);
  EngineLoop engine(std::make_unique<Executor>(setup, make_world({.size = 1})), {});
  Request request;
  request.id = engine.next_id();
  request.prompt.assign(64, 1);
  request.sampling.max_tokens = 4000;
  request.sampling.ignore_eos = true;
  std::vector<double> seconds;
  std::promise<void> ended;
  double last = 0.0;
  engine.submit(std::move(request), [&](Delta&& d) {
    const double now = wall_seconds();
    if (last > 0.0) seconds.push_back(now - last);
    last = now;
    if (d.finish != FinishReason::kNone) ended.set_value();
  });
  ended.get_future().wait();
  return median(seconds);
}

int print_top(const Options& o) {
  Executor executor(setup_of(o, o.threads.back()), make_world({.size = 1}));
  OneSequence s(executor, 512);
  s.step(0, 512, o.top);
  for (const auto& [id, logprob] : s.next().top) fmt::print("{{\"id\": {}, \"logprob\": {:.6f}}}\n", id, logprob);
  return 0;
}

int run(int argc, char** argv) {
  const Options o = parse(argc, argv);
  if (o.top > 0) return print_top(o);
  const Kernels& kernels = *supported_levels().back();
  std::vector<Figures> all;
  for (const int n : o.threads) {
    const RankSetup setup = setup_of(o, n);
    const Report report(o, setup);
    const double begin = wall_seconds();
    Executor executor(setup, make_world({.size = 1}));
    const double loaded = wall_seconds();
    const CpuCeilings c = measure_ceilings(kernels, n);
    if (!o.json) {
      fmt::print(
          "{} threads, level {}: {:.0f} GFLOP/s float32, {:.0f} bfloat16, {:.1f} GB/s read; loaded in {:.1f} s\n", n,
          kernels.level, c.float32_gflops, c.bf16_gflops, c.gigabytes, loaded - begin);
    }
    const Figures f = measure(executor);
    report.figures(n, c, f);
    if (o.neighbour && n > 1) {
      const Neighbour busy;
      const Figures beside = measure(executor);
      auto slower = [&](const char* what, double with, double without) {
        report.line(fmt::format("{} beside a busy process, {} threads", what, n), with / without, "times", 2.2,
                    with / without / 2.2);
      };
      slower("prefill of 512 tokens", beside.prefill_512, f.prefill_512);
      slower("prefill of 4,096 tokens", beside.prefill_4096, f.prefill_4096);
      slower("a decoding step", beside.decode, f.decode);
    }
    all.push_back(f);
  }
  const Report report(o, setup_of(o, 1));
  const double host = host_seconds(o) * 1e6;
  report.line("a step of one request where the model is next to nothing", host, "us", 50.0, host / 50.0);
  if (all.size() < 2) return 0;
  const double most = static_cast<double>(o.threads.back()) / o.threads.front();
  auto gain = [&](const char* what, double one, double several) {
    report.line(fmt::format("{}: {} threads over {}", what, o.threads.back(), o.threads.front()), one / several,
                "times", most, one / several / most);
  };
  gain("prefill of 512 tokens", all.front().prefill_512, all.back().prefill_512);
  gain("prefill of 4,096 tokens", all.front().prefill_4096, all.back().prefill_4096);
  gain("decoding", all.front().decode, all.back().decode);
  return 0;
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  try {
    return braid::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "cpu_e2e_bench: %s\n", e.what());
    return 2;
  }
}
