#include "ops/reference/reference_backend.h"

#include <cmath>

#include "base/error.h"
#include "ops/element.h"
#include "ops/quantise.h"
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

// Row `row` of a weight [.., k], times the scales of its groups where it has such.
double dot_row(const std::vector<double>& x, const Tensor& w, const Tensor& scales, const WeightFormat& f, int k_slices,
               int64_t row) {
  const auto k = static_cast<int64_t>(x.size());
  if (!f.scaled()) return dot(x, w, row * k);
  const int64_t slice = k / k_slices;
  double sum = 0.0;
  for (int64_t i = 0; i < k; ++i) {
    const int64_t group = i / slice * f.groups(slice) + i % slice / f.group;
    const double scale = scales.as<float>()[row * f.scales(k, k_slices) + group];
    sum += x[static_cast<size_t>(i)] * load_element(w, row * k + i) * scale;
  }
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

LinearWeight ReferenceBackend::pack_linear(const WeightMatrix& w, Tensor bias, int k_slices) {
  const int64_t n = w.values.dim(0), k = w.values.dim(1);
  BRAID_CHECK(w.values.rank == 2 && k % k_slices == 0, "K {} in {} slices", k, k_slices);
  const KeptMatrix kept = as_kept(w, k_slices);
  return {n,
          k,
          k_slices,
          w.kept,
          keep(kept.values),
          bias ? keep(bias) : Tensor{},
          kept.scales ? keep(kept.scales) : Tensor{}};
}

LinearWeight ReferenceBackend::linear_rows(const LinearWeight& w, int64_t begin, int64_t end) const {
  auto cut = [&](const Tensor& t) { return t ? t.rows(begin, end) : Tensor{}; };
  return {end - begin, w.k, w.k_slices, w.stored, cut(w.packed), cut(w.bias), cut(w.scales)};
}

HeadWeight ReferenceBackend::pack_heads(Tensor w, bool transposed) {
  if (transposed) return pack_heads(transposed_heads(w).tensor, false);
  return {w.dim(0), w.dim(1), w.dim(2), w.dtype, keep(w)};
}

ExpertWeights ReferenceBackend::make_experts(int first, int count, int64_t hidden, int64_t ffn,
                                             const WeightFormat& stored, int k_slices) {
  BRAID_CHECK(ffn % k_slices == 0, "F {} in {} slices", ffn, k_slices);
  ExpertWeights e{first, count, hidden, ffn, k_slices, stored, {}, {}, {}, {}};
  e.gate_up = alloc(MemoryKind::kWeights, stored.type, {count, 2 * ffn, hidden});
  e.down = alloc(MemoryKind::kWeights, stored.type, {count, hidden, ffn});
  if (!stored.scaled()) return e;
  e.gate_up_scales = alloc(MemoryKind::kWeights, DType::kF32, {count, 2 * ffn, stored.scales(hidden, 1)});
  e.down_scales = alloc(MemoryKind::kWeights, DType::kF32, {count, hidden, stored.scales(ffn, k_slices)});
  return e;
}

void ReferenceBackend::pack_expert(ExpertWeights& e, int expert, const WeightMatrix& gate, const WeightMatrix& up,
                                   const WeightMatrix& down) {
  BRAID_CHECK(e.first <= expert && expert < e.first + e.count);
  const int64_t i = expert - e.first;
  auto put = [&](const WeightMatrix& w, int k_slices, const Tensor& values, const Tensor& scales, int64_t row) {
    const KeptMatrix kept = as_kept(w, k_slices);
    auto rows_of = [&](const Tensor& t, const Tensor& from) {
      return t.rows(i, i + 1).view({t.dim(1), t.dim(2)}).rows(row, row + from.dim(0));
    };
    copy(rows_of(values, kept.values), kept.values);
    if (kept.scales) copy(rows_of(scales, kept.scales), kept.scales);
  };
  put(gate, 1, e.gate_up, e.gate_up_scales, 0);
  put(up, 1, e.gate_up, e.gate_up_scales, e.ffn);
  put(down, e.k_slices, e.down, e.down_scales, 0);
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
      store_element(y, t * y.stride[0] + n,
                    static_cast<float>(dot_row(row, w.packed, w.scales, w.stored, w.k_slices, n) + bias));
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
        const double gate = dot_row(row, w.gate_up, w.gate_up_scales, w.stored, 1, e * 2 * w.ffn + f);
        const double up = dot_row(row, w.gate_up, w.gate_up_scales, w.stored, 1, e * 2 * w.ffn + w.ffn + f);
        gated[static_cast<size_t>(f)] = round_to(x.dtype, static_cast<float>(silu(gate) * up));
      }
      for (int64_t h = 0; h < w.hidden; ++h) {
        sum[static_cast<size_t>(h)] +=
            weights.row<float>(t)[j] * dot_row(gated, w.down, w.down_scales, w.stored, w.k_slices, e * w.hidden + h);
      }
    }
    write_row(y, t * y.stride[0], sum);
  }
}

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace braid
