#include "runtime/context_measure.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "parallel/placement.h"

namespace braid {
namespace {

constexpr int kWarmUps = 20, kRounds = 60;
constexpr int64_t kWeightRows = 4096, kWeightColumns = 2048;  // more than a core's caches hold

template <typename F>
double median_microseconds(Backend& backend, const F& work) {
  std::vector<double> times;
  for (int i = 0; i < kWarmUps + kRounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    backend.sync();
    if (i >= kWarmUps) times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

double weight_bytes_per_microsecond(Backend& backend, DType compute) {
  std::vector<std::byte> host(static_cast<size_t>(kWeightRows * kWeightColumns * size_of(compute)));
  const LinearWeight w = backend.pack_linear(Tensor(host.data(), compute, {kWeightRows, kWeightColumns}), {});
  const Tensor x = backend.alloc(MemoryKind::kWorkspace, compute, {1, kWeightColumns});
  const Tensor y = backend.alloc(MemoryKind::kWorkspace, compute, {1, kWeightRows});
  backend.fill_zero(x);
  return static_cast<double>(host.size()) / median_microseconds(backend, [&] { backend.linear(y, x, w); });
}

}  // namespace

ContextCosts measure_context(const RankSetup& s, int rank, World& world, Backend& backend) {
  const Parallel parallel(s.config.layout, rank, world, s.config.reproducible, s.context.options);
  Comm& dcp = parallel.dcp();
  const int64_t ranks = dcp.size();
  backend.begin_step();
  auto zeros = [&](int64_t bytes) {
    const Tensor t = backend.alloc(MemoryKind::kWorkspace, DType::kU8, {bytes});
    backend.fill_zero(t);
    return t;
  };
  auto exchange = [&](int64_t bytes) {
    const Tensor out = zeros(ranks * bytes).view({ranks, bytes}), in = zeros(ranks * bytes).view({ranks, bytes});
    return median_microseconds(backend, [&] { dcp.all_to_all(out, in, "dcp_measure"); });
  };
  const ContextMessages messages = messages_of(s.config, s.model, s.compute);
  const Tensor own = zeros(messages.query), all = zeros(ranks * messages.query).view({ranks, messages.query});
  ContextCosts c;
  c.measured = true;
  c.gather = median_microseconds(backend, [&] { dcp.all_gather(all, own, "dcp_measure"); });
  c.exchange = exchange(messages.result);
  c.exchange_projected = exchange(messages.projected);
  c.weight_bytes_per_microsecond = weight_bytes_per_microsecond(backend, s.compute);

  // Every rank must decide alike.
  constexpr int64_t kFigures = 4;
  double mine[kFigures] = {c.gather, c.exchange, c.exchange_projected, -c.weight_bytes_per_microsecond};
  std::vector<double> everyone(static_cast<size_t>(parallel.tp().size() * kFigures));
  const int64_t bytes = kFigures * static_cast<int64_t>(sizeof(double));
  const Tensor sent = zeros(bytes), received = zeros(parallel.tp().size() * bytes).view({parallel.tp().size(), bytes});
  backend.upload(sent, mine);
  parallel.tp().all_gather(received, sent, "dcp_measure");
  backend.download(everyone.data(), received);
  for (size_t i = 0; i < everyone.size(); ++i) mine[i % kFigures] = std::max(mine[i % kFigures], everyone[i]);
  return {true, mine[0], mine[1], mine[2], -mine[3]};
}

}  // namespace braid
