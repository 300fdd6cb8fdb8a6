// What the engine needs to know of an attention layer: what it keeps per token, and how to run it.
#pragma once
#include "ops/backend.h"

namespace braid {

// One layer's KV rows on this rank, per token.
struct CacheSpec {
  int64_t heads = 0;     // key/value heads held by this rank
  int64_t k_dim = 0, v_dim = 0;
  bool v_in_k = false;   // values are the first v_dim lanes of the key row (latent attention)
  int64_t lanes() const { return heads * (k_dim + (v_in_k ? 0 : v_dim)); }
};

// How many layers use what a decode-context-parallel group may do.
struct ContextUse {
  int layers = 0;                 // whose rows are spread over a group
  int replicated_queries = 0;     // that compute the group's query heads on every rank
  int fp8_queries = 0;            // that gather queries as float8
  int projected_before_merge = 0; // that apply the value up-projection before the exchange
};

class Attention {
 public:
  virtual ~Attention() = default;
  virtual void operator()(Tensor y /*float32 [T, H], whole*/, Tensor x /*[T, H]*/, const KvCache&, const BatchMeta&) const = 0;
  virtual CacheSpec cache() const = 0;
  virtual void count(ContextUse&) const = 0;  // adds this layer
};

}  // namespace braid
