// A loaded model on one rank: a forward pass from a batch to logits, and what its layers keep per token.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "model/layers/attention.h"
#include "model/layers/scope.h"

namespace braid {

class Model {
 public:
  virtual ~Model() = default;
  virtual Tensor forward(const BatchMeta&, std::span<const KvCache> caches) const = 0;  // float32 [R, V]
  virtual std::vector<CacheSpec> caches() const = 0;                                    // one per layer
  virtual ContextUse context_use() const = 0;
};

// Loads this rank's part. `max_positions` sizes the rotation tables.
std::unique_ptr<Model> make_model(const LoadContext&, int64_t max_positions);

// Tensors that a checkpoint may hold and the model does not read, each with the reason.
std::vector<SkipRule> skipped_tensors(const ModelConfig&);

}  // namespace braid
