// Gated feed-forward network: down(silu(gate x) * up x).
#pragma once
#include "model/layers/scope.h"

namespace braid {

class GatedMlp {
 public:
  GatedMlp(const Scope& s, int64_t width, const char* name = "mlp_down")
      : backend_(&s.backend()), tp_(&s.parallel().tp()),
        weights_{s.linear({{"gate_proj", Role::kGateUp, width}, {"up_proj", Role::kGateUp, width}}, s.config().hidden),
                 (s / "down_proj").row_parallel(Role::kDown, s.config().hidden, width)},
        name_(name) {}

  const GatedWeights& weights() const { return weights_; }
  void partial(Tensor y, Tensor x) const { backend_->gated_network(y, x, weights_); }  // y float32 [T, H], to be summed over tp
  void operator()(Tensor y, Tensor x) const {  // y whole
    partial(y, x);
    tp_->all_reduce(y, name_);
  }

 private:
  Backend* backend_;
  Comm* tp_;
  GatedWeights weights_;
  const char* name_;
};

}  // namespace braid
