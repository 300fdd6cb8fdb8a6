// Attention: which kernel, in how many parts, and where they meet.
#include <algorithm>

#include "base/error.h"
#include "ops/cuda/attention_flash.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/mla_decode.h"

namespace braid {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr int kMaxSplits = 64;
constexpr int64_t kLeastSplitRows = 4 * cuda::kAttentionKeys;
constexpr int64_t kPartBytes = int64_t{512} << 20;  // most scratch for the parts of some heads

cuda::AttentionArgs arguments(const Tensor& q, const KvCache& cache, const AttentionSpec& spec, const BatchMeta& batch,
                              int64_t dv) {
  cuda::AttentionArgs a;
  a.q = q.data;
  a.k = cache.k.data;
  a.v = cache.v.data;
  a.q_type = q.dtype;
  a.cache_type = cache.k.dtype;
  a.q_token = q.stride[0];
  a.q_head = q.stride[1];
  a.k_slot = cache.k.stride[0];
  a.k_head = cache.k.stride[1];
  a.v_slot = cache.v.stride[0];
  a.v_head = cache.v.stride[1];
  a.positions = batch.positions.as<int32_t>();
  a.q_start = batch.q_start.as<int32_t>();
  a.block_table = batch.block_table.as<int32_t>();
  a.table_stride = batch.block_table.stride[0];
  a.shard = batch.shard;
  a.n_seqs = batch.n_seqs;
  a.max_q_len = batch.max_q_len;
  a.n_kv = static_cast<int>(cache.k.dim(1));
  a.group = static_cast<int>(q.dim(1)) / a.n_kv;
  a.dk = a.dn = static_cast<int>(q.dim(2));
  a.dv = static_cast<int>(dv);
  a.latent = a.v == a.k && a.v_slot == a.k_slot && a.v_head == a.k_head && a.dv <= a.dk;
  a.scale_log2 = spec.scale * cache.scale * kLog2E;
  a.out.value_scale = cache.scale;
  a.reproducible = spec.n_stripes > 1;
  a.n_stripes = a.reproducible ? spec.n_stripes / batch.shard.n_ranks : 1;
  return a;
}

void finish_into(cuda::AttentionArgs& a, const Tensor& y, const Tensor& lse) {
  a.out.y = y.data;
  a.out.type = y.dtype;
  a.out.token = y.stride[0];
  a.out.head = y.stride[1];
  if (!lse) return;
  a.out.lse = lse.as<float>();
  a.out.lse_token = lse.stride[0];
}

// In the default mode: as many splits as fill the device, of at least some tiles each.
void choose_splits(cuda::AttentionArgs& a, int64_t tokens, int64_t longest, int n_multiprocessors, int rows) {
  a.n_splits = 1;
  if (!a.reproducible) {
    const int64_t per_seq = (int64_t{a.max_q_len} * a.group + rows - 1) / rows;
    const int64_t blocks = a.n_kv * std::min(a.n_seqs * per_seq, tokens * a.group / rows + a.n_seqs);
    const int64_t wanted = (2 * n_multiprocessors + blocks - 1) / std::max<int64_t>(blocks, 1);
    a.n_splits = static_cast<int>(std::clamp<int64_t>(std::min(wanted, longest / kLeastSplitRows), 1, kMaxSplits));
  }
  const int64_t tiles = (longest + cuda::kAttentionKeys - 1) / cuda::kAttentionKeys;
  a.split_rows = std::max<int64_t>(1, (tiles + a.n_splits - 1) / a.n_splits) * cuda::kAttentionKeys;
}

// Query heads [first, first + n), whole groups.
cuda::AttentionArgs of_heads(cuda::AttentionArgs a, int64_t first, int64_t n) {
  const int64_t kv = first / a.group, q_size = size_of(a.q_type), c_size = size_of(a.cache_type);
  a.q = static_cast<const char*>(a.q) + first * a.q_head * q_size;
  if (a.n_kv > 1) {
    a.k = static_cast<const char*>(a.k) + kv * a.k_head * c_size;
    a.v = static_cast<const char*>(a.v) + kv * a.v_head * c_size;
    a.n_kv = static_cast<int>(n / a.group);
  } else {
    a.group = static_cast<int>(n);
  }
  if (a.out.y) a.out.y = static_cast<char*>(a.out.y) + first * a.out.head * size_of(a.out.type);
  if (a.out.lse) a.out.lse += first;
  if (a.partial.sum) {
    a.partial.sum += first * a.partial.sum_head;
    a.partial.weight += first;
    a.partial.k += first;
  }
  return a;
}

}  // namespace

// `a` says where the result goes: a.out.y, or a.partial for an unfinished one.
void CudaBackend::attend(cuda::AttentionArgs a, int64_t tokens, int64_t longest) {
  if (tokens == 0 || a.n_seqs == 0) return;
  const bool flash = cuda::attention_flash_takes(a);
  const bool tensor_cores = a.q_type == DType::kBF16 && a.cache_type != DType::kF32;
  choose_splits(a, tokens, longest, properties_.multiProcessorCount,
                flash ? cuda::kFlashRows : cuda::attention_block_rows(int64_t{a.max_q_len} * a.group, a.reproducible));
  auto launch = [&](const cuda::AttentionArgs& args) {
    if (flash) {
      cuda::attention_flash(stream_, args);
    } else {
      tensor_cores ? cuda::attention_mma(stream_, args) : cuda::attention_simt(stream_, args);
    }
  };
  const int parts = a.n_stripes * a.n_splits;
  if (parts == 1) {
    launch(a);
    return;
  }
  const int64_t unit = a.n_kv > 1 ? a.group : 1, heads = int64_t{a.n_kv} * a.group;
  const int64_t unit_bytes = unit * parts * tokens * a.dv * int64_t{sizeof(float)};
  const int64_t step = std::max<int64_t>(1, std::min(heads / unit, kPartBytes / std::max<int64_t>(unit_bytes, 1))) * unit;
  for (int64_t first = 0; first < heads; first += step) {
    const int64_t n = std::min(step, heads - first);
    const ScratchScope temporary(*this);
    const Tensor sum = scratch(DType::kF32, {parts, tokens, n, a.dv}), weight = scratch(DType::kF32, {parts, tokens, n});
    const Tensor k = scratch(DType::kF32, {parts, tokens, n});
    const cuda::AttentionArgs whole = of_heads(a, first, n);
    cuda::AttentionArgs some = whole;
    some.partial = {sum.as<float>(),  weight.as<float>(), k.as<float>(), sum.stride[0],   sum.stride[1], sum.stride[2],
                    weight.stride[0], weight.stride[1],   k.stride[0],   k.stride[1]};
    launch(some);
    cuda::merge_parts(stream_, some.partial, parts, tokens, n, a.dv, whole.out, whole.partial);
  }
}

// Latent attention of a few new tokens a sequence, where the kernels for it can serve: false leaves it to the others.
bool CudaBackend::latent_decode(Tensor y, Tensor lse, Tensor q, const KvCache& cache, const AttentionSpec& spec,
                                const BatchMeta& batch) {
  constexpr int kMostTokens = 8;  // of a sequence; a prefill's rows are cheaper in the expanded form
  const auto dense = [](const Tensor& x) {
    return x.stride[2] == 1 && x.stride[1] == x.dim(2) && x.stride[0] == x.dim(1) * x.dim(2);
  };
  const bool float8 = cache.k.dtype == DType::kF8E4M3;
  const bool served = mla_decode_supported(properties_.major, properties_.minor, cache.k.dim(2), y.dim(2), batch.shard.block_size) &&
                      spec.n_stripes == 1 && batch.max_q_len <= kMostTokens && cache.k.dim(1) == 1 &&
                      cache.k.data == cache.v.data && dense(q) && dense(y) && dense(cache.k) && q.dtype == DType::kBF16 &&
                      y.dtype == DType::kBF16 && (float8 || cache.k.dtype == DType::kBF16) &&
                      (!lse || lse.stride[0] == lse.dim(1)) && batch.block_table.dim(1) == batch.block_table.stride[0];
  if (!served) return false;
  const int heads = static_cast<int>(q.dim(1));
  const size_t bytes = mla_decode_workspace(batch.n_seqs, batch.max_q_len, heads);
  const ScratchScope temporary(*this);
  const Tensor workspace = scratch(DType::kU8, {static_cast<int64_t>(bytes)});
  CUDA_CHECK(mla_decode({.q = q.data, .cache = cache.k.data, .float8 = float8, .cache_scale = cache.scale,
                         .softmax_scale = spec.scale, .out = y.data, .lse = lse ? lse.as<float>() : nullptr,
                         .q_start = batch.q_start.as<int32_t>(), .positions = batch.positions.as<int32_t>(),
                         .kv_len = batch.kv_len.as<int32_t>(), .block_table = batch.block_table.as<int32_t>(),
                         .n_tokens = static_cast<int>(q.dim(0)), .n_seqs = batch.n_seqs, .n_heads = heads,
                         .table_columns = static_cast<int>(batch.block_table.dim(1)), .max_q_len = batch.max_q_len,
                         .n_slots = cache.k.dim(0), .shard = batch.shard, .workspace = workspace.data},
                        stream_));
  return true;
}

void CudaBackend::attention(Tensor y, Tensor lse, Tensor q, const KvCache& cache, const AttentionSpec& spec,
                            const BatchMeta& batch) {
  check_attention(q, cache, spec, batch, y.dim(2));
  if (latent_decode(y, lse, q, cache, spec, batch)) return;
  cuda::AttentionArgs a = arguments(q, cache, spec, batch, y.dim(2));
  finish_into(a, y, lse);
  attend(a, y.dim(0), batch.shard.table_columns(batch.max_kv_len) * batch.shard.block_size);
}

void CudaBackend::attention_partial(Tensor sum, Tensor weight, Tensor k, Tensor q, const KvCache& cache,
                                    const AttentionSpec& spec, const BatchMeta& batch) {
  check_attention(q, cache, spec, batch, sum.dim(2));
  cuda::AttentionArgs a = arguments(q, cache, spec, batch, sum.dim(2));
  a.partial = {sum.as<float>(), weight.as<float>(), k.as<float>(), 0, sum.stride[0], sum.stride[1], 0,
               weight.stride[0], 0, k.stride[0]};
  attend(a, sum.dim(0), batch.shard.table_columns(batch.max_kv_len) * batch.shard.block_size);
}

// Every query head is its own key head here; what heads share has a stride of 0.
void CudaBackend::attention_rows(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor k_rope, Tensor v, const RowSpans& spans,
                                 float scale) {
  const int64_t dn = k.dim(2), dr = k_rope ? k_rope.dim(1) : 0;
  BRAID_CHECK(q.dim(2) == dn + dr && k.dtype == v.dtype && k.dtype == q.dtype && v.dim(2) <= 512 && q.dim(2) <= 1024);
  cuda::AttentionArgs a;
  a.q = q.data;
  a.k = k.data;
  a.v = v.data;
  a.k_rope = k_rope.data;
  a.q_type = a.cache_type = q.dtype;
  a.q_token = q.stride[0];
  a.q_head = q.stride[1];
  a.k_slot = k.stride[0];
  a.k_head = k.stride[1];
  a.v_slot = v.stride[0];
  a.v_head = v.stride[1];
  a.rope_row = k_rope ? k_rope.stride[0] : 0;
  a.q_start = spans.q_start.as<int32_t>();
  a.kv_start = spans.kv_start.as<int32_t>();
  a.causal = spans.causal;
  a.n_seqs = spans.n_seqs;
  a.max_q_len = spans.max_q_len;
  a.n_kv = static_cast<int>(q.dim(1));
  a.dk = static_cast<int>(q.dim(2));
  a.dn = static_cast<int>(dn);
  a.dv = static_cast<int>(v.dim(2));
  a.scale_log2 = scale * kLog2E;
  a.reproducible = options_.reproducible;
  finish_into(a, y, lse);
  attend(a, y.dim(0), spans.max_kv_len);
}

void CudaBackend::check_attention(const Tensor& q, const KvCache& cache, const AttentionSpec& spec,
                                  const BatchMeta& batch, int64_t dv) const {
  const int ranks = batch.shard.n_ranks;
  BRAID_CHECK(spec.n_stripes == 1 || (spec.n_stripes == 8 && 8 % ranks == 0), "{} stripes on {} ranks", spec.n_stripes,
              ranks);
  BRAID_CHECK(cache.k.dtype == cache.v.dtype && q.dim(1) % cache.k.dim(1) == 0);
  BRAID_CHECK(dv <= 512 && q.dim(2) <= 1024, "heads of {}/{} lanes", q.dim(2), dv);
}

void CudaBackend::merge_partials(Tensor y, Tensor lse, Tensor sums, Tensor weights, Tensor ks, float value_scale) {
  BRAID_CHECK(sums.dim(0) <= 64, "partials of {} ranks", sums.dim(0));
  if (y.n_elements() == 0) return;
  const cuda::PartialSums parts{sums.as<float>(), weights.as<float>(), ks.as<float>(),    sums.stride[0],
                                sums.stride[1],   sums.stride[2],      weights.stride[0], weights.stride[1],
                                ks.stride[0],     ks.stride[1]};
  const cuda::FinishedRows out{y.data,      y.dtype, y.stride[0], y.stride[1], lse ? lse.as<float>() : nullptr,
                               lse ? lse.stride[0] : 0, value_scale};
  cuda::merge_parts(stream_, parts, static_cast<int>(sums.dim(0)), y.dim(0), y.dim(1), y.dim(2), out, {});
}

void CudaBackend::merge_results(Tensor y, Tensor lse, Tensor values, Tensor lses, int first) {
  BRAID_CHECK(lses.dim(0) <= 64 && first + values.dim(0) <= lses.dim(0), "values of ranks [{}, {}) of {}", first,
              first + values.dim(0), lses.dim(0));
  if (y.n_elements() > 0) cuda::merge_results(stream_, y, lse, values, lses, first);
}

}  // namespace braid
