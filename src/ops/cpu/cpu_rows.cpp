// Operations on single rows: norms, residual sums, activation, gathers, rotation and cache writes. A row is brought to
// float32 in a buffer of its worker, changed there and stored.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "ops/cpu/cpu_backend.h"

namespace braid {
namespace {

void* element(const Tensor& t, int64_t offset) { return static_cast<char*>(t.data) + offset * size_of(t.dtype); }

double row_nanoseconds(int64_t n) { return 20.0 + static_cast<double>(n) / 4.0; }

}  // namespace

void CpuBackend::copy(Tensor to, Tensor from) {
  if (to.rank < 2 || to.dim(0) != from.dim(0)) return HostBackend::copy(to, from);
  const int64_t n = to.dim(0), row = n == 0 ? 0 : to.n_elements() / n;
  for_rows(n, row_nanoseconds(row), [&](int64_t r, int) { HostBackend::copy(to.rows(r, r + 1), from.rows(r, r + 1)); });
}

void CpuBackend::embed(Tensor y, Tensor ids, Tensor table, int64_t first_row) {
  const int64_t h = y.dim(1);
  const ScratchScope temporary(*this);
  const Tensor buffer = scratch(DType::kF32, {workers_.size(), h});
  for_rows(y.dim(0), row_nanoseconds(h), [&](int64_t t, int worker) {
    const int64_t row = ids.as<int32_t>()[t] - first_row;
    float* x = buffer.row<float>(worker);
    if (0 <= row && row < table.dim(0)) {
      kernels_.to_float(x, element(table, row * table.stride[0]), table.dtype, h);
    } else {
      std::memset(x, 0, static_cast<size_t>(h) * sizeof(float));
    }
    kernels_.from_float(element(y, t * y.stride[0]), y.dtype, x, h, 1.0f);
  });
}

void CpuBackend::gather_rows(Tensor y, Tensor x, Tensor rows) {
  BRAID_CHECK(y.dtype == x.dtype && y.dim(1) == x.dim(1));
  const auto bytes = static_cast<size_t>(x.dim(1) * size_of(x.dtype));
  for (int64_t r = 0; r < y.dim(0); ++r) {
    std::memcpy(element(y, r * y.stride[0]), element(x, rows.as<int32_t>()[r] * x.stride[0]), bytes);
  }
}

void CpuBackend::rms_norm(Tensor y, Tensor x, Tensor w, float eps) {
  const int64_t h = x.dim(1);
  const ScratchScope temporary(*this);
  const Tensor buffer = scratch(DType::kF32, {workers_.size(), h});
  for_rows(x.dim(0), row_nanoseconds(h), [&](int64_t t, int worker) {
    float* row = buffer.row<float>(worker);
    kernels_.to_float(row, element(x, t * x.stride[0]), x.dtype, h);
    kernels_.norm(row, w.as<float>(), h, eps, y.dtype);
    kernels_.from_float(element(y, t * y.stride[0]), y.dtype, row, h, 1.0f);
  });
}

void CpuBackend::add_rms_norm(Tensor y, Tensor residual, Tensor add, Tensor w, float eps) {
  const int64_t h = residual.dim(1);
  const ScratchScope temporary(*this);
  const Tensor buffer = scratch(DType::kF32, {workers_.size(), 2, h});
  for_rows(residual.dim(0), 2 * row_nanoseconds(h), [&](int64_t t, int worker) {
    float* row = buffer.row<float>(worker);
    float* more = row + h;
    kernels_.to_float(row, element(residual, t * residual.stride[0]), residual.dtype, h);
    kernels_.to_float(more, element(add, t * add.stride[0]), add.dtype, h);
    kernels_.add(row, more, h);
    kernels_.round(row, h, residual.dtype);
    kernels_.from_float(element(residual, t * residual.stride[0]), residual.dtype, row, h, 1.0f);
    kernels_.norm(row, w.as<float>(), h, eps, y.dtype);
    kernels_.from_float(element(y, t * y.stride[0]), y.dtype, row, h, 1.0f);
  });
}

void CpuBackend::add(Tensor y, Tensor x) {
  const int64_t h = y.dim(1);
  for_rows(y.dim(0), row_nanoseconds(h), [&](int64_t t, int) { kernels_.add(y.row<float>(t), x.row<float>(t), h); });
}

void CpuBackend::silu_mul(Tensor y, Tensor gate_up) {
  const int64_t f = y.dim(1);
  const ScratchScope temporary(*this);
  const Tensor buffer = scratch(DType::kF32, {workers_.size(), 2 * f});
  for_rows(y.dim(0), 2 * row_nanoseconds(2 * f), [&](int64_t t, int worker) {
    float* row = buffer.row<float>(worker);
    kernels_.to_float(row, element(gate_up, t * gate_up.stride[0]), gate_up.dtype, 2 * f);
    kernels_.silu_mul(row, row, row + f, f);
    kernels_.from_float(element(y, t * y.stride[0]), y.dtype, row, f, 1.0f);
  });
}

void CpuBackend::gqa_rope_cache(Tensor q, Tensor k, Tensor v, Tensor q_norm, Tensor k_norm, float eps,
                                const RopeTable& rope, const KvCache& cache, const BatchMeta& batch) {
  const int64_t d = q.dim(2), dv = v.dim(2);
  const bool interleaved = rope.layout == RopeLayout::kInterleaved;
  const ScratchScope temporary(*this);
  const Tensor buffer = scratch(DType::kF32, {workers_.size(), std::max(d, dv)});
  const double nanoseconds = 2.0 * row_nanoseconds(d) * static_cast<double>(q.dim(1) + k.dim(1));
  for_rows(batch.n_tokens, nanoseconds, [&](int64_t t, int worker) {
    float* row = buffer.row<float>(worker);
    const int64_t position = batch.positions.as<int32_t>()[t], slot = batch.slots.as<int32_t>()[t];
    const float* angles = rope.cos_sin ? rope.cos_sin.row<float>(position) : nullptr;
    auto norm_and_rotate = [&](const Tensor& x, const Tensor& norm, int64_t head) {
      void* at = element(x, t * x.stride[0] + head * x.stride[1]);
      kernels_.to_float(row, at, x.dtype, d);
      if (norm) kernels_.norm(row, norm.as<float>(), d, eps, x.dtype);
      kernels_.rotate(row, angles, rope.dim(), interleaved);
      kernels_.round(row, d, x.dtype);
      kernels_.from_float(at, x.dtype, row, d, 1.0f);
    };
    for (int64_t h = 0; h < q.dim(1); ++h) norm_and_rotate(q, q_norm, h);
    for (int64_t h = 0; h < k.dim(1); ++h) {
      norm_and_rotate(k, k_norm, h);
      if (slot < 0) continue;
      void* key = element(cache.k, slot * cache.k.stride[0] + h * cache.k.stride[1]);
      void* value = element(cache.v, slot * cache.v.stride[0] + h * cache.v.stride[1]);
      kernels_.from_float(key, cache.k.dtype, row, d, 1.0f / cache.scale);
      kernels_.to_float(row, element(v, t * v.stride[0] + h * v.stride[1]), v.dtype, dv);
      kernels_.from_float(value, cache.v.dtype, row, dv, 1.0f / cache.scale);
    }
  });
}

void CpuBackend::gather_cache(Tensor rows, const KvCache& cache, Tensor slots) {
  const int64_t heads = rows.dim(1), d = rows.dim(2);
  const ScratchScope temporary(*this);
  const Tensor buffer = scratch(DType::kF32, {workers_.size(), d});
  for_rows(rows.dim(0), row_nanoseconds(d) * static_cast<double>(heads), [&](int64_t c, int worker) {
    float* row = buffer.row<float>(worker);
    const int64_t slot = slots.as<int32_t>()[c];
    for (int64_t h = 0; h < heads; ++h) {
      if (slot < 0) {
        std::memset(row, 0, static_cast<size_t>(d) * sizeof(float));
      } else {
        kernels_.to_float(row, element(cache.k, slot * cache.k.stride[0] + h * cache.k.stride[1]), cache.k.dtype, d);
      }
      kernels_.from_float(element(rows, c * rows.stride[0] + h * rows.stride[1]), rows.dtype, row, d, cache.scale);
    }
  });
}

void CpuBackend::mla_rope_cache(Tensor q_out, Tensor q_in, Tensor kv_a, Tensor norm, float eps, const RopeTable& rope,
                                const KvCache& cache, const BatchMeta& batch) {
  const int64_t d = q_in.dim(2), r = kv_a.dim(1) - d;
  const bool interleaved = rope.layout == RopeLayout::kInterleaved;
  const ScratchScope temporary(*this);
  const Tensor buffer = scratch(DType::kF32, {workers_.size(), r + d});
  const double nanoseconds = row_nanoseconds(d) * static_cast<double>(q_in.dim(1)) + 2.0 * row_nanoseconds(r);
  for_rows(batch.n_tokens, nanoseconds, [&](int64_t t, int worker) {
    float* row = buffer.row<float>(worker);
    const int64_t position = batch.positions.as<int32_t>()[t], slot = batch.slots.as<int32_t>()[t];
    const float* angles = rope.cos_sin ? rope.cos_sin.row<float>(position) : nullptr;
    for (int64_t h = 0; h < q_in.dim(1); ++h) {
      kernels_.to_float(row, element(q_in, t * q_in.stride[0] + h * q_in.stride[1]), q_in.dtype, d);
      kernels_.rotate(row, angles, rope.dim(), interleaved);
      kernels_.from_float(element(q_out, t * q_out.stride[0] + h * q_out.stride[1]), q_out.dtype, row, d, 1.0f);
    }
    void* latent = element(kv_a, t * kv_a.stride[0]);
    kernels_.to_float(row, latent, kv_a.dtype, r + d);
    kernels_.norm(row, norm.as<float>(), r, eps, kv_a.dtype);
    kernels_.rotate(row + r, angles, rope.dim(), interleaved);
    kernels_.round(row + r, d, kv_a.dtype);
    kernels_.from_float(latent, kv_a.dtype, row, r + d, 1.0f);
    if (slot < 0) return;
    kernels_.from_float(element(cache.k, slot * cache.k.stride[0]), cache.k.dtype, row, r + d, 1.0f / cache.scale);
  });
}

// The passes over whole rows are cut into pieces of kLogits, so that one row of a large vocabulary is shared as well; a
// piece's bits depend on its place alone.
void CpuBackend::sample(std::span<SampleResult> out, Tensor logits, std::span<const SamplingRow> rows) {
  BRAID_CHECK(out.size() == rows.size() && logits.dim(0) == static_cast<int64_t>(rows.size()));
  constexpr int64_t kLogits = 8192;
  const int64_t n = logits.dim(1), pieces = (n + kLogits - 1) / kLogits, n_rows = logits.dim(0);
  std::vector<Kernels::Summary> summaries(static_cast<size_t>(n_rows * pieces));
  workers_.run(n_rows * pieces, static_cast<double>(n_rows * n) / 2.0, [&](int64_t task, int) {
    const int64_t first = task % pieces * kLogits;
    summaries[static_cast<size_t>(task)] =
        kernels_.summarise(logits.row<float>(task / pieces) + first, std::min(kLogits, n - first));
  });
  workers_.run(n_rows, static_cast<double>(n_rows) * 1000.0, [&](int64_t r, int) {
    const Kernels::Summary* parts = &summaries[static_cast<size_t>(r * pieces)];
    LogitSummary whole{0, 0.0};
    float largest = -std::numeric_limits<float>::infinity();
    bool nan = false;
    const std::span<float> row(logits.row<float>(r), static_cast<size_t>(n));
    for (int64_t p = 0; p < pieces; ++p) {
      if (parts[p].best < 0) {  // only -infinity is harmless
        nan = nan || std::any_of(row.begin() + p * kLogits, row.begin() + std::min(n, (p + 1) * kLogits),
                                 [](float x) { return std::isnan(x); });
      } else if (parts[p].largest > largest) {
        largest = parts[p].largest;
        whole.best = static_cast<int32_t>(p * kLogits + parts[p].best);
      }
    }
    if (nan || std::isinf(largest)) whole.best = -1;
    double sum = 0.0;
    for (int64_t p = 0; p < pieces; ++p) {
      if (parts[p].best >= 0) sum += parts[p].sum * std::exp(static_cast<double>(parts[p].largest) - largest);
    }
    whole.log_sum_exp = static_cast<double>(largest) + std::log(sum);
    out[static_cast<size_t>(r)] = sample_row(row, rows[static_cast<size_t>(r)], whole);
  });
}

}  // namespace braid
