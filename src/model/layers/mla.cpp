#include "model/layers/mla.h"

#include <algorithm>
#include <cstddef>
#include <memory>

namespace braid {
namespace {

struct UpProjections {
  HeadWeight k, v;
};

// The key half for the heads of the query projection, the value half for those that it is applied to: of this rank, or
// of its group.
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
  return {s.backend().pack_heads(group_keys ? k : k.rows(first, first + own), true),
          s.backend().pack_heads(group_values ? v : v.rows(first, first + own), false)};
}

}  // namespace

LatentAttention::LatentAttention(const Scope& s, const RopeTable& rope)
    : backend_(&s.backend()), rope_(rope),
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
  if (c.mla->q_lora_rank > 0) {
    q_a_ = (s / "q_a_proj").linear(Role::kReplicated, c.mla->q_lora_rank, c.hidden);
    q_norm_.emplace(s / "q_a_layernorm", c.mla->q_lora_rank, eps_);
    q_b_ = (s / "q_b_proj").linear(query, q_rows, c.mla->q_lora_rank);
  } else {
    q_b_ = (s / "q_proj").linear(query, q_rows, c.hidden);
  }
  kv_a_ = (s / "kv_a_proj_with_mqa").linear(Role::kReplicated, latent_ + rope_dim_, c.hidden);
  kv_norm_ = (s / "kv_a_layernorm").norm(latent_);
  const UpProjections up = load_up_projections(s, exchange_.replicates_queries(), exchange_.projects_before_merge());
  k_up_ = up.k;
  v_up_ = up.v;
}

Tensor LatentAttention::query(Tensor x) const {
  Tensor in = x;
  if (q_a_) {
    Tensor latent = backend_->scratch(x.dtype, {x.dim(0), q_a_->n});
    backend_->linear(latent, x, *q_a_);
    in = (*q_norm_)(latent);
  }
  Tensor q = backend_->scratch(x.dtype, {x.dim(0), q_b_.n});
  backend_->linear(q, in, q_b_);
  return q.view({x.dim(0), query_heads_, nope_ + rope_dim_});
}

void LatentAttention::operator()(Tensor y, Tensor x, const KvCache& cache, const BatchMeta& b) const {
  const int64_t n = x.dim(0);
  Tensor q = query(x);
  Tensor kv_a = backend_->scratch(x.dtype, {n, kv_a_.n});
  backend_->linear(kv_a, x, kv_a_);

  Tensor absorbed = backend_->scratch(x.dtype, {n, query_heads_, latent_ + rope_dim_});
  backend_->head_linear(absorbed.columns(0, latent_), q.columns(0, nope_), k_up_);
  backend_->mla_rope_cache(absorbed.columns(latent_, latent_ + rope_dim_), q.columns(nope_, nope_ + rope_dim_), kv_a, kv_norm_, eps_,
                           rope_, cache, b);
  if (!exchange_.replicates_queries()) absorbed = exchange_.gather_queries(absorbed);

  Tensor o = backend_->scratch(x.dtype, {n, heads_, v_dim_});
  if (exchange_.projects_before_merge()) {
    exchange_.attend(o, absorbed, cache, b, latent_, &v_up_);
  } else {
    Tensor latent = backend_->scratch(x.dtype, {n, heads_, latent_});
    exchange_.attend(latent, absorbed, cache, b, latent_, nullptr);
    backend_->head_linear(o, latent, v_up_);
  }
  out_(y, o.view({n, heads_ * v_dim_}));
}

}  // namespace braid
