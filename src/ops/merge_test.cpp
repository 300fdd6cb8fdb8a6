// The two merges of a context-parallel group against one softmax over all rows: any partition of the rows over ranks, not
// only round robin, empty ranks included.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "ops/backend.h"

namespace braid {
namespace {

constexpr int kDv = 5;

struct Rows {
  std::vector<double> score;                // natural log
  std::vector<std::array<double, kDv>> value;
  std::vector<int> rank;
};

Rows random_rows(int ranks) {
  Rows r;
  const int n = *rc::gen::inRange(0, 40);
  for (int i = 0; i < n; ++i) {
    r.score.push_back(*rc::gen::inRange(-4000, 4000) / 100.0);
    std::array<double, kDv> v;
    for (double& x : v) x = *rc::gen::inRange(-1000, 1000) / 500.0;
    r.value.push_back(v);
    r.rank.push_back(*rc::gen::inRange(0, ranks));
  }
  return r;
}

// Σ exp(score - base) and Σ exp(score - base) v over the rows of `rank` (-1: all), base the largest score.
struct Sums {
  double base = -std::numeric_limits<double>::infinity(), weight = 0.0;
  std::array<double, kDv> value{};
};

Sums sums_of(const Rows& r, int rank) {
  Sums s;
  for (size_t i = 0; i < r.score.size(); ++i) {
    if (rank < 0 || r.rank[i] == rank) s.base = std::max(s.base, r.score[i]);
  }
  for (size_t i = 0; i < r.score.size(); ++i) {
    if (rank >= 0 && r.rank[i] != rank) continue;
    const double p = std::exp(r.score[i] - s.base);
    s.weight += p;
    for (size_t d = 0; d < kDv; ++d) s.value[d] += p * r.value[i][d];
  }
  return s;
}

void check_equal(const std::vector<float>& got, const Sums& whole) {
  for (size_t d = 0; d < kDv; ++d) {
    const double wanted = whole.weight == 0.0 ? 0.0 : whole.value[d] / whole.weight;
    RC_ASSERT(std::fabs(got[d] - wanted) < 1e-5);
  }
}

void check_merges(Backend& backend) {
  const int ranks = *rc::gen::inRange(1, 9);
  const Rows rows = random_rows(ranks);
  std::vector<float> values, lses, sums, weights, ks, y(kDv, NAN);
  for (int w = 0; w < ranks; ++w) {
    const Sums s = sums_of(rows, w);
    const bool empty = s.weight == 0.0;
    lses.push_back(empty ? -INFINITY : static_cast<float>(s.base + std::log(s.weight)));
    const double k = empty ? -INFINITY : std::ceil(s.base / std::log(2.0));
    const double to_k = empty ? 0.0 : std::exp(s.base - k * std::log(2.0));
    ks.push_back(static_cast<float>(k));
    weights.push_back(static_cast<float>(s.weight * to_k));
    for (const double v : s.value) {
      values.push_back(empty ? NAN : static_cast<float>(v / s.weight));
      sums.push_back(static_cast<float>(v * to_k));
    }
  }
  backend.begin_step();
  const Tensor out(y.data(), DType::kF32, {1, 1, kDv});
  const Tensor lse(lses.data(), DType::kF32, {ranks, 1, 1});
  const Sums whole = sums_of(rows, -1);
  backend.merge_results(out, {}, Tensor(values.data(), DType::kF32, {ranks, 1, 1, kDv}), lse, 0);
  check_equal(y, whole);

  std::vector<float> total(kDv, 0.0f);  // the terms one by one, as they travel through a reduce-scatter
  for (int w = 0; w < ranks; ++w) {
    backend.merge_results(out, {}, Tensor(values.data() + w * kDv, DType::kF32, {1, 1, 1, kDv}), lse, w);
    for (size_t d = 0; d < kDv; ++d) total[d] += y[d];
  }
  check_equal(total, whole);

  backend.merge_partials(out, {}, Tensor(sums.data(), DType::kF32, {ranks, 1, 1, kDv}), Tensor(weights.data(), DType::kF32, {ranks, 1, 1}),
                         Tensor(ks.data(), DType::kF32, {ranks, 1, 1}), 1.0f);
  check_equal(y, whole);
}

RC_GTEST_PROP(Merge, EqualsOneSoftmaxOnCpu, ()) {
  static const auto backend = make_cpu_backend({});
  check_merges(*backend);
}

RC_GTEST_PROP(Merge, EqualsOneSoftmaxOnReference, ()) {
  static const auto backend = make_reference_backend();
  check_merges(*backend);
}

}  // namespace
}  // namespace braid
