// braid bench decode: steps of the engine in which every sequence has one new token, at any batch and context. The cache is
// filled with dummy values instead of prompts, so that a run takes seconds however long the context.
//
//   step      from the plan to the sampled tokens on the host, wall time
//   device    the pass alone: many passes asked for one after the other, divided by their number
//   idle      step less the device's part of it: passes, each with its sampling and the transfer of the result, asked for
//             one after the other without waiting for any
//   limit     what must be read at least (weights that the batch touches, cached rows), at the copy bandwidth of this run
//   outside   step less device: sampling, the transfer of its result, and idle
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/bench.h"
#include "base/error.h"
#include "runtime/executor.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

struct DecodeBenchOptions {
  EngineConfig engine;
  std::string batches = "1,8,64", contexts = "8192", result_file;
  int steps = 50;
  bool json = false;
};

struct DecodeResult {
  int64_t batch = 0, context = 0;
  double median = 0, p10 = 0, p90 = 0;  // seconds of a step
  double device = 0, idle = 0, limit = 0;
  double prepare = 0, launch = 0;       // seconds of the host in a step, medians
  bool recorded = false;
  uint64_t tokens = 14695981039346656037u;  // a hash of all that was sampled: equal work gives equal tokens
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

std::vector<int64_t> numbers(const std::string& option, const std::string& text, std::vector<std::string>& problems) {
  std::vector<int64_t> all;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, comma - at);
    char* end = nullptr;
    const long long n = std::strtoll(word.c_str(), &end, 10);
    if (word.empty() || *end != 0 || n < 1) {
      problems.push_back(fmt::format("--{} '{}': use whole numbers from 1 on, as in 1,8,64", option, text));
      return {};
    }
    all.push_back(n);
    at = comma + 1;
  }
  return all;
}

// Bytes per second of copies of 1 GiB on the first rank's device, reads and writes counted.
double copy_bandwidth(Executor& executor) {
  double rate = 0;
  executor.each_rank([&](Runner& runner) {
    constexpr int64_t kBytes = int64_t{1} << 30;
    constexpr int kCopies = 20;
    Backend& backend = runner.backend();
    if (runner.device_memory().free < 4 * kBytes) return;
    backend.begin_step();
    const Tensor from = backend.scratch(DType::kF32, {kBytes / 4096, 1024}), to = backend.scratch(DType::kF32, {kBytes / 4096, 1024});
    backend.fill_zero(from);
    backend.copy(to, from);
    backend.sync();
    const auto start = Clock::now();
    for (int i = 0; i < kCopies; ++i) backend.copy(to, from);
    backend.sync();
    if (runner.rank() == 0) rate = 2.0 * kBytes * kCopies / seconds_since(start);
  });
  return rate;
}

// Bytes of weights that a step of `batch` tokens reads on a rank: all but the embedding, the rotation table, and experts
// that no token chooses (choices taken as even).
double weight_bytes(const RankSetup& s, const RankCounters& c, int64_t batch) {
  const ModelConfig& m = s.model;
  const double tp = s.config.layout.tp, size = size_of(s.compute);
  double bytes = static_cast<double>(c.weights_bytes) - static_cast<double>(m.vocab * m.hidden) * size / tp -
                 static_cast<double>(s.max_model_len) * static_cast<double>(m.rope.dim) * 4;
  const auto n_moe = std::count(m.moe_layer.begin(), m.moe_layer.begin() + m.n_layers, true);
  if (n_moe > 0) {
    const double experts = static_cast<double>(m.moe.n_experts), one = 3.0 * static_cast<double>(m.hidden * m.moe.intermediate) * size / tp;
    const double idle = std::pow(1.0 - m.moe.router.top_k / experts, static_cast<double>(batch));
    bytes -= static_cast<double>(n_moe) * experts * one * idle;
  }
  return bytes;
}

// One step for `batch` sequences of `context` cached tokens, each with blocks of its own.
StepPlan decode_plan(const RankSetup& s, int64_t batch, int64_t context, int64_t steps) {
  const int64_t columns = (context + steps + s.virtual_block()) / s.virtual_block();
  StepPlan plan;
  int64_t block = 0;
  for (int64_t i = 0; i < batch; ++i) {
    PlannedSequence q;
    q.id = RequestId(i + 1);
    q.start = TokenPos(context);
    q.tokens = {static_cast<int32_t>((7919 * (i + 1)) % s.model.vocab)};
    for (int64_t c = 0; c < columns; ++c) q.blocks.push_back(BlockId(block++));
    q.sample = true;
    plan.sequences.push_back(std::move(q));
  }
  return plan;
}

// With rows to sample the first rank also draws them, as it does in a step.
double device_time(Executor& executor, const StepPlan& plan, int n, std::span<const SamplingRow> sampling) {
  double seconds = 0;
  std::vector<SampleResult> drawn(sampling.size());
  executor.each_rank([&](Runner& runner) {
    auto pass = [&] {
      const Tensor logits = runner.forward(plan);
      if (runner.rank() == 0 && !sampling.empty()) runner.backend().sample_later(drawn, logits, sampling);
    };
    pass();
    runner.backend().sync();
    const auto start = Clock::now();
    for (int i = 0; i < n; ++i) pass();
    runner.backend().sync();
    if (runner.rank() == 0) seconds = seconds_since(start) / n;
  });
  return seconds;
}

// Seconds of a step, with which the plan goes on.
double one_step(Executor& executor, StepPlan& plan, std::span<const SamplingRow> sampling, DecodeResult& r) {
  ++plan.step;
  const auto start = Clock::now();
  const StepResult result = executor.run(plan, sampling);
  const double seconds = seconds_since(start);
  for (size_t k = 0; k < plan.sequences.size(); ++k) {
    plan.sequences[k].start = plan.sequences[k].start + 1;
    plan.sequences[k].tokens[0] = result.sequences[k].token.token;
    r.tokens = (r.tokens ^ static_cast<uint64_t>(result.sequences[k].token.token)) * 1099511628211u;
    if (result.sequences[k].bad) throw RuntimeFailure(fmt::format("step {}: the logits of row {} hold a NaN", plan.step, k));
  }
  return seconds;
}

DecodeResult measure(Executor& executor, int64_t batch, int64_t context, int steps, double bandwidth) {
  constexpr int kWarmUp = 5, kRounds = 5;  // rounds: what is subtracted from each other is measured side by side
  const RankSetup& s = executor.setup();
  StepPlan plan = decode_plan(s, batch, context, steps + kRounds + kWarmUp);
  const int64_t blocks = batch * static_cast<int64_t>(plan.sequences[0].blocks.size());
  if (blocks > executor.n_blocks()) {
    throw Error("{} sequences of {} tokens need {} KV blocks, {} fit", batch, context, blocks, executor.n_blocks());
  }
  const std::vector<SamplingRow> sampling(static_cast<size_t>(batch));
  std::vector<double> times, prepare, launch, device, idle;
  DecodeResult r;
  int64_t replays = 0;
  const int per_round = (steps + kRounds - 1) / kRounds;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> of_round;
    for (int i = round > 0 ? 0 : -kWarmUp; i < per_round; ++i) {
      const RankCounters before = executor.counters()[0];
      const double seconds = one_step(executor, plan, sampling, r);
      const RankCounters now = executor.counters()[0];
      if (i < 0) continue;
      of_round.push_back(seconds);
      prepare.push_back(now.prepare_seconds - before.prepare_seconds);
      launch.push_back(now.launch_seconds - before.launch_seconds);
      replays += now.replays - before.replays;
    }
    device.push_back(device_time(executor, plan, per_round, {}));
    idle.push_back(quantile(of_round, 0.5) - device_time(executor, plan, per_round, sampling));
    times.insert(times.end(), of_round.begin(), of_round.end());
  }
  r.batch = batch;
  r.context = context;
  r.p10 = quantile(times, 0.1);
  r.median = quantile(times, 0.5);
  r.p90 = quantile(times, 0.9);
  r.prepare = quantile(prepare, 0.5);
  r.launch = quantile(launch, 0.5);
  r.device = quantile(device, 0.5);
  r.idle = quantile(idle, 0.5);
  r.recorded = replays == per_round * kRounds;
  const SequenceShard shard{s.config.layout.dcp, s.context.options.interleave, s.config.block_size, 0};
  int64_t row_bytes = 0;
  executor.each_rank([&](Runner& runner) {
    if (runner.rank() == 0) row_bytes = runner.block_bytes() / s.config.block_size;
  });
  const double bytes = weight_bytes(s, executor.counters()[0], batch) + static_cast<double>(batch * shard.local_length(context) * row_bytes);
  if (bandwidth > 0) r.limit = bytes / bandwidth;
  return r;
}

Json device_json(const DeviceUse& d) {
  return {{"total", d.total}, {"before", d.before}, {"communicators", d.communicators}, {"weights", d.weights},
          {"workspace", d.workspace}, {"kv_cache", d.cache}, {"graphs", d.graphs}, {"free", d.free}};
}

Json to_json(Executor& executor, const std::vector<DecodeResult>& results, double bandwidth) {
  const RankSetup& s = executor.setup();
  const RankCounters c = executor.counters()[0];
  Json rows = Json::array(), phases = Json::object();
  for (const DecodeResult& r : results) {
    rows.push_back({{"batch", r.batch}, {"context", r.context}, {"step_ms", r.median * 1e3}, {"step_p10_ms", r.p10 * 1e3},
                    {"step_p90_ms", r.p90 * 1e3}, {"device_ms", r.device * 1e3}, {"limit_ms", r.limit * 1e3},
                    {"limit_over_device", r.limit / r.device}, {"prepare_us", r.prepare * 1e6}, {"launch_us", r.launch * 1e6},
                    {"outside_us", (r.median - r.device) * 1e6}, {"idle_us", r.idle * 1e6}, {"recorded", r.recorded}, {"tokens_hash", fmt::format("{:016x}", r.tokens)}});
  }
  for (const auto& [name, seconds] : executor.phases()) phases[name] = seconds;
  return {{"layout", layout_text(s)}, {"device", s.device}, {"copy_bandwidth", bandwidth}, {"kv_tokens", executor.n_blocks() * s.virtual_block()},
          {"weights_bytes", c.weights_bytes}, {"recorded_nodes", c.recorded_nodes}, {"start_seconds", std::move(phases)},
          {"device_memory", device_json(c.device)}, {"rows", std::move(rows)}};
}

void print_table(Executor& executor, const std::vector<DecodeResult>& results, double bandwidth) {
  const RankSetup& s = executor.setup();
  const RankCounters c = executor.counters()[0];
  double start = 0;
  std::string phases;
  for (const auto& [name, seconds] : executor.phases()) {
    start += seconds;
    phases += fmt::format(", {} {:.2f}", name, seconds);
  }
  fmt::print("{} on {}, {:.2f} GB of weights on a rank, {} KV tokens fit, copy {:.2f} TB/s\n", layout_text(s), s.device,
             static_cast<double>(c.weights_bytes) * 1e-9, executor.n_blocks() * s.virtual_block(), bandwidth * 1e-12);
  fmt::print("start {:.2f} s{}\n", start, phases);
  fmt::print("{:>6} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>8} {:>8} {:>8} {:>8} {:>6}\n", "batch", "context", "step ms", "p10", "p90", "device",
             "limit", "l/dev", "prep us", "laun us", "out us", "idle us", "graph");
  for (const DecodeResult& r : results) {
    fmt::print("{:>6} {:>8} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>7.2f} {:>8.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>6}\n", r.batch, r.context,
               r.median * 1e3, r.p10 * 1e3, r.p90 * 1e3, r.device * 1e3, r.limit * 1e3, r.limit / r.device, r.prepare * 1e6, r.launch * 1e6,
               (r.median - r.device) * 1e6, r.idle * 1e6, r.recorded ? "yes" : "no");
  }
}

}  // namespace

int run_bench_decode(const Arguments& arguments) {
  DecodeBenchOptions o;
  OptionTable table("benchmark");
  table.add("batch", &o.batches, "sequences of a step, a list");
  table.add("context", &o.contexts, "cached tokens of every sequence, a list");
  table.add("steps", &o.steps, "measured per batch and context").min = 1;
  table.add("json", &o.json, "print a JSON object");
  table.add("output-json", &o.result_file, "also write the JSON object to this file");
  add_engine_options(table, o.engine);
  std::vector<std::string> problems;
  if (parse_or_help("bench decode", "decode steps at any batch and context, without prompts", table, arguments, problems)) return kOk;
  default_to_dummy_weights(table, o.engine);
  const std::vector<int64_t> batches = numbers("batch", o.batches, problems), contexts = numbers("context", o.contexts, problems);
  if (!batches.empty()) o.engine.max_num_seqs = std::max(o.engine.max_num_seqs, static_cast<int>(*std::max_element(batches.begin(), batches.end())));
  const RankSetup setup = resolve(o.engine, problems);
  if (!problems.empty()) return refuse("bench decode", problems);

  Executor executor(setup, make_world({.size = setup.config.layout.world(), .stall_seconds = setup.config.stall_seconds, .gpus = setup.on_gpus()}));
  if (executor.world().n_processes() > 1) throw Error("bench decode runs in one process; its ranks are threads");
  executor.each_rank([](Runner& runner) { runner.fill_cache(); });
  const double bandwidth = copy_bandwidth(executor);
  std::vector<DecodeResult> results;
  for (int64_t context : contexts) {
    for (int64_t batch : batches) results.push_back(measure(executor, batch, context, o.steps, bandwidth));
  }
  const Json json = to_json(executor, results, bandwidth);
  write_result_file(o.result_file, json);
  if (o.json) {
    std::printf("%s\n", to_string(json, 1).c_str());
  } else {
    print_table(executor, results, bandwidth);
  }
  return kOk;
}

}  // namespace braid
