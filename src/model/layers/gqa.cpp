#include "model/layers/gqa.h"

#include <algorithm>

#include "base/error.h"

namespace braid {

GroupedAttention::GroupedAttention(const Scope& s, const RopeTable& rope)
    : backend_(&s.backend()), rope_(rope), compute_(s.context().compute),
      exchange_(s.backend(), s.parallel(),
                {.scale = static_cast<float>(s.config().softmax_scale()), .n_stripes = s.parallel().reproducible() ? Parallel::kCanonicalSlices : 1}),
      heads_(s.config().n_heads / s.parallel().layout().tp),
      kv_heads_(std::max<int64_t>(1, s.config().n_kv_heads / s.parallel().layout().tp)), head_dim_(s.config().head_dim),
      query_heads_(exchange_.replicates_queries() ? heads_ * exchange_.group_size() : heads_), eps_(s.config().norm_eps),
      out_(s / "o_proj", Role::kAttnOut, s.config().hidden, s.config().n_heads * head_dim_, "attn_out") {
  const ModelConfig& c = s.config();
  const int64_t kv_rows = c.n_kv_heads * head_dim_;
  qkv_ = s.linear({{"q_proj", exchange_.replicates_queries() ? Role::kGroupHeads : Role::kHeads, c.n_heads * head_dim_},
                   {"k_proj", Role::kKvHeads, kv_rows, c.n_kv_heads},
                   {"v_proj", Role::kKvHeads, kv_rows, c.n_kv_heads}},
                  c.hidden, c.attention_bias);
  if (c.qk_norm) {
    q_norm_ = (s / "q_norm").norm(head_dim_);
    k_norm_ = (s / "k_norm").norm(head_dim_);
  }
}

void GroupedAttention::operator()(Tensor y, Tensor x, const KvCache& cache, const BatchMeta& b) const {
  const int64_t n = x.dim(0), q_lanes = query_heads_ * head_dim_, kv_lanes = kv_heads_ * head_dim_;
  Tensor qkv = backend_->scratch(x.dtype, {n, qkv_.n});
  backend_->linear(qkv, x, qkv_);
  Tensor q = qkv.columns(0, q_lanes).split_last(query_heads_, head_dim_);
  Tensor k = qkv.columns(q_lanes, q_lanes + kv_lanes).split_last(kv_heads_, head_dim_);
  Tensor v = qkv.columns(q_lanes + kv_lanes, q_lanes + 2 * kv_lanes).split_last(kv_heads_, head_dim_);
  backend_->gqa_rope_cache(q, k, v, q_norm_, k_norm_, eps_, rope_, cache, b);
  Tensor o = backend_->scratch(x.dtype, {n, heads_, head_dim_});
  const int64_t first = query_heads_ > heads_ ? exchange_.group_rank() * heads_ * head_dim_ : 0;
  const Tensor own = qkv.columns(first, first + heads_ * head_dim_).split_last(heads_, head_dim_);
  for_parts(*backend_, b, [&](const StepPart* part, const BatchMeta& batch, int64_t begin, int64_t end) {
    if (!part) return through_cache(o.rows(begin, end), q.rows(begin, end), cache, batch);
    attend_rows(*backend_, o.rows(begin, end), own.rows(begin, end), keys(k.rows(begin, end), v.rows(begin, end)), cache, *part, *this,
                exchange_.scale());
  });
  out_(y, o.view({n, heads_ * head_dim_}));
}

void GroupedAttention::through_cache(Tensor o, Tensor q, const KvCache& cache, const BatchMeta& b) const {
  if (!exchange_.replicates_queries()) q = exchange_.gather_queries(q);
  exchange_.attend(o, q, cache, b, head_dim_, nullptr);
}

RowKeys GroupedAttention::keys(Tensor k, Tensor v) const {
  BRAID_CHECK(kv_heads_ == 1, "{} key/value heads on a rank of a group", kv_heads_);
  k.shape[1] = v.shape[1] = heads_;
  k.stride[1] = v.stride[1] = 0;
  return {k, {}, v};
}

RowKeys GroupedAttention::of_window(const KvCache& cache, const ContextWindow& w) const {
  KvCache values = cache;
  values.k = cache.v;
  const Tensor rows = gather_window(*backend_, exchange_.group(), {cache, values}, w, compute_).view({w.n_tokens, 2 * head_dim_});
  return keys(rows.columns(0, head_dim_).split_last(1, head_dim_), rows.columns(head_dim_, 2 * head_dim_).split_last(1, head_dim_));
}

}  // namespace braid
