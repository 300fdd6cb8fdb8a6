// RMS norm in a pre-norm residual stream: adds the last sublayer's output to the residual, then normalises it.
#pragma once
#include "model/layers/scope.h"

namespace braid {

class RmsNorm {
 public:
  RmsNorm(const Scope& s, int64_t width, float eps) : backend_(&s.backend()), weight_(s.norm(width)), eps_(eps) {}

  // residual [T, H] += add (may be empty: the first layer has nothing to add); returns norm(residual) [T, H].
  Tensor operator()(Tensor residual, Tensor add) const {
    Tensor y = backend_->scratch(residual.dtype, {residual.dim(0), residual.dim(1)});
    if (add) {
      backend_->add_rms_norm(y, residual, add, weight_, eps_);
    } else {
      backend_->rms_norm(y, residual, weight_, eps_);
    }
    return y;
  }
  Tensor operator()(Tensor x) const { return (*this)(x, {}); }

 private:
  Backend* backend_;
  Tensor weight_;  // float32 [H]
  float eps_;
};

}  // namespace braid
