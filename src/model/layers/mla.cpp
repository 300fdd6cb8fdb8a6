#include "model/layers/mla.h"

#include <algorithm>
#include <cstddef>

namespace braid {
namespace {

struct UpProjections {
  HeadWeight k, v, k_expand, v_expand;
};

// The key half for the heads of the query projection, the value half for those that it is applied to: of this rank, or
// of its group. To expand latents, the key half of the own heads once more, from the other side.
UpProjections load_up_projections(const Scope& s, bool group_keys, bool group_values) {
  const ModelConfig& c = s.config();
  const int64_t latent = c.mla->kv_lora_rank, nope = c.mla->qk_nope, v_dim = c.mla->v_head;
  const bool group = group_keys || group_values;
  const Placement place = s.parallel().place(group ? Role::kGroupHeads : Role::kHeads);
  const int64_t heads = c.n_heads / place.parts, own = c.n_heads / s.parallel().layout().tp;
  const int64_t first = group ? s.parallel().where().dcp * own : 0;
  const Range rows = part_of(c.n_heads * (nope + v_dim), place.part, place.parts);
  const Scope::HostWeight kv_b = (s / "kv_b_proj").host_weight(c.n_heads * (nope + v_dim), latent, rows, {0, latent});
  // Per head, d_n key rows and then d_v value rows, each r wide. The key half is applied to the query from the other side.
  Tensor k = kv_b.tensor, v;
  k.rank = 3;
  k.shape = {heads, nope, latent};
  k.stride = {(nope + v_dim) * latent, latent, 1};
  v = k;
  v.shape[1] = v_dim;
  v.data = static_cast<std::byte*>(k.data) + nope * latent * size_of(k.dtype);
  UpProjections up;
  up.k = s.backend().pack_heads(group_keys ? k : k.rows(first, first + own), true);
  up.v = s.backend().pack_heads(group_values ? v : v.rows(first, first + own), false);
  if (!s.parallel().context().from_rows) return up;
  up.k_expand = s.backend().pack_heads(k.rows(first, first + own), false);
  const int64_t first_value = group_values ? first : 0;
  up.v_expand = up.v.of_heads(first_value, first_value + own);
  return up;
}

}  // namespace

LatentAttention::LatentAttention(const Scope& s, const RopeTable& rope)
    : backend_(&s.backend()), rope_(rope), compute_(s.context().compute),
      exchange_(s.backend(), s.parallel(),
                {.scale = static_cast<float>(s.config().softmax_scale()), .n_stripes = s.parallel().reproducible() ? Parallel::kCanonicalSlices : 1}),
      heads_(s.config().n_heads / s.parallel().layout().tp),
      query_heads_(exchange_.replicates_queries() ? heads_ * exchange_.group_size() : heads_), latent_(s.config().mla->kv_lora_rank),
      nope_(s.config().mla->qk_nope), rope_dim_(s.config().mla->qk_rope), v_dim_(s.config().mla->v_head),
      eps_(s.config().mla->latent_norm_eps),
      out_(s / "o_proj", Role::kAttnOut, s.config().hidden, s.config().n_heads * v_dim_, "attn_out") {
  const ModelConfig& c = s.config();
  const int64_t q_rows = c.n_heads * (nope_ + rope_dim_);
  const Role query = exchange_.replicates_queries() ? Role::kGroupHeads : Role::kHeads;
  std::vector<Scope::Part> from_x;
  if (c.mla->q_lora_rank > 0) {
    from_x.push_back({"q_a_proj", Role::kReplicated, c.mla->q_lora_rank});
    q_norm_.emplace(s / "q_a_layernorm", c.mla->q_lora_rank, eps_);
    q_b_ = (s / "q_b_proj").linear(query, q_rows, c.mla->q_lora_rank);
  } else {
    from_x.push_back({"q_proj", query, q_rows});
  }
  from_x.push_back({"kv_a_proj_with_mqa", Role::kReplicated, latent_ + rope_dim_});
  from_x_ = s.linear(from_x, c.hidden);
  const int64_t first_of_kv = from_x_.n - latent_ - rope_dim_;
  kv_a_ = backend_->linear_rows(from_x_, first_of_kv, from_x_.n);
  if (!q_norm_) q_b_ = backend_->linear_rows(from_x_, 0, first_of_kv);
  kv_norm_ = (s / "kv_a_layernorm").norm(latent_);
  const UpProjections up = load_up_projections(s, exchange_.replicates_queries(), exchange_.projects_before_merge());
  k_up_ = up.k;
  v_up_ = up.v;
  k_expand_ = up.k_expand;
  v_expand_ = up.v_expand;
  const int64_t own = heads_ * (nope_ + rope_dim_), first = query_heads_ > heads_ ? s.parallel().where().dcp * own : 0;
  q_own_ = backend_->linear_rows(q_norm_ ? q_b_ : from_x_, first, first + own);
}

// Rows of a prompt that attend to rows need the queries of the own heads alone.
bool LatentAttention::wants_few_queries(const BatchMeta& b) const {
  return b.parts && !q_norm_ && query_heads_ > heads_ && kv_a_.packed && q_b_.packed && q_own_.packed;
}

Tensor LatentAttention::group_query(const Query& query) const {
  const Tensor& in = query.in;
  if (query.made) return in.split_last(query_heads_, nope_ + rope_dim_);
  Tensor q = backend_->scratch(in.dtype, {in.dim(0), q_b_.n});
  backend_->linear(q, in, q_b_);
  return q.view({in.dim(0), query_heads_, nope_ + rope_dim_});
}

Tensor LatentAttention::own_query(const Query& query) const {
  const Tensor& in = query.in;
  const int64_t d = nope_ + rope_dim_, own = heads_ * d;
  if (!query.made && q_own_.packed) {
    Tensor q = backend_->scratch(in.dtype, {in.dim(0), own});
    backend_->linear(q, in, q_own_);
    return q.view({in.dim(0), heads_, d});
  }
  const int64_t first = query_heads_ > heads_ ? exchange_.group_rank() * own : 0;
  const Tensor group = query.made ? in : group_query(query).view({in.dim(0), query_heads_ * d});
  return group.columns(first, first + own).split_last(heads_, d);
}

void LatentAttention::operator()(Tensor y, Tensor x, const KvCache& cache, const BatchMeta& b) const {
  const int64_t n = x.dim(0);
  Query query{x};
  Tensor kv_a;
  if (wants_few_queries(b)) {
    kv_a = backend_->scratch(x.dtype, {n, kv_a_.n});
    backend_->linear(kv_a, x, kv_a_);
  } else {
    const Tensor all = backend_->scratch(x.dtype, {n, from_x_.n});
    backend_->linear(all, x, from_x_);
    kv_a = all.columns(from_x_.n - latent_ - rope_dim_, from_x_.n);
    const Tensor rest = all.columns(0, from_x_.n - latent_ - rope_dim_);
    query = q_norm_ ? Query{(*q_norm_)(rest)} : Query{rest, true};
  }
  Tensor o = backend_->scratch(x.dtype, {n, heads_, v_dim_});
  for_parts(*backend_, b, [&](const StepPart* part, const BatchMeta& batch, int64_t begin, int64_t end) {
    const Tensor some_o = o.rows(begin, end), some_kv = kv_a.rows(begin, end);
    const Query some = query.rows(begin, end);
    part ? from_rows(some_o, some, some_kv, cache, *part) : through_cache(some_o, some, some_kv, cache, batch);
  });
  out_(y, o.view({n, heads_ * v_dim_}));
}

void LatentAttention::through_cache(Tensor o, const Query& query, Tensor kv_a, const KvCache& cache, const BatchMeta& b) const {
  const Tensor& in = query.in;
  const int64_t n = in.dim(0);
  Tensor q = group_query(query);
  Tensor absorbed = backend_->scratch(in.dtype, {n, query_heads_, latent_ + rope_dim_});
  backend_->head_linear(absorbed.columns(0, latent_), q.columns(0, nope_), k_up_);
  backend_->mla_rope_cache(absorbed.columns(latent_, latent_ + rope_dim_), q.columns(nope_, nope_ + rope_dim_), kv_a, kv_norm_, eps_,
                           rope_, cache, b);
  if (!exchange_.replicates_queries()) absorbed = exchange_.gather_queries(absorbed);
  if (exchange_.projects_before_merge()) return exchange_.attend(o, absorbed, cache, b, latent_, &v_up_);
  Tensor latent = backend_->scratch(in.dtype, {n, heads_, latent_});
  exchange_.attend(latent, absorbed, cache, b, latent_, nullptr);
  backend_->head_linear(o, latent, v_up_);
}

void LatentAttention::from_rows(Tensor o, const Query& query, Tensor kv_a, const KvCache& cache, const StepPart& part) const {
  Tensor q = own_query(query);
  const Tensor lanes = q.columns(nope_, nope_ + rope_dim_);
  backend_->mla_rope_cache(lanes, lanes, kv_a, kv_norm_, eps_, rope_, cache, part.batch);
  attend_rows(*backend_, o, q, expand(kv_a), cache, part, *this, exchange_.scale());
}

RowKeys LatentAttention::expand(Tensor latents) const {
  const int64_t n = latents.dim(0);
  Tensor latent = latents.columns(0, latent_);  // the same for every head
  latent.rank = 3;
  latent.shape = {n, heads_, latent_};
  latent.stride = {latents.stride[0], 0, 1};
  const Tensor k = backend_->scratch(latents.dtype, {n, heads_, nope_}), v = backend_->scratch(latents.dtype, {n, heads_, v_dim_});
  backend_->head_linear(k, latent, k_expand_);
  backend_->head_linear(v, latent, v_expand_);
  return {k, latents.columns(latent_, latent_ + rope_dim_), v};
}

RowKeys LatentAttention::of_window(const KvCache& cache, const ContextWindow& w) const {
  const Tensor rows = gather_window(*backend_, exchange_.group(), {cache}, w, compute_);
  return expand(rows.view({w.n_tokens, latent_ + rope_dim_}));
}

}  // namespace braid
