// Grouped-query attention: N query heads share K key/value heads; optional norms of each q and k head before rotation.
// Where the rows are spread over a decode-context-parallel group, its ranks hold the same key/value heads: through the cache
// they attend with the group's query heads, from rows with their own.
#pragma once
#include "model/layers/context_exchange.h"
#include "model/layers/row_attention.h"
#include "model/layers/row_parallel.h"

namespace braid {

class GroupedAttention final : public Attention, private RowSource {
 public:
  GroupedAttention(const Scope& s, const RopeTable& rope);
  void operator()(Tensor y, Tensor x, const KvCache&, const BatchMeta&) const override;
  CacheSpec cache() const override { return {.heads = kv_heads_, .k_dim = head_dim_, .v_dim = head_dim_}; }
  void count(ContextUse& use) const override { exchange_.count(use); }

 private:
  void through_cache(Tensor o /*[T, N, D]*/, Tensor q /*[T, N_q, D]*/, const KvCache&, const BatchMeta&) const;
  RowKeys of_window(const KvCache&, const ContextWindow&) const override;
  RowKeys keys(Tensor k /*[J, 1, D]*/, Tensor v) const;  // one key/value head for all query heads

  Backend* backend_;
  RopeTable rope_;
  DType compute_;
  ContextExchange exchange_;
  int64_t heads_, kv_heads_, head_dim_;  // N and K of this rank
  int64_t query_heads_;                  // N_q that it computes: N, or those of its group
  float eps_;
  LinearWeight qkv_;        // [(N_q + 2K) D, H]
  Tensor q_norm_, k_norm_;  // float32 [D], or empty
  RowParallel out_;
};

}  // namespace braid
