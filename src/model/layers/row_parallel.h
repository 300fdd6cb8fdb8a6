// A product whose input is split over the tp group: every rank has a float32 partial sum, which the group adds.
#pragma once
#include "model/layers/scope.h"

namespace braid {

class RowParallel {
 public:
  RowParallel(const Scope& s, Role role, int64_t out, int64_t in, const char* name)
      : backend_(&s.backend()), tp_(&s.parallel().tp()), weight_(s.row_parallel(role, out, in)), name_(name) {}

  // y float32 [T, out] = this rank's part of the product with x [T, in / tp].
  void partial(Tensor y, Tensor x) const { backend_->linear(y, x, weight_); }
  // y whole, on every rank.
  void operator()(Tensor y, Tensor x) const {
    partial(y, x);
    tp_->all_reduce(y, name_);
  }

 private:
  Backend* backend_;
  Comm* tp_;
  LinearWeight weight_;
  const char* name_;
};

}  // namespace braid
