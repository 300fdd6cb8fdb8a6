// A product whose input is split over the tp group: every rank has a float32 partial sum, which the group adds.
#pragma once
#include "model/layers/scope.h"

namespace braid {

class RowParallel {
 public:
  RowParallel(const Scope& s, Role role, int64_t out, int64_t in, const char* name)
      : backend_(&s.backend()), tp_(&s.parallel().tp()), weight_(s.row_parallel(role, out, in)), name_(name) {}

  Tensor partial(Tensor x) const {  // [T, in / tp] -> float32 [T, out], this rank's part
    Tensor y = backend_->scratch(DType::kF32, {x.dim(0), weight_.n});
    backend_->linear(y, x, weight_);
    return y;
  }
  Tensor operator()(Tensor x) const {  // whole, on every rank
    Tensor y = partial(x);
    tp_->all_reduce(y, name_);
    return y;
  }

 private:
  Backend* backend_;
  Comm* tp_;
  LinearWeight weight_;
  const char* name_;
};

}  // namespace braid
