// Multi-head latent attention: the cache keeps one row per token, [normed latent | rotated key lanes]. DeepSeek-V2, section
// 2.1. Through the cache it runs absorbed, the key and value up-projections folded into the query and the output; where
// the rows are spread over a decode-context-parallel group, with the group's query heads. Sequences with many new tokens
// attend to rows instead: the up-projections expand latents, the cached ones too, to keys and values of the own heads.
#pragma once
#include <optional>

#include "model/layers/context_exchange.h"
#include "model/layers/norm.h"
#include "model/layers/row_attention.h"
#include "model/layers/row_parallel.h"

namespace braid {

class LatentAttention final : public Attention, private RowSource {
 public:
  LatentAttention(const Scope& s, const RopeTable& rope);
  void operator()(Tensor y, Tensor x, const KvCache&, const BatchMeta&) const override;
  CacheSpec cache() const override { return {.heads = 1, .k_dim = latent_ + rope_dim_, .v_dim = latent_, .v_in_k = true}; }
  void count(ContextUse& use) const override { exchange_.count(use); }

 private:
  // Rows from which queries come: what q_b_ reads (the query's normed latent, or x), or the group's queries, made already.
  struct Query {
    Tensor in;
    bool made = false;
    Query rows(int64_t begin, int64_t end) const { return {in.rows(begin, end), made}; }
  };
  bool wants_few_queries(const BatchMeta&) const;
  Tensor group_query(const Query&) const;  // [T, N_q, d_n + d_r]
  Tensor own_query(const Query&) const;    // [T, N, d_n + d_r]
  // o [T, N, d_v] of some rows of the step.
  void through_cache(Tensor o, const Query&, Tensor kv_a, const KvCache&, const BatchMeta&) const;
  void from_rows(Tensor o, const Query&, Tensor kv_a, const KvCache&, const StepPart&) const;
  RowKeys expand(Tensor latents /*[J, r + d_r]*/) const;
  RowKeys of_window(const KvCache&, const ContextWindow&) const override;

  Backend* backend_;
  RopeTable rope_;
  DType compute_;
  ContextExchange exchange_;
  int64_t heads_;        // N, of this rank
  int64_t query_heads_;  // N_q that its query projection makes: N, or those of its group
  int64_t latent_, nope_, rope_dim_, v_dim_;
  float eps_;
  LinearWeight from_x_;              // [A + r + d_r, H], all that reads x: A rows for the query's latent or the queries
  LinearWeight kv_a_;                // its last r + d_r rows, as q_own_
  std::optional<RmsNorm> q_norm_;    // with a query latent
  LinearWeight q_b_;                 // from the query latent; without one the first rows of from_x_, as q_own_
  LinearWeight q_own_;               // the rows of q_b_ of this rank's heads; empty where they cannot be cut out
  Tensor kv_norm_;                   // float32 [r]
  HeadWeight k_up_, v_up_;           // [N_q, r, d_n] and [N, d_v, r], the latter for the group's heads before a merge
  HeadWeight k_expand_, v_expand_;   // [N, d_n, r]; [N, d_v, r], part of v_up_. Empty where nothing attends to rows
  RowParallel out_;
};

}  // namespace braid
