// Multi-head latent attention in its absorbed form: the cache keeps one row per token, [normed latent | rotated key
// lanes], and the key and value up-projections are folded into the query and the output. DeepSeek-V2, section 2.1.
// Where the rows are spread over a decode-context-parallel group, every phase attends with the group's query heads.
#pragma once
#include <optional>

#include "model/layers/context_exchange.h"
#include "model/layers/norm.h"
#include "model/layers/row_parallel.h"

namespace braid {

class LatentAttention final : public Attention {
 public:
  LatentAttention(const Scope& s, const RopeTable& rope);
  void operator()(Tensor y, Tensor x, const KvCache&, const BatchMeta&) const override;
  CacheSpec cache() const override { return {.heads = 1, .k_dim = latent_ + rope_dim_, .v_dim = latent_, .v_in_k = true}; }
  void count(ContextUse& use) const override { exchange_.count(use); }

 private:
  Tensor query(Tensor x) const;  // [T, N_q, d_n + d_r]

  Backend* backend_;
  RopeTable rope_;
  ContextExchange exchange_;
  int64_t heads_;        // N, of this rank
  int64_t query_heads_;  // N_q that its query projection makes: N, or those of its group
  int64_t latent_, nope_, rope_dim_, v_dim_;
  float eps_;
  std::optional<LinearWeight> q_a_;  // with a query latent
  std::optional<RmsNorm> q_norm_;
  LinearWeight q_b_;                 // from the query latent, or from x
  LinearWeight kv_a_;                // [r + d_r, H], replicated
  Tensor kv_norm_;                   // float32 [r]
  HeadWeight k_up_, v_up_;           // [N_q, r, d_n] and [N, d_v, r], the latter for the group's heads before a merge
  RowParallel out_;
};

}  // namespace braid
