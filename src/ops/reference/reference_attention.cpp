// Rotation, cache writes and attention of the reference backend.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/element.h"
#include "ops/reference/reference_backend.h"

namespace braid {
namespace {

// Rotates the first rope.dim() lanes by the angle of `position`.
void rotate(std::span<double> x, const RopeTable& rope, int64_t position) {
  const int d = rope.dim();
  for (int i = 0; i < d / 2; ++i) {
    const float* cos_sin = rope.cos_sin.as<float>() + (position * (d / 2) + i) * 2;
    const bool halves = rope.layout == RopeLayout::kHalfSplit;
    double& a = x[static_cast<size_t>(halves ? i : 2 * i)];
    double& b = x[static_cast<size_t>(halves ? i + d / 2 : 2 * i + 1)];
    const double a0 = a, b0 = b;
    a = a0 * cos_sin[0] - b0 * cos_sin[1];
    b = b0 * cos_sin[0] + a0 * cos_sin[1];
  }
}

std::vector<double> read(const Tensor& t, int64_t offset, int64_t n) {
  std::vector<double> row(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) row[static_cast<size_t>(i)] = load_element(t, offset + i);
  return row;
}

// Rounds to the compute type `t` and stores.
void write(const Tensor& to, int64_t offset, std::span<const double> row, DType t, float scale = 1.0f) {
  for (size_t i = 0; i < row.size(); ++i) {
    store_element(to, offset + static_cast<int64_t>(i), round_to(t, static_cast<float>(row[i])) / scale);
  }
}

}  // namespace

void ReferenceBackend::gqa_rope_cache(Tensor q, Tensor k, Tensor v, Tensor q_norm, Tensor k_norm, float eps,
                                      const RopeTable& rope, const KvCache& cache, const BatchMeta& batch) {
  for (int64_t t = 0; t < batch.n_tokens; ++t) {
    const int64_t position = batch.positions.as<int32_t>()[t];
    const int64_t slot = batch.slots.as<int32_t>()[t];
    auto norm_and_rotate = [&](const Tensor& x, const Tensor& norm, int64_t head) {
      const int64_t at = t * x.stride[0] + head * x.stride[1];
      std::vector<double> row = read(x, at, x.dim(2));
      if (norm) reference_norm(row, norm.as<float>(), eps, x.dtype);
      rotate(row, rope, position);
      write(x, at, row, x.dtype);
    };
    for (int64_t h = 0; h < q.dim(1); ++h) norm_and_rotate(q, q_norm, h);
    for (int64_t h = 0; h < k.dim(1); ++h) {
      norm_and_rotate(k, k_norm, h);
      if (slot < 0) continue;
      const std::vector<double> key = read(k, t * k.stride[0] + h * k.stride[1], k.dim(2));
      const std::vector<double> value = read(v, t * v.stride[0] + h * v.stride[1], v.dim(2));
      write(cache.k, slot * cache.k.stride[0] + h * cache.k.stride[1], key, k.dtype, cache.scale);
      write(cache.v, slot * cache.v.stride[0] + h * cache.v.stride[1], value, v.dtype, cache.scale);
    }
  }
}

void ReferenceBackend::mla_rope_cache(Tensor q_out, Tensor q_in, Tensor kv_a, Tensor norm, float eps,
                                      const RopeTable& rope, const KvCache& cache, const BatchMeta& batch) {
  const int64_t d = q_in.dim(2), r = kv_a.dim(1) - d;
  for (int64_t t = 0; t < batch.n_tokens; ++t) {
    const int64_t position = batch.positions.as<int32_t>()[t];
    for (int64_t h = 0; h < q_in.dim(1); ++h) {
      std::vector<double> row = read(q_in, t * q_in.stride[0] + h * q_in.stride[1], d);
      rotate(row, rope, position);
      write(q_out, t * q_out.stride[0] + h * q_out.stride[1], row, q_out.dtype);
    }
    std::vector<double> row = read(kv_a, t * kv_a.stride[0], r + d);
    reference_norm(std::span(row).first(static_cast<size_t>(r)), norm.as<float>(), eps, kv_a.dtype);
    rotate(std::span(row).subspan(static_cast<size_t>(r)), rope, position);
    write(kv_a, t * kv_a.stride[0], row, kv_a.dtype);
    const int64_t slot = batch.slots.as<int32_t>()[t];
    if (slot < 0) continue;
    write(cache.k, slot * cache.k.stride[0], row, kv_a.dtype, cache.scale);
  }
}

void ReferenceBackend::attention_partial(Tensor sum, Tensor weight, Tensor k, Tensor q, const KvCache& cache,
                                         const AttentionSpec& spec, const BatchMeta& batch) {
  const SequenceShard& shard = batch.shard;
  const int64_t n_heads = q.dim(1), dk = q.dim(2), dv = sum.dim(2), per_kv_head = n_heads / cache.k.dim(1);
  const double scale = static_cast<double>(cache.scale) * spec.scale / std::log(2.0);
  for (int64_t s = 0; s < batch.n_seqs; ++s) {
    const int32_t* blocks = batch.block_table.row<int32_t>(s);
    for (int64_t t = batch.q_start.as<int32_t>()[s]; t < batch.q_start.as<int32_t>()[s + 1]; ++t) {
      const int64_t visible = shard.local_length(batch.positions.as<int32_t>()[t] + 1);
      std::vector<int64_t> slots(static_cast<size_t>(visible));
      for (int64_t j = 0; j < visible; ++j) {
        slots[static_cast<size_t>(j)] = shard.slot(BlockId(blocks[j / shard.block_size]), LocalPos(j)).value;
      }
      for (int64_t n = 0; n < n_heads; ++n) {
        const int64_t kv_head = n / per_kv_head;
        const std::vector<double> query = read(q, t * q.stride[0] + n * q.stride[1], dk);
        std::vector<double> scores(slots.size()), total(static_cast<size_t>(dv), 0.0);
        double most = -std::numeric_limits<double>::infinity(), weights = 0.0;
        for (size_t j = 0; j < slots.size(); ++j) {
          const int64_t at = slots[j] * cache.k.stride[0] + kv_head * cache.k.stride[1];
          double score = 0.0;
          for (int64_t i = 0; i < dk; ++i) score += query[static_cast<size_t>(i)] * load_element(cache.k, at + i);
          scores[j] = score * scale;
          most = std::max(most, scores[j]);
        }
        const double whole = std::ceil(most);
        for (size_t j = 0; j < slots.size(); ++j) {
          const double p = std::exp2(scores[j] - whole);
          const int64_t at = slots[j] * cache.v.stride[0] + kv_head * cache.v.stride[1];
          weights += p;
          for (int64_t i = 0; i < dv; ++i) total[static_cast<size_t>(i)] += p * load_element(cache.v, at + i);
        }
        write(sum, t * sum.stride[0] + n * sum.stride[1], total, DType::kF32);
        weight.row<float>(t)[n] = static_cast<float>(weights);
        k.row<float>(t)[n] = static_cast<float>(whole);
      }
    }
  }
}

void ReferenceBackend::merge_partials(Tensor y, Tensor lse, Tensor sums, Tensor weights, Tensor ks, float value_scale) {
  const int64_t dv = y.dim(2);
  for (int64_t t = 0; t < y.dim(0); ++t) {
    for (int64_t n = 0; n < y.dim(1); ++n) {
      auto at = [&](const Tensor& x, int64_t w) { return x.row<float>(w)[t * x.stride[1] + n]; };
      double k = -std::numeric_limits<double>::infinity(), weight = 0.0;
      std::vector<double> total(static_cast<size_t>(dv), 0.0);
      for (int64_t w = 0; w < sums.dim(0); ++w) k = std::max<double>(k, at(ks, w));
      for (int64_t w = 0; w < sums.dim(0); ++w) {
        if (at(weights, w) == 0.0f) continue;
        const double factor = std::exp2(at(ks, w) - k);
        weight += at(weights, w) * factor;
        const std::vector<double> part = read(sums, w * sums.stride[0] + t * sums.stride[1] + n * sums.stride[2], dv);
        for (size_t i = 0; i < part.size(); ++i) total[i] += part[i] * factor;
      }
      for (double& v : total) v = weight == 0.0 ? 0.0 : v / weight * value_scale;
      write(y, t * y.stride[0] + n * y.stride[1], total, y.dtype);
      if (lse) lse.row<float>(t)[n] = static_cast<float>(k * std::log(2.0) + std::log(weight));
    }
  }
}

void ReferenceBackend::attention_rows(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor k_rope, Tensor v,
                                      const RowSpans& spans, float scale) {
  const int64_t dn = k.dim(2), dr = k_rope ? k_rope.dim(1) : 0, dv = v.dim(2);
  const int32_t *q_start = spans.q_start.as<int32_t>(), *kv_start = spans.kv_start.as<int32_t>();
  for (int s = 0; s < spans.n_seqs; ++s) {
    const int64_t q_len = q_start[s + 1] - q_start[s], kv_len = kv_start[s + 1] - kv_start[s];
    for (int64_t i = 0; i < q_len; ++i) {
      const int64_t visible = spans.causal ? std::clamp<int64_t>(i + kv_len - q_len + 1, 0, kv_len) : kv_len;
      for (int64_t n = 0; n < q.dim(1); ++n) {
        const int64_t t = q_start[s] + i;
        const std::vector<double> query = read(q, t * q.stride[0] + n * q.stride[1], dn + dr);
        std::vector<double> scores, total(static_cast<size_t>(dv), 0.0);
        double most = -std::numeric_limits<double>::infinity(), weights = 0.0;
        for (int64_t j = kv_start[s]; j < kv_start[s] + visible; ++j) {
          std::vector<double> key = read(k, j * k.stride[0] + n * k.stride[1], dn);
          if (dr > 0) {
            const std::vector<double> rotated = read(k_rope, j * k_rope.stride[0], dr);
            key.insert(key.end(), rotated.begin(), rotated.end());
          }
          double score = 0.0;
          for (size_t d = 0; d < key.size(); ++d) score += query[d] * key[d];
          scores.push_back(score * scale);
          most = std::max(most, scores.back());
        }
        for (size_t j = 0; j < scores.size(); ++j) {
          const double p = std::exp(scores[j] - most);
          const std::vector<double> value = read(v, (kv_start[s] + static_cast<int64_t>(j)) * v.stride[0] + n * v.stride[1], dv);
          weights += p;
          for (size_t d = 0; d < value.size(); ++d) total[d] += p * value[d];
        }
        for (double& x : total) x = weights == 0.0 ? 0.0 : x / weights;
        write(y, t * y.stride[0] + n * y.stride[1], total, y.dtype);
        if (lse) lse.row<float>(t)[n] = static_cast<float>(most + std::log(weights));
      }
    }
  }
}

void ReferenceBackend::gather_cache(Tensor rows, const KvCache& cache, Tensor slots) {
  for (int64_t c = 0; c < rows.dim(0); ++c) {
    const int64_t slot = slots.as<int32_t>()[c];
    for (int64_t h = 0; h < rows.dim(1); ++h) {
      std::vector<double> row(static_cast<size_t>(rows.dim(2)), 0.0);
      if (slot >= 0) row = read(cache.k, slot * cache.k.stride[0] + h * cache.k.stride[1], rows.dim(2));
      for (double& x : row) x *= static_cast<double>(cache.scale);
      write(rows, c * rows.stride[0] + h * rows.stride[1], row, rows.dtype);
    }
  }
}

void ReferenceBackend::merge_results(Tensor y, Tensor lse, Tensor values, Tensor lses, int first) {
  const int64_t dv = y.dim(2);
  for (int64_t t = 0; t < y.dim(0); ++t) {
    for (int64_t n = 0; n < y.dim(1); ++n) {
      auto lse_of = [&](int64_t w) {
        const double l = lses.row<float>(w)[t * lses.stride[1] + n];
        return l < std::numeric_limits<double>::infinity() ? l : -std::numeric_limits<double>::infinity();
      };
      double most = -std::numeric_limits<double>::infinity(), weight = 0.0;
      for (int64_t w = 0; w < lses.dim(0); ++w) most = std::max(most, lse_of(w));
      std::vector<double> total(static_cast<size_t>(dv), 0.0);
      for (int64_t w = 0; w < lses.dim(0); ++w) weight += lse_of(w) == -std::numeric_limits<double>::infinity() ? 0.0 : std::exp(lse_of(w) - most);
      for (int64_t i = 0; i < values.dim(0); ++i) {
        if (lse_of(first + i) == -std::numeric_limits<double>::infinity()) continue;
        const double share = std::exp(lse_of(first + i) - most) / weight;
        const std::vector<double> part = read(values, i * values.stride[0] + t * values.stride[1] + n * values.stride[2], dv);
        for (size_t d = 0; d < part.size(); ++d) total[d] += share * part[d];
      }
      write(y, t * y.stride[0] + n * y.stride[1], total, y.dtype);
      if (lse) lse.row<float>(t)[n] = static_cast<float>(most + std::log(weight));
    }
  }
}

void ReferenceBackend::attention(Tensor y, Tensor lse, Tensor q, const KvCache& cache, const AttentionSpec& spec,
                                 const BatchMeta& batch) {
  const Tensor sum = scratch(DType::kF32, {1, y.dim(0), y.dim(1), y.dim(2)});
  const Tensor weight = scratch(DType::kF32, {1, y.dim(0), y.dim(1)});
  const Tensor k = scratch(DType::kF32, {1, y.dim(0), y.dim(1)});
  attention_partial(sum.view({y.dim(0), y.dim(1), y.dim(2)}), weight.view({y.dim(0), y.dim(1)}),
                    k.view({y.dim(0), y.dim(1)}), q, cache, spec, batch);
  merge_partials(y, lse, sum, weight, k, cache.scale);
}

}  // namespace braid
