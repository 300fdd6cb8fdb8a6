#include "ops/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "base/error.h"

namespace braid {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Candidate {
  int32_t id;
  float logit;
};
// Best first; equal logits by ascending id, so that the order is total.
bool better(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

// Index of the largest, the lowest on ties; -1 where a NaN makes the question meaningless or everything is -infinity.
int32_t arg_max(std::span<const float> logits) {
  int32_t best = -1;
  float value = kMinusInfinity;
  bool nan = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    nan |= std::isnan(logits[i]);
    if (logits[i] > value) {
      value = logits[i];
      best = static_cast<int32_t>(i);
    }
  }
  return nan ? -1 : best;
}

double log_sum_exp(std::span<const float> logits, float max) {
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(x - max);
  return static_cast<double>(max) + std::log(sum);
}

std::vector<std::pair<int32_t, float>> best_logprobs(std::span<const float> logits, int n, double lse) {
  std::vector<Candidate> all(logits.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = {static_cast<int32_t>(i), logits[i]};
  const auto count = std::min(static_cast<size_t>(n), all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end(), better);
  std::vector<std::pair<int32_t, float>> top;
  for (size_t i = 0; i < count; ++i) top.emplace_back(all[i].id, static_cast<float>(all[i].logit - lse));
  return top;
}

void apply_penalties(std::span<float> logits, const SamplingRow& row) {
  const bool additive = row.presence_penalty != 0.0f || row.frequency_penalty != 0.0f;
  if (row.repetition_penalty == 1.0f && !additive) return;
  std::unordered_map<int32_t, int> generated;  // token -> times generated; 0: in the prompt only
  for (const int32_t id : row.prompt) generated.try_emplace(id, 0);
  for (const int32_t id : row.generated) ++generated[id];
  for (const auto& [id, count] : generated) {
    if (id < 0 || static_cast<size_t>(id) >= logits.size()) continue;
    float& x = logits[static_cast<size_t>(id)];
    if (row.repetition_penalty != 1.0f) x = x > 0.0f ? x / row.repetition_penalty : x * row.repetition_penalty;
    if (count > 0) x -= row.frequency_penalty * static_cast<float>(count) + row.presence_penalty;
  }
}

void apply_masks_and_bias(std::span<float> logits, const SamplingRow& row) {
  if (!row.allowed.empty()) {
    BRAID_CHECK(row.allowed.size() * 32 >= logits.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!(row.allowed[i / 32] >> (i % 32) & 1u)) logits[i] = kMinusInfinity;
    }
  }
  for (const int32_t id : row.banned) {
    if (id >= 0 && static_cast<size_t>(id) < logits.size()) logits[static_cast<size_t>(id)] = kMinusInfinity;
  }
  for (const auto& [id, bias] : row.logit_bias) {
    if (id >= 0 && static_cast<size_t>(id) < logits.size()) logits[static_cast<size_t>(id)] += bias;
  }
}

// Keeps the best candidates whose probability reaches top_p, at least one. Orders only as far as it must: vocabularies
// are large and the answer is mostly short.
void keep_top_p(std::vector<Candidate>& all, float max, float temperature, double top_p) {
  double total = 0.0;
  for (const Candidate& c : all) total += std::exp((c.logit - max) / temperature);
  double sum = 0.0;
  size_t kept = 0;
  for (size_t ordered = 0; kept < all.size();) {
    const size_t end = std::min(all.size(), std::max<size_t>(64, ordered * 4));
    std::partial_sort(all.begin() + static_cast<std::ptrdiff_t>(ordered),
                      all.begin() + static_cast<std::ptrdiff_t>(end), all.end(), better);
    ordered = end;
    while (kept < ordered) {
      sum += std::exp((all[kept++].logit - max) / temperature);
      if (sum >= top_p * total) {
        all.resize(kept);
        return;
      }
    }
  }
}

bool changes_logits(const SamplingRow& r) {
  return !r.allowed.empty() || !r.banned.empty() || !r.logit_bias.empty() || r.repetition_penalty != 1.0f ||
         r.presence_penalty != 0.0f || r.frequency_penalty != 0.0f;
}

int32_t draw(std::span<const float> logits, float max, const SamplingRow& row) {
  std::vector<Candidate> kept;
  kept.reserve(logits.size());
  // p >= min_p * p_max, written with logits.
  const float floor = row.min_p > 0.0f ? max + row.temperature * std::log(row.min_p) : kMinusInfinity;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > kMinusInfinity && logits[i] >= floor) kept.push_back({static_cast<int32_t>(i), logits[i]});
  }
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < kept.size()) {
    std::nth_element(kept.begin(), kept.begin() + (row.top_k - 1), kept.end(), better);
    kept.resize(static_cast<size_t>(row.top_k));
  }
  if (row.top_p < 1.0f) keep_top_p(kept, max, row.temperature, row.top_p);
  std::sort(kept.begin(), kept.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double total = 0.0;
  for (const Candidate& c : kept) total += std::exp((c.logit - max) / row.temperature);
  const double target = uniform_draw(row.seed, row.position) * total;
  double sum = 0.0;
  for (const Candidate& c : kept) {
    sum += std::exp((c.logit - max) / row.temperature);
    if (sum > target) return c.id;
  }
  return kept.back().id;
}

}  // namespace

double uniform_draw(uint64_t seed, int64_t position) {
  std::array<uint32_t, 4> c{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0u, 0u};
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0], b = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return static_cast<double>((uint64_t{c[0]} << 32 | c[1]) >> 11) * 0x1.0p-53;
}

LogitSummary summarise(std::span<const float> logits) {
  const int32_t best = arg_max(logits);
  return {best, best < 0 ? 0.0 : log_sum_exp(logits, logits[static_cast<size_t>(best)])};
}

SampleResult sample_row(std::span<float> logits, const SamplingRow& row) {
  return sample_row(logits, row, summarise(logits));
}

SampleResult sample_row(std::span<float> logits, const SamplingRow& row, const LogitSummary& summary) {
  SampleResult result;
  if (summary.best < 0 || std::isinf(logits[static_cast<size_t>(summary.best)])) {
    result.bad = true;
    return result;
  }
  const double lse = summary.log_sum_exp;
  if (row.n_top_logprobs > 0) result.top = best_logprobs(logits, row.n_top_logprobs, lse);

  std::vector<float> unmodified;
  int32_t allowed_best = summary.best;
  if (changes_logits(row)) {
    unmodified.assign(logits.begin(), logits.end());
    apply_masks_and_bias(logits, row);
    apply_penalties(logits, row);
    allowed_best = arg_max(logits);
  }
  if (allowed_best < 0) {
    result.bad = true;
    return result;
  }
  result.token = row.temperature > 0.0f ? draw(logits, logits[static_cast<size_t>(allowed_best)], row) : allowed_best;
  const std::span<const float> original = unmodified.empty() ? std::span<const float>(logits) : unmodified;
  result.logprob = static_cast<float>(original[static_cast<size_t>(result.token)] - lse);
  return result;
}

}  // namespace braid
