#include "ops/route.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace braid {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr size_t kMaxExperts = 1024;
using Marks = std::array<bool, kMaxExperts>;

// Marks the n largest of `values` among those with eligible[i]. A value equal to kNever is still taken when nothing
// better is left, so that exactly n are marked whatever the values are.
void mark_largest(Marks& chosen, std::span<const float> values, const Marks& eligible, int n) {
  for (int round = 0; round < n; ++round) {
    int best = -1;
    for (size_t i = 0; i < values.size(); ++i) {
      if (!eligible[i] || chosen[i]) continue;
      if (best < 0 || values[i] > values[static_cast<size_t>(best)]) best = static_cast<int>(i);
    }
    BRAID_CHECK(best >= 0, "{} of {} values wanted", n, values.size());
    chosen[static_cast<size_t>(best)] = true;
  }
}

}  // namespace

void choose_experts(std::span<int32_t> ids, float* weights, std::span<const float> scores, const float* bias,
                    const RouterSpec& spec) {
  const size_t n = scores.size();
  BRAID_CHECK(n <= kMaxExperts, "{} experts", n);
  std::array<float, kMaxExperts> rank;
  for (size_t i = 0; i < n; ++i) {
    const float v = bias ? scores[i] + bias[i] : scores[i];
    rank[i] = std::isnan(v) ? kNever : v;
  }
  Marks eligible, chosen{};
  eligible.fill(true);
  if (spec.group_score != GroupScore::kNone && spec.n_groups > 1) {
    const auto groups = static_cast<size_t>(spec.n_groups), size = n / groups;
    std::array<float, kMaxExperts> values;
    for (size_t g = 0; g < groups; ++g) values[g] = group_value(rank.data() + g * size, static_cast<int>(size), spec.group_score);
    Marks best{};
    mark_largest(best, {values.data(), groups}, eligible, spec.top_groups);
    for (size_t i = 0; i < n; ++i) eligible[i] = best[i / size];
  }
  mark_largest(chosen, {rank.data(), n}, eligible, static_cast<int>(ids.size()));

  size_t found = 0;
  float sum = 0.0f;
  for (size_t i = 0; i < n; ++i) {
    if (!chosen[i]) continue;
    ids[found] = static_cast<int32_t>(i);
    weights[found++] = scores[i];
    sum += scores[i];
  }
  for (size_t j = 0; j < found; ++j) {
    if (spec.renormalise) weights[j] /= sum + 1e-20f;
    weights[j] *= spec.scale;
  }
}

}  // namespace braid
