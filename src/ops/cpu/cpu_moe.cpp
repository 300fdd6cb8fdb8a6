// Routing and the mixture of experts: (row, expert) pairs are grouped by expert; a first pass computes the gated
// product of every pair, a second one, cut by columns and rows of the output, adds the experts' down products by
// ascending id. With slices of F every slice is such a sum of its own and the slices are added in a tree at the end.
// Few pairs have their down products kept apart and added afterwards, with the same bits: then an expert's weights are
// read from end to end instead of in pieces as long as a panel.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/route.h"

namespace braid {
namespace {

constexpr int64_t kPairChunk = 96;    // pairs of one task of the first pass
constexpr int64_t kTokenChunk = 256;  // tokens of one task of the second pass
constexpr int64_t kFewPairs = 64;
constexpr double kFlopsPerNanosecond = 60.0, kBytesPerNanosecond = 20.0;

const void* element(const Tensor& t, int64_t offset) {
  return static_cast<const char*>(t.data) + offset * size_of(t.dtype);
}
void* element(Tensor& t, int64_t offset) { return static_cast<char*>(t.data) + offset * size_of(t.dtype); }

// Pairs of this rank's experts, by expert and then by token.
struct Pairs {
  int32_t* start;  // [count + 1] first pair of every expert
  int32_t* token;  // [pairs]
  float* weight;   // [pairs]
  int64_t n;
};

void group_pairs(Pairs& pairs, const Tensor& ids, const Tensor& weights, const ExpertWeights& w) {
  std::fill(pairs.start, pairs.start + w.count + 1, 0);
  auto for_each = [&](const auto& f) {
    for (int64_t t = 0; t < ids.dim(0); ++t) {
      for (int64_t j = 0; j < ids.dim(1); ++j) {
        const int e = ids.row<int32_t>(t)[j] - w.first;
        if (0 <= e && e < w.count) f(t, j, e);
      }
    }
  };
  for_each([&](int64_t, int64_t, int e) { ++pairs.start[e + 1]; });
  for (int e = 0; e < w.count; ++e) pairs.start[e + 1] += pairs.start[e];
  pairs.n = pairs.start[w.count];
  // Filling moves start[e] to the expert's end, which is the next one's first pair; shifted back afterwards.
  for_each([&](int64_t t, int64_t j, int e) {
    const int32_t at = pairs.start[e]++;
    pairs.token[at] = static_cast<int32_t>(t);
    pairs.weight[at] = weights.row<float>(t)[j];
  });
  for (int e = w.count; e > 0; --e) pairs.start[e] = pairs.start[e - 1];
  pairs.start[0] = 0;
}

// Tasks (expert, panel, chunk of the expert's pairs) of the experts that have pairs, in this order.
class ExpertTasks {
 public:
  ExpertTasks(const int32_t* start, int n_experts, int64_t n_panels) : start_(start) {
    first_.reserve(static_cast<size_t>(n_experts) + 1);
    first_.push_back(0);
    for (int e = 0; e < n_experts; ++e) first_.push_back(first_.back() + chunks(e) * n_panels);
  }
  int64_t size() const { return first_.back(); }

  struct Task {
    int64_t expert, panel;
    int64_t begin, end;  // pairs
  };
  Task operator[](int64_t i) const {
    const int64_t e = std::upper_bound(first_.begin(), first_.end(), i) - first_.begin() - 1;
    const int64_t within = i - first_[static_cast<size_t>(e)], begin = start_[e] + within % chunks(e) * kPairChunk;
    return {e, within / chunks(e), begin, std::min<int64_t>(begin + kPairChunk, start_[e + 1])};
  }

 private:
  int64_t chunks(int64_t e) const { return (start_[e + 1] - start_[e] + kPairChunk - 1) / kPairChunk; }

  const int32_t* start_;
  std::vector<int64_t> first_;  // task of every expert
};

double guess_nanoseconds(int64_t pairs, int n_experts, int64_t elements, const WeightFormat& stored) {
  const auto weights = static_cast<double>(elements);
  return std::max(
      2.0 * weights * static_cast<double>(pairs) / kFlopsPerNanosecond,
      weights * static_cast<double>(std::min<int64_t>(pairs, n_experts)) * stored.bytes() / kBytesPerNanosecond);
}

}  // namespace

void CpuBackend::route(Tensor ids, Tensor weights, Tensor logits, Tensor bias, const RouterSpec& spec) {
  const int64_t e = logits.dim(1);
  const ScratchScope temporary(*this);
  const Tensor scores = scratch(DType::kF32, {workers_.size(), e});
  for_rows(logits.dim(0), 4.0 * static_cast<double>(e), [&](int64_t t, int worker) {
    float* s = scores.row<float>(worker);
    (spec.score == RouterScore::kSoftmax ? kernels_.softmax : kernels_.sigmoid)(s, logits.row<float>(t), e);
    choose_experts({ids.row<int32_t>(t), static_cast<size_t>(spec.top_k)}, weights.row<float>(t),
                   {s, static_cast<size_t>(e)}, bias ? bias.as<float>() : nullptr, spec);
  });
}

void CpuBackend::moe(Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights& w) {
  BRAID_CHECK(x.dim(1) == w.hidden && y.dim(1) == w.hidden && x.dim(0) == y.dim(0) && y.dtype == DType::kF32);
  const int64_t n_tokens = x.dim(0), most = ids.n_elements();
  if (n_tokens == 0) return;
  const ScratchScope temporary(*this);
  Pairs pairs{scratch(DType::kI32, {w.count + 1}).as<int32_t>(), scratch(DType::kI32, {most}).as<int32_t>(),
              scratch(DType::kF32, {most}).as<float>(), 0};
  group_pairs(pairs, ids, weights, w);
  const Tensor gated = scratch(x.dtype, {pairs.n, w.ffn});

  {
    const PanelLayout l = gate_up_layout(w);
    const Tensor rows = readable(x, w.stored);
    const auto product = products(rows.dtype, w.stored).gated;
    const double nanoseconds = guess_nanoseconds(pairs.n, w.count, l.n * l.k, w.stored);
    const ExpertTasks tasks(pairs.start, w.count, l.n_panels());
    workers_.run(tasks.size(), nanoseconds, [&](int64_t task, int) {
      const auto [e, p, begin, end] = tasks[task];
      const int64_t column = p * l.panel / 2;
      const void* in[kPairChunk];
      void* out[kPairChunk];
      for (int64_t i = begin; i < end; ++i) {
        in[i - begin] = element(rows, pairs.token[i] * rows.stride[0]);
        out[i - begin] = static_cast<char*>(gated.data) + (i * w.ffn + column) * size_of(gated.dtype);
      }
      ProductArgs a;
      a.x = in;
      a.y = out;
      a.y_type = gated.dtype;
      a.rows = static_cast<int>(end - begin);
      a.k = w.hidden;
      set_codes(a, w.stored);
      a.panel = element(w.gate_up, e * l.size() + l.offset(p));
      a.width = l.width(p);
      a.columns = static_cast<int>(std::min<int64_t>(l.width(p) / 2, w.ffn - column));
      product(a);
    });
  }
  const auto add = w.k_slices == 1 && pairs.n <= kFewPairs ? &CpuBackend::add_few_pairs : &CpuBackend::add_experts;
  (this->*add)(y, readable(gated, w.stored), pairs.start, pairs.token, pairs.weight, w);
}

void CpuBackend::add_few_pairs(Tensor y, Tensor gated, const int32_t* start, const int32_t* token, const float* weight,
                               const ExpertWeights& w) {
  const PanelLayout l = down_layout(w);
  const auto product = products(gated.dtype, w.stored).store;
  const int64_t n_pairs = start[w.count];
  const Tensor down = scratch(DType::kF32, {n_pairs, w.hidden});
  const ExpertTasks tasks(start, w.count, l.n_panels());
  workers_.run(tasks.size(), guess_nanoseconds(n_pairs, w.count, l.n * l.k, w.stored), [&](int64_t task, int) {
    const auto [e, p, begin, end] = tasks[task];
    const void* in[kPairChunk];
    void* out[kPairChunk];
    for (int64_t i = begin; i < end; ++i) {
      in[i - begin] = element(gated, i * gated.stride[0]);
      out[i - begin] = down.row<float>(i) + p * l.panel;
    }
    ProductArgs a;
    a.x = in;
    a.y = out;
    a.rows = static_cast<int>(end - begin);
    a.k = w.ffn;
    set_codes(a, w.stored);
    a.panel = element(w.down, e * l.size() + l.offset(p));
    a.width = l.width(p);
    a.columns = l.columns(p);
    product(a);
  });
  for (int64_t t = 0; t < y.dim(0); ++t) std::memset(y.row<float>(t), 0, static_cast<size_t>(w.hidden) * sizeof(float));
  for (int64_t i = 0; i < n_pairs; ++i)
    kernels_.add_scaled(y.row<float>(token[i]), down.row<float>(i), weight[i], w.hidden);
}

void CpuBackend::add_experts(Tensor y, Tensor gated, const int32_t* start, const int32_t* token, const float* weight,
                             const ExpertWeights& w) {
  const PanelLayout l = down_layout(w);
  const auto accumulate = products(gated.dtype, w.stored).accumulate;
  const int64_t n_tokens = y.dim(0), chunks = (n_tokens + kTokenChunk - 1) / kTokenChunk;
  const int64_t chunk = (n_tokens + chunks - 1) / chunks;
  const Tensor sums = scratch(DType::kF32, {workers_.size(), w.k_slices, chunk, l.panel});
  const double nanoseconds = guess_nanoseconds(start[w.count], w.count, l.n * l.k, w.stored);
  workers_.run(l.n_panels() * chunks, nanoseconds, [&](int64_t task, int worker) {
    const int64_t p = task / chunks, first = task % chunks * chunk, last = std::min(first + chunk, n_tokens);
    float* const slices = sums.row<float>(worker);  // [k_slices][chunk][panel]
    std::memset(slices, 0, static_cast<size_t>(w.k_slices * chunk * l.panel) * sizeof(float));
    const void* in[kTokenChunk];
    void* out[kTokenChunk];
    ProductArgs a;
    a.x = in;
    a.y = out;
    a.k = l.slice_k();
    set_codes(a, w.stored);
    a.width = l.width(p);
    a.columns = l.columns(p);
    for (int s = 0; s < w.k_slices; ++s) {
      for (int64_t e = 0; e < w.count; ++e) {
        const int64_t begin = std::lower_bound(token + start[e], token + start[e + 1], first) - token;
        const int64_t end = std::lower_bound(token + begin, token + start[e + 1], last) - token;
        if (begin == end) continue;
        for (int64_t i = begin; i < end; ++i) {
          in[i - begin] = element(gated, i * gated.stride[0] + s * l.slice_k());
          out[i - begin] = slices + (s * chunk + token[i] - first) * l.panel;
        }
        a.rows = static_cast<int>(end - begin);
        a.panel = element(w.down, e * l.size() + l.offset(p) + s * l.stored_slice_k() * l.width(p));
        a.row_weight = weight + begin;
        accumulate(a);
      }
    }
    const int64_t slice = chunk * l.panel;
    for (int step = 1; step < w.k_slices; step *= 2) {
      for (int s = 0; s + step < w.k_slices; s += 2 * step) {
        kernels_.add(slices + s * slice, slices + (s + step) * slice, slice);
      }
    }
    for (int64_t t = first; t < last; ++t) {
      std::memcpy(y.row<float>(t) + p * l.panel, slices + (t - first) * l.panel,
                  static_cast<size_t>(l.columns(p)) * sizeof(float));
    }
  });
}

}  // namespace braid
