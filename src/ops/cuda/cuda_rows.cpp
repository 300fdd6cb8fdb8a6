// Operations on rows: shapes are checked here, the work is in rows.cu, rope.cu and route.cu.
#include "base/error.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/kernels.h"

namespace braid {

void CudaBackend::embed(Tensor y, Tensor ids, Tensor table, int64_t first_row) {
  BRAID_CHECK(y.dim(0) == ids.dim(0) && y.dim(1) == table.dim(1));
  if (y.n_elements() > 0) cuda::embed(stream_, y, ids, table, first_row);
}

void CudaBackend::rms_norm(Tensor y, Tensor x, Tensor w, float eps) {
  BRAID_CHECK(y.dtype == x.dtype && y.dim(0) == x.dim(0) && y.dim(1) == x.dim(1) && w.dim(0) == x.dim(1));
  if (y.n_elements() > 0) cuda::rms_norm(stream_, y, x, w, eps);
}

void CudaBackend::add_rms_norm(Tensor y, Tensor residual, Tensor add, Tensor w, float eps) {
  BRAID_CHECK(y.dtype == residual.dtype && y.dim(0) == residual.dim(0) && y.dim(1) == residual.dim(1));
  BRAID_CHECK(add.dim(0) == residual.dim(0) && add.dim(1) == residual.dim(1) && w.dim(0) == residual.dim(1));
  if (y.n_elements() > 0) cuda::add_rms_norm(stream_, y, residual, add, w, eps);
}

void CudaBackend::add(Tensor y, Tensor x) {
  BRAID_CHECK(y.dtype == DType::kF32 && x.dtype == DType::kF32 && y.dim(0) == x.dim(0) && y.dim(1) == x.dim(1));
  if (y.n_elements() > 0) cuda::add(stream_, y, x);
}

void CudaBackend::silu_mul(Tensor y, Tensor gate_up) {
  BRAID_CHECK(y.dtype == gate_up.dtype && y.dim(0) == gate_up.dim(0) && 2 * y.dim(1) == gate_up.dim(1));
  if (y.n_elements() > 0) cuda::silu_mul(stream_, y, gate_up);
}

void CudaBackend::gather_rows(Tensor y, Tensor x, Tensor rows) {
  BRAID_CHECK(y.dtype == x.dtype && y.dim(0) == rows.dim(0) && y.dim(1) == x.dim(1));
  if (y.n_elements() > 0) cuda::gather_rows(stream_, y, x, rows);
}

void CudaBackend::copy(Tensor to, Tensor from) {
  BRAID_CHECK(to.rank == from.rank);
  for (int i = 0; i < to.rank; ++i) {
    BRAID_CHECK(to.dim(i) == from.dim(i), "dimension {}: {} and {}", i, to.dim(i), from.dim(i));
  }
  if (to.n_elements() > 0) cuda::copy(stream_, to, from);
}

void CudaBackend::fill_zero(Tensor x) {
  if (x.n_elements() > 0) cuda::fill_zero(stream_, x);
}

void CudaBackend::gqa_rope_cache(Tensor q, Tensor k, Tensor v, Tensor q_norm, Tensor k_norm, float eps,
                                 const RopeTable& rope, const KvCache& cache, const BatchMeta& batch) {
  if (batch.n_tokens > 0) cuda::gqa_rope_cache(stream_, q, k, v, q_norm, k_norm, eps, rope, cache, batch);
}

void CudaBackend::mla_rope_cache(Tensor q_out, Tensor q_in, Tensor kv_a, Tensor norm, float eps, const RopeTable& rope,
                                 const KvCache& cache, const BatchMeta& batch) {
  if (batch.n_tokens > 0) cuda::mla_rope_cache(stream_, q_out, q_in, kv_a, norm, eps, rope, cache, batch);
}

void CudaBackend::gather_cache(Tensor rows, const KvCache& cache, Tensor slots) {
  BRAID_CHECK(rows.dim(0) == slots.dim(0) && rows.dim(1) == cache.k.dim(1) && rows.dim(2) == cache.k.dim(2));
  if (rows.n_elements() > 0) cuda::gather_cache(stream_, rows, cache, slots);
}

void CudaBackend::route(Tensor ids, Tensor weights, Tensor logits, Tensor bias, const RouterSpec& spec) {
  const int64_t n = logits.dim(1);
  BRAID_CHECK(n <= 1024 && spec.top_k <= n && n % spec.n_groups == 0, "{} experts in {} groups", n, spec.n_groups);
  if (logits.dim(0) > 0) cuda::route(stream_, ids, weights, logits, bias, spec);
}

}  // namespace braid
