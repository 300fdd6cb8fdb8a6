#include "ops/reference/reference_backend.h"

#include <cmath>

#include "base/error.h"
#include "ops/element.h"
#include "ops/route.h"
#include "ops/transposed.h"

namespace braid {
namespace {

std::vector<double> read_row(const Tensor& t, int64_t offset, int64_t n) {
  std::vector<double> row(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) row[static_cast<size_t>(i)] = load_element(t, offset + i);
  return row;
}

void write_row(const Tensor& t, int64_t offset, const std::vector<double>& row) {
  for (size_t i = 0; i < row.size(); ++i)
    store_element(t, offset + static_cast<int64_t>(i), static_cast<float>(row[i]));
}

double dot(const std::vector<double>& x, const Tensor& w, int64_t offset) {
  double sum = 0.0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * load_element(w, offset + static_cast<int64_t>(i));
  return sum;
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

}  // namespace

void reference_norm(std::span<double> x, const float* w, float eps, DType t) {
  double sum = 0.0;
  for (const double v : x) sum += v * v;
  const double factor = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + static_cast<double>(eps));
  for (size_t i = 0; i < x.size(); ++i) {
    const float normed = round_to(t, static_cast<float>(x[i] * factor));
    x[i] = w ? round_to(t, normed * w[i]) : normed;
  }
}

Tensor ReferenceBackend::keep(Tensor host) {
  Tensor kept = host;
  kept.data = alloc(MemoryKind::kWeights, host.dtype, {host.n_elements()}).data;
  int64_t inner = 1;
  for (int i = host.rank - 1; i >= 0; inner *= host.dim(i--)) kept.stride[static_cast<size_t>(i)] = inner;
  copy(kept, host);
  return kept;
}

LinearWeight ReferenceBackend::pack_linear(Tensor w, Tensor bias, int k_slices) {
  BRAID_CHECK(w.rank == 2 && w.dim(1) % k_slices == 0, "K {} in {} slices", w.dim(1), k_slices);
  return {w.dim(0), w.dim(1), k_slices, w.dtype, keep(w), bias ? keep(bias) : Tensor{}};
}

LinearWeight ReferenceBackend::linear_rows(const LinearWeight& w, int64_t begin, int64_t end) const {
  return {end - begin, w.k, w.k_slices, w.stored, w.packed.rows(begin, end), w.bias ? w.bias.rows(begin, end) : Tensor{}};
}

HeadWeight ReferenceBackend::pack_heads(Tensor w, bool transposed) {
  if (transposed) return pack_heads(transposed_heads(w).tensor, false);
  return {w.dim(0), w.dim(1), w.dim(2), w.dtype, keep(w)};
}

ExpertWeights ReferenceBackend::make_experts(int first, int count, int64_t hidden, int64_t ffn, DType stored,
                                             int k_slices) {
  BRAID_CHECK(ffn % k_slices == 0, "F {} in {} slices", ffn, k_slices);
  return {first,
          count,
          hidden,
          ffn,
          k_slices,
          stored,
          alloc(MemoryKind::kWeights, stored, {count, 2 * ffn, hidden}),
          alloc(MemoryKind::kWeights, stored, {count, hidden, ffn})};
}

void ReferenceBackend::pack_expert(ExpertWeights& e, int expert, Tensor gate, Tensor up, Tensor down) {
  BRAID_CHECK(e.first <= expert && expert < e.first + e.count);
  const int64_t i = expert - e.first;
  const Tensor gate_up = e.gate_up.rows(i, i + 1).view({2 * e.ffn, e.hidden});
  copy(gate_up.rows(0, e.ffn), gate);
  copy(gate_up.rows(e.ffn, 2 * e.ffn), up);
  copy(e.down.rows(i, i + 1).view({e.hidden, e.ffn}), down);
}

void ReferenceBackend::embed(Tensor y, Tensor ids, Tensor table, int64_t first_row) {
  const int64_t h = y.dim(1);
  for (int64_t t = 0; t < y.dim(0); ++t) {
    const int64_t row = ids.as<int32_t>()[t] - first_row;
    const bool held = 0 <= row && row < table.dim(0);
    for (int64_t i = 0; i < h; ++i) {
      store_element(y, t * y.stride[0] + i, held ? load_element(table, row * table.stride[0] + i) : 0.0f);
    }
  }
}

void ReferenceBackend::linear(Tensor y, Tensor x, const LinearWeight& w) {
  BRAID_CHECK(x.dim(1) == w.k && y.dim(1) == w.n && x.dim(0) == y.dim(0));
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const std::vector<double> row = read_row(x, t * x.stride[0], w.k);
    for (int64_t n = 0; n < w.n; ++n) {
      const double bias = w.bias ? w.bias.as<float>()[n] : 0.0;
      store_element(y, t * y.stride[0] + n, static_cast<float>(dot(row, w.packed, n * w.k) + bias));
    }
  }
}

void ReferenceBackend::head_linear(Tensor y, Tensor x, const HeadWeight& w) {
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t h = 0; h < w.heads; ++h) {
      const std::vector<double> row = read_row(x, t * x.stride[0] + h * x.stride[1], w.k);
      for (int64_t n = 0; n < w.n; ++n) {
        store_element(y, t * y.stride[0] + h * y.stride[1] + n,
                      static_cast<float>(dot(row, w.packed, (h * w.n + n) * w.k)));
      }
    }
  }
}

void ReferenceBackend::rms_norm(Tensor y, Tensor x, Tensor w, float eps) {
  for (int64_t t = 0; t < x.dim(0); ++t) {
    std::vector<double> row = read_row(x, t * x.stride[0], x.dim(1));
    reference_norm(row, w.as<float>(), eps, y.dtype);
    write_row(y, t * y.stride[0], row);
  }
}

void ReferenceBackend::add_rms_norm(Tensor y, Tensor residual, Tensor add, Tensor w, float eps) {
  for (int64_t t = 0; t < residual.dim(0); ++t) {
    for (int64_t i = 0; i < residual.dim(1); ++i) {
      const int64_t at = t * residual.stride[0] + i;
      store_element(residual, at, load_element(residual, at) + load_element(add, t * add.stride[0] + i));
    }
  }
  rms_norm(y, residual, w, eps);
}

void ReferenceBackend::add(Tensor y, Tensor x) {
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t i = 0; i < x.dim(1); ++i) y.row<float>(t)[i] += x.row<float>(t)[i];
  }
}

void ReferenceBackend::silu_mul(Tensor y, Tensor gate_up) {
  const int64_t f = y.dim(1);
  for (int64_t t = 0; t < y.dim(0); ++t) {
    const std::vector<double> row = read_row(gate_up, t * gate_up.stride[0], 2 * f);
    for (int64_t i = 0; i < f; ++i) {
      const double product = silu(row[static_cast<size_t>(i)]) * row[static_cast<size_t>(f + i)];
      store_element(y, t * y.stride[0] + i, static_cast<float>(product));
    }
  }
}

void ReferenceBackend::gather_rows(Tensor y, Tensor x, Tensor rows) {
  for (int64_t r = 0; r < y.dim(0); ++r) {
    const int64_t from = rows.as<int32_t>()[r];
    write_row(y, r * y.stride[0], read_row(x, from * x.stride[0], x.dim(1)));
  }
}

void ReferenceBackend::route(Tensor ids, Tensor weights, Tensor logits, Tensor bias, const RouterSpec& spec) {
  const auto e = static_cast<size_t>(logits.dim(1));
  std::vector<float> scores(e);
  for (int64_t t = 0; t < logits.dim(0); ++t) {
    const float* z = logits.row<float>(t);
    double max = z[0], sum = 0.0;
    for (size_t i = 0; i < e; ++i) max = std::max<double>(max, z[i]);
    for (size_t i = 0; i < e; ++i) sum += std::exp(z[i] - max);
    for (size_t i = 0; i < e; ++i) {
      const double softmax = std::exp(z[i] - max) / sum, sigmoid = 1.0 / (1.0 + std::exp(-static_cast<double>(z[i])));
      scores[i] = static_cast<float>(spec.score == RouterScore::kSoftmax ? softmax : sigmoid);
    }
    choose_experts({ids.row<int32_t>(t), static_cast<size_t>(spec.top_k)}, weights.row<float>(t), scores,
                   bias ? bias.as<float>() : nullptr, spec);
  }
}

void ReferenceBackend::moe(Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights& w) {
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const std::vector<double> row = read_row(x, t * x.stride[0], w.hidden);
    std::vector<double> sum(static_cast<size_t>(w.hidden), 0.0), gated(static_cast<size_t>(w.ffn));
    for (int64_t j = 0; j < ids.dim(1); ++j) {
      const int64_t e = ids.row<int32_t>(t)[j] - w.first;
      if (e < 0 || e >= w.count) continue;
      for (int64_t f = 0; f < w.ffn; ++f) {
        const double gate = dot(row, w.gate_up, (e * 2 * w.ffn + f) * w.hidden);
        const double up = dot(row, w.gate_up, (e * 2 * w.ffn + w.ffn + f) * w.hidden);
        gated[static_cast<size_t>(f)] = round_to(x.dtype, static_cast<float>(silu(gate) * up));
      }
      for (int64_t h = 0; h < w.hidden; ++h) {
        sum[static_cast<size_t>(h)] += weights.row<float>(t)[j] * dot(gated, w.down, (e * w.hidden + h) * w.ffn);
      }
    }
    write_row(y, t * y.stride[0], sum);
  }
}

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace braid
