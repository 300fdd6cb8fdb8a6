// Gated feed-forward network: down(silu(gate x) * up x).
#pragma once
#include "model/layers/row_parallel.h"

namespace braid {

class GatedMlp {
 public:
  GatedMlp(const Scope& s, int64_t width, const char* name = "mlp_down")
      : backend_(&s.backend()),
        gate_up_(s.linear({{"gate_proj", Role::kGateUp, width}, {"up_proj", Role::kGateUp, width}}, s.config().hidden)),
        down_(s / "down_proj", Role::kDown, s.config().hidden, width, name) {}

  void partial(Tensor y, Tensor x) const { down_.partial(y, activated(x)); }  // y float32 [T, H], to be summed over tp
  void operator()(Tensor y, Tensor x) const { down_(y, activated(x)); }       // y whole

 private:
  Tensor activated(Tensor x) const {
    Tensor gate_up = backend_->scratch(x.dtype, {x.dim(0), gate_up_.n});
    backend_->linear(gate_up, x, gate_up_);
    Tensor y = backend_->scratch(x.dtype, {x.dim(0), gate_up_.n / 2});
    backend_->silu_mul(y, gate_up);
    return y;
  }

  Backend* backend_;
  LinearWeight gate_up_;  // [2F, H], gate rows first
  RowParallel down_;
};

}  // namespace braid
