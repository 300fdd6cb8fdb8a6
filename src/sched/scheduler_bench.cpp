// What the scheduler costs the host: microseconds and allocations per step while many sequences decode, and the prefix
// look-up of a long prompt whose blocks are all cached. One line each: figure, limit, ratio.
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <numeric>
#include <vector>

#include "sched/scheduler.h"

namespace {
std::atomic<int64_t> n_allocations{0};
}

void* operator new(std::size_t n) {
  n_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;
double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}
double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
  return v[v.size() / 2];
}

void report(const std::string& what, double figure, const char* unit, double limit) {
  fmt::print("{:<58} {:>9.2f} {:<6} limit {:>7.1f}  ratio {:.2f}\n", what, figure, unit, limit, figure / limit);
}

void answer(const StepPlan& plan, StepResult& result) {
  result.sequences.resize(plan.sequences.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    result.sequences[i].token.token = static_cast<int32_t>(plan.step + static_cast<int64_t>(i)) % 50000;
  }
}

void bench_decode(int n_running, int64_t prompt_tokens, double limit) {
  constexpr int kSteps = 400;
  SchedulerConfig config;
  config.block_tokens = 64;
  config.n_blocks = n_running * (prompt_tokens / 64 + 16);
  config.max_num_seqs = n_running;
  config.max_num_batched_tokens = std::max(n_running, 1 << 20);
  config.max_model_len = 1 << 20;
  config.hash_seed = 1;
  Scheduler scheduler(config);
  for (int i = 0; i < n_running; ++i) {
    Request request;
    request.id = RequestId(i + 1);
    request.prompt.resize(static_cast<size_t>(prompt_tokens));
    for (size_t k = 0; k < request.prompt.size(); ++k) {
      request.prompt[k] = static_cast<int32_t>((k * 2654435761u + static_cast<size_t>(i) * 40503u) % 50000);
    }
    scheduler.add(std::move(request));
  }
  StepResult result;
  std::vector<double> plan_us, commit_us, total_us, wire_us;
  std::vector<int64_t> allocations;
  int64_t n_bytes = 0;
  for (auto* v : {&plan_us, &commit_us, &total_us, &wire_us}) v->reserve(kSteps);
  allocations.reserve(kSteps);
  while (static_cast<int>(total_us.size()) < kSteps) {
    const auto start = Clock::now();
    const int64_t before = n_allocations;
    const StepPlan& plan = scheduler.plan();
    const double planned = us_since(start);
    const int64_t by_plan = n_allocations - before;
    const bool steady = plan.n_tokens() == n_running;
    const auto packing = Clock::now();
    n_bytes = static_cast<int64_t>(serialize(plan).size());
    const double packed = us_since(packing);
    answer(plan, result);
    const auto resume = Clock::now();
    const int64_t between = n_allocations;
    const size_t n_deltas = scheduler.commit(plan, std::move(result)).size();
    const double committed = us_since(resume);
    if (!steady || n_deltas == 0) continue;
    plan_us.push_back(planned);
    commit_us.push_back(committed);
    total_us.push_back(planned + committed);
    wire_us.push_back(packed);
    allocations.push_back(by_plan + n_allocations - between);
  }
  const std::string what = fmt::format("{} sequences of {} tokens", n_running, prompt_tokens);
  report(what + ": a step", median(total_us), "us", limit);
  fmt::print("    plan {:.2f} us, commit {:.2f} us, best {:.2f} us; {} allocations in {} steps, median {}\n",
             median(plan_us), median(commit_us), *std::min_element(total_us.begin(), total_us.end()),
             std::accumulate(allocations.begin(), allocations.end(), int64_t{0}), kSteps,
             median(std::vector<double>(allocations.begin(), allocations.end())));
  fmt::print("    wire form (only for ranks in other processes): {} bytes, {:.2f} us\n", n_bytes, median(wire_us));
}

void bench_lookup(int64_t n_tokens, double limit) {
  BlockCache cache(n_tokens / 64 + 16, 64, true, 1);
  std::vector<int32_t> tokens(static_cast<size_t>(n_tokens) + 1);
  for (size_t k = 0; k < tokens.size(); ++k) tokens[k] = static_cast<int32_t>(k * 2654435761u % 50000);
  BlockCache::Match match;
  std::vector<BlockId> table;
  PublishedChain published;
  cache.allocate(match, n_tokens, table, published);
  cache.publish(std::span(tokens).first(static_cast<size_t>(n_tokens)), table, published);
  cache.release(table);
  std::vector<double> us;
  for (int i = 0; i < 300; ++i) {
    const auto start = Clock::now();
    cache.match(tokens, match);
    us.push_back(us_since(start));
  }
  report(fmt::format("look-up of a prompt of {} tokens, {} hits", n_tokens, match.blocks.size()), median(us), "us",
         limit);
}

}  // namespace
}  // namespace braid

int main() {
  braid::bench_decode(1, 8192, 1);
  braid::bench_decode(10, 8192, 2);
  braid::bench_decode(100, 8192, 10);
  braid::bench_decode(1000, 8192, 100);
  braid::bench_decode(10000, 512, 1500);
  braid::bench_lookup(128 * 1024, 150);
}
