// Decode context parallelism against tensor parallelism on two one-thread ranks, one token behind a long context, dummy
// weights: attention alone (from queries to merged results of one layer), its exchange, and whole steps.
//
//   context_bench CONFIG [ROUNDS]     a config.json of a latent-attention model
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "model/layers/context_exchange.h"
#include "runtime/executor.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRanks = 2;

struct Spread {
  double median = 0, best = 0;
};

Spread spread_of(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return {x[x.size() / 2], x[0]};
}

double microseconds_since(Clock::time_point start) { return std::chrono::duration<double, std::micro>(Clock::now() - start).count(); }

RankSetup setup_of(const std::string& model, int heads, int dcp, int64_t tokens) {
  EngineConfig c;
  c.model = model;
  c.device = "cpu";
  c.load_format = "dummy";
  c.hf_overrides = fmt::format("{{\"num_attention_heads\": {0}, \"num_key_value_heads\": {0}, \"max_position_embeddings\": {1}}}", heads, tokens + 64);
  c.layout.tp = kRanks;
  c.layout.dcp = dcp;
  c.threads = 1;
  c.block_size = 64;
  c.num_kv_blocks = (tokens + 64) / 64 + 1;
  return resolve_or_throw(c);
}

// One decode token behind `tokens`, whose rows are whatever fresh memory holds: zeros.
StepPlan decode_step(int64_t tokens, int64_t virtual_block) {
  PlannedSequence s;
  s.id = RequestId(1);
  s.start = TokenPos(tokens - 1);
  s.tokens = {1};
  for (int64_t c = 0; c < (tokens + virtual_block - 1) / virtual_block; ++c) s.blocks.push_back(BlockId(c));
  s.sample = true;
  StepPlan plan;
  plan.sequences.push_back(s);
  return plan;
}

Spread time_step(const std::string& model, int heads, int dcp, int64_t tokens, int rounds) {
  const RankSetup setup = setup_of(model, heads, dcp, tokens);
  Executor executor(setup, make_world({.size = kRanks, .stall_seconds = 60}));
  StepPlan plan = decode_step(tokens, setup.virtual_block());
  const SamplingRow row;
  std::vector<double> times;
  for (int i = -3; i < rounds; ++i) {
    ++plan.step;
    const auto start = Clock::now();
    executor.run(plan, {&row, 1});
    if (i >= 0) times.push_back(microseconds_since(start));
  }
  return spread_of(times);
}

struct AttentionTimes {
  Spread local, whole;  // over own rows; with the projection and the merge
};

// One layer's attention on every rank, the slowest rank's time.
AttentionTimes time_attention(const std::string& model, int heads, int dcp, int64_t tokens, int rounds) {
  const RankSetup setup = setup_of(model, heads, dcp, tokens);
  const auto world = make_world({.size = kRanks, .stall_seconds = 60});
  std::vector<double> local, whole;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto backend = make_backend(setup, rank);
      const Parallel parallel(setup.config.layout, rank, *world, false, setup.context.options);
      const auto& m = *setup.model.mla;
      const ContextExchange exchange(*backend, parallel, {.scale = 0.1f});
      const int64_t own = heads / kRanks, all = own * dcp, lanes = m.kv_lora_rank + m.qk_rope;
      const SequenceShard shard{dcp, 1, setup.config.block_size, parallel.where().dcp};
      RankStep step;
      lower(decode_step(tokens, setup.virtual_block()), shard, step);
      const BatchMeta batch = batch_of(step, shard, Tensor(step.ints.data(), DType::kI32, {static_cast<int64_t>(step.ints.size())}));
      KvCache cache;
      cache.k = backend->alloc(MemoryKind::kCache, setup.kv_dtype, {setup.config.num_kv_blocks * setup.config.block_size, 1, lanes});
      cache.v = cache.k.columns(0, m.kv_lora_rank);
      const Tensor q = backend->alloc(MemoryKind::kWorkspace, setup.compute, {1, all, lanes});
      const Tensor lse = backend->alloc(MemoryKind::kWorkspace, DType::kF32, {1, all});
      const Tensor latent = backend->alloc(MemoryKind::kWorkspace, setup.compute, {1, all, m.kv_lora_rank});
      const Tensor o = backend->alloc(MemoryKind::kWorkspace, setup.compute, {1, own, m.v_head});
      std::vector<std::byte> zeros(static_cast<size_t>(all * m.v_head * m.kv_lora_rank * size_of(setup.compute)));
      const HeadWeight up = backend->pack_heads(Tensor(zeros.data(), setup.compute, {all, m.v_head, m.kv_lora_rank}), false);
      backend->fill_zero(q);
      backend->fill_zero(cache.k);
      for (int i = -5; i < rounds; ++i) {
        auto timed = [&](const auto& work, std::vector<double>& times) {
          backend->begin_step();
          parallel.tp().barrier("start");
          const auto start = Clock::now();
          work();
          parallel.tp().barrier("end");
          if (i >= 0 && rank == 0) times.push_back(microseconds_since(start));
        };
        timed([&] { backend->attention(latent, lse, q, cache, {.scale = 0.1f}, batch); }, local);
        timed([&] {
          if (dcp > 1) return exchange.attend(o, q, cache, batch, m.kv_lora_rank, &up);
          backend->attention(latent, lse, q, cache, {.scale = 0.1f}, batch);
          backend->head_linear(o, latent, up);
        }, whole);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return {spread_of(local), spread_of(whole)};
}

void compare(const std::string& model, int heads, int64_t tokens, int rounds) {
  const AttentionTimes tp = time_attention(model, heads, 1, tokens, rounds), dcp = time_attention(model, heads, kRanks, tokens, rounds);
  const Spread tp_step = time_step(model, heads, 1, tokens, rounds), dcp_step = time_step(model, heads, kRanks, tokens, rounds);
  const int layers = setup_of(model, heads, 1, tokens).model.n_layers;
  const double merge = (dcp.whole.median - dcp.local.median) * layers;
  auto line = [&](const char* what, const Spread& a, const Spread& b) {
    fmt::print("{:>5} {:>6}  {:<24} {:>9.1f} {:>9.1f}  {:>9.1f} {:>9.1f}  {:>6.3f} {:>6.3f}\n", heads, tokens, what, a.median, a.best, b.median,
               b.best, b.median / a.median, b.best / a.best);
  };
  line("attention over own rows", tp.local, dcp.local);
  line("attention to own results", tp.whole, dcp.whole);
  line("step", tp_step, dcp_step);
  fmt::print("{:>5} {:>6}  projection and merge of {} layers: {:.1f} us, {:.1f} % of the step at dcp {}\n", heads, tokens, layers, merge,
             100.0 * merge / dcp_step.median, kRanks);
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "context_bench CONFIG [ROUNDS]\n");
    return 2;
  }
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 30;
  fmt::print("us on {} ranks of one thread, median and best of {} rounds: tp {}, dcp {}, ratios\n", braid::kRanks, rounds, braid::kRanks, braid::kRanks);
  for (const int heads : {4, 16}) {
    for (const int64_t tokens : {int64_t{8192}, int64_t{32768}}) braid::compare(argv[1], heads, tokens, rounds);
  }
}
