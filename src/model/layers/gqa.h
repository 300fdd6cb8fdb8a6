// Grouped-query attention: N query heads share K key/value heads; optional norms of each q and k head before rotation.
#pragma once
#include "model/layers/attention.h"
#include "model/layers/row_parallel.h"

namespace braid {

class GroupedAttention final : public Attention {
 public:
  GroupedAttention(const Scope& s, const RopeTable& rope);
  void operator()(Tensor y, Tensor x, const KvCache&, const BatchMeta&) const override;
  CacheSpec cache() const override { return {.heads = kv_heads_, .k_dim = head_dim_, .v_dim = head_dim_}; }

 private:
  Backend* backend_;
  RopeTable rope_;
  int64_t heads_, kv_heads_, head_dim_;  // heads on this rank
  float eps_;
  AttentionSpec spec_;
  LinearWeight qkv_;        // [(N + 2K) D, H]
  Tensor q_norm_, k_norm_;  // float32 [D], or empty
  RowParallel out_;
};

}  // namespace braid
