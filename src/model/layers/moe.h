// Mixture of experts: a router chooses top_k experts per token; every rank computes its columns of all experts, and of the
// shared expert where the model has one; one sum over tp completes both.
#pragma once
#include <optional>

#include "model/layers/mlp.h"

namespace braid {

class Moe {
 public:
  explicit Moe(const Scope& s);
  void operator()(Tensor y, Tensor x) const;  // x [T, H] -> y float32 [T, H], whole

 private:
  Backend* backend_;
  const Parallel* parallel_;
  RouterSpec router_;
  LinearWeight gate_;   // [E, H]
  Tensor choice_bias_;  // float32 [E], added for the choice only; or empty
  ExpertWeights experts_;
  std::optional<GatedMlp> shared_;
};

}  // namespace braid
