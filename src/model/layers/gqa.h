// Grouped-query attention: N query heads share K key/value heads; optional norms of each q and k head before rotation.
// Where the rows are spread over a decode-context-parallel group, its ranks hold the same key/value heads and every phase
// attends with the group's query heads.
#pragma once
#include "model/layers/context_exchange.h"
#include "model/layers/row_parallel.h"

namespace braid {

class GroupedAttention final : public Attention {
 public:
  GroupedAttention(const Scope& s, const RopeTable& rope);
  void operator()(Tensor y, Tensor x, const KvCache&, const BatchMeta&) const override;
  CacheSpec cache() const override { return {.heads = kv_heads_, .k_dim = head_dim_, .v_dim = head_dim_}; }
  void count(ContextUse& use) const override { exchange_.count(use); }

 private:
  Backend* backend_;
  RopeTable rope_;
  ContextExchange exchange_;
  int64_t heads_, kv_heads_, head_dim_;  // N and K of this rank
  int64_t query_heads_;                  // N_q that it computes: N, or those of its group
  float eps_;
  LinearWeight qkv_;        // [(N_q + 2K) D, H]
  Tensor q_norm_, k_norm_;  // float32 [D], or empty
  RowParallel out_;
};

}  // namespace braid
