// Weights and products: linear layers, per-head products, mixtures of experts.
#include <algorithm>

#include "base/error.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/moe.h"

namespace braid {
namespace {

constexpr int kMaxSlices = 8;
constexpr int kMaxExperts = 1024;
constexpr int64_t kPartBytes = int64_t{512} << 20;  // most scratch for what a step's experts return

void check_slices(int64_t k, int slices) {
  BRAID_CHECK(1 <= slices && slices <= kMaxSlices && (slices & (slices - 1)) == 0 && k % slices == 0,
              "K {} in {} slices", k, slices);
}

void check_plain(const WeightFormat& f) { BRAID_CHECK(!f.scaled(), "{} weights on a GPU", name_of(f.type)); }

Tensor plain_values(const WeightMatrix& w) {
  check_plain(w.kept);
  return w.values;
}

}  // namespace

LinearWeight CudaBackend::pack_linear(const WeightMatrix& matrix, Tensor bias, int k_slices) {
  const Tensor w = plain_values(matrix);
  check_slices(w.dim(1), k_slices);
  return {w.dim(0), w.dim(1), k_slices, w.dtype, keep(w), bias ? keep(bias) : Tensor{}, {}};
}

LinearWeight CudaBackend::linear_rows(const LinearWeight& w, int64_t begin, int64_t end) const {
  return {end - begin, w.k, w.k_slices, w.stored, w.packed.rows(begin, end), w.bias ? w.bias.rows(begin, end) : Tensor{}, {}};
}

HeadWeight CudaBackend::pack_heads(Tensor w, bool transposed) {
  if (!transposed) return {w.dim(0), w.dim(1), w.dim(2), w.dtype, keep(w)};
  // As it lies, gaps between heads included, into scratch; there it is turned.
  const int64_t heads = w.dim(0), k = w.dim(1), n = w.dim(2);
  const int64_t span = (heads - 1) * w.stride[0] + (k - 1) * w.stride[1] + n;
  const ScratchScope temporary(*this);
  Tensor from = w;
  from.data = scratch(w.dtype, {span}).data;
  put(Tensor(from.data, w.dtype, {span}), Tensor(w.data, w.dtype, {span}));
  from.shape = {heads, n, k};
  from.stride = {w.stride[0], 1, w.stride[1]};
  const Tensor packed = alloc(MemoryKind::kWeights, w.dtype, {heads, n, k});
  cuda::copy(stream_, packed, from);
  sync();  // kernels read weights before those in front of them have ended
  return {heads, n, k, w.dtype, packed};
}

ExpertWeights CudaBackend::make_experts(int first, int count, int64_t hidden, int64_t ffn, const WeightFormat& stored, int k_slices) {
  check_slices(ffn, k_slices);
  check_plain(stored);
  BRAID_CHECK(count <= kMaxExperts, "{} experts on one GPU", count);
  return {first,
          count,
          hidden,
          ffn,
          k_slices,
          stored,
          alloc(MemoryKind::kWeights, stored.type, {count, 2 * ffn, hidden}),
          alloc(MemoryKind::kWeights, stored.type, {count, hidden, ffn}),
          {},
          {}};
}

void CudaBackend::pack_expert(ExpertWeights& e, int expert, const WeightMatrix& gate, const WeightMatrix& up, const WeightMatrix& down) {
  BRAID_CHECK(e.first <= expert && expert < e.first + e.count);
  const int64_t i = expert - e.first;
  const Tensor gate_up = e.gate_up.rows(i, i + 1).view({2 * e.ffn, e.hidden});
  put(gate_up.rows(0, e.ffn), plain_values(gate));
  put(gate_up.rows(e.ffn, 2 * e.ffn), plain_values(up));
  put(e.down.rows(i, i + 1).view({e.hidden, e.ffn}), plain_values(down));
}

void CudaBackend::product(const cuda::ProductArgs& a) {
  if (options_.reproducible) {
    cuda::product(stream_, a);
  } else if (cuda::product_narrow_takes(a)) {
    cuda::product_narrow(stream_, a);
  } else if (a.m > kTileRows && LtProducts::takes(a)) {
    lt_(stream_, a);
  } else {
    cuda::product(stream_, a);
  }
}

void CudaBackend::linear(Tensor y, Tensor x, const LinearWeight& w) {
  BRAID_CHECK(x.dim(1) == w.k && y.dim(1) == w.n && x.dim(0) == y.dim(0));
  if (y.n_elements() == 0) return;
  cuda::ProductArgs a;
  a.x = x.data;
  a.w = w.packed.data;
  a.y = y.data;
  a.bias = w.bias ? w.bias.as<float>() : nullptr;
  a.x_type = x.dtype;
  a.w_type = w.stored.type;
  a.y_type = y.dtype;
  a.x_stride = x.stride[0];
  a.y_stride = y.stride[0];
  a.m = x.dim(0);
  a.n = w.n;
  a.k = w.k;
  a.k_slices = w.k_slices;
  product(a);
}

void CudaBackend::head_linear(Tensor y, Tensor x, const HeadWeight& w) {
  BRAID_CHECK(x.dim(1) == w.heads && x.dim(2) == w.k && y.dim(2) == w.n && x.dim(0) == y.dim(0));
  if (y.n_elements() == 0) return;
  cuda::ProductArgs a;
  a.x = x.data;
  a.w = w.packed.data;
  a.y = y.data;
  a.x_type = x.dtype;
  a.w_type = w.stored;
  a.y_type = y.dtype;
  a.x_stride = x.stride[0];
  a.y_stride = y.stride[0];
  a.x_batch = x.stride[1];
  a.y_batch = y.stride[1];
  a.m = x.dim(0);
  a.n = w.n;
  a.k = w.k;
  a.batches = static_cast<int>(w.heads);
  product(a);
}

bool CudaBackend::moe_few(Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights& w, const GatedWeights* shared) {
  if (options_.reproducible || !cuda::moe_few_takes(y, x, ids, w, shared)) return false;
  const ScratchScope temporary(*this);
  const Tensor gated = scratch(x.dtype, {x.dim(0), cuda::moe_few_choices(ids, w, shared), w.ffn});
  cuda::moe_few(stream_, y, x, ids, weights, w, shared, gated);
  return true;
}

void CudaBackend::moe_with_shared(Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights& w, const GatedWeights& shared) {
  if (!moe_few(y, x, ids, weights, w, &shared)) Backend::moe_with_shared(y, x, ids, weights, w, shared);
}

void CudaBackend::moe(Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights& w) {
  if (moe_few(y, x, ids, weights, w, nullptr)) return;
  const int64_t tokens = x.dim(0), top_k = ids.dim(1);
  const int64_t token_bytes = top_k * w.hidden * int64_t{sizeof(float)};
  const int64_t step = std::max<int64_t>(1, std::min(tokens, kPartBytes / token_bytes));
  for (int64_t t = 0; t < tokens; t += step) {
    const int64_t end = std::min(tokens, t + step);
    moe_rows(y.rows(t, end), x.rows(t, end), ids.rows(t, end), weights.rows(t, end), w);
  }
}

// The rows of one expert are a group; each of its products is one launch over all groups.
void CudaBackend::moe_rows(Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights& w) {
  const ScratchScope temporary(*this);
  const int64_t pairs = ids.dim(0) * ids.dim(1);
  const int64_t per_expert = pairs / std::max(w.count, 1);
  const bool narrow = !options_.reproducible && per_expert <= 2 && x.dtype == DType::kBF16 && w.stored == DType::kBF16 &&
                      w.k_slices == 1 && w.hidden % 64 == 0 && w.ffn % 64 == 0 && x.stride[0] % 8 == 0;
  const int tile_rows = narrow ? cuda::kNarrowTileRows : cuda::product_tile_rows(x.dtype, w.stored.type, w.k_slices, per_expert);
  Tensor memory = scratch(DType::kI32, {cuda::group_ints(pairs, w.count, tile_rows)});
  const Tensor gated = scratch(x.dtype, {pairs, w.ffn}), parts = scratch(DType::kF32, {pairs, w.hidden});
  cuda::ProductArgs a;
  a.groups = cuda::group_pairs(stream_, ids, w.first, w.count, tile_rows, memory.as<int32_t>());
  const int32_t* pair_rows = a.groups.y_rows;
  a.w_type = w.stored.type;
  a.m = pairs;

  a.x = x.data;
  a.x_type = x.dtype;
  a.x_stride = x.stride[0];
  a.w = w.gate_up.data;
  a.y = gated.data;
  a.y_type = gated.dtype;
  a.y_stride = gated.stride[0];
  a.n = w.ffn;
  a.k = w.hidden;
  a.gated = true;
  a.groups.y_rows = nullptr;
  product(a);

  a.x = gated.data;
  a.x_stride = gated.stride[0];
  a.w = w.down.data;
  a.y = parts.data;
  a.y_type = DType::kF32;
  a.y_stride = parts.stride[0];
  a.n = w.hidden;
  a.k = w.ffn;
  a.k_slices = w.k_slices;
  a.gated = false;
  a.groups.x_rows = nullptr;
  a.groups.y_rows = pair_rows;
  product(a);
  cuda::combine_experts(stream_, y, parts, ids, weights, w.first, w.count);
}

}  // namespace braid
