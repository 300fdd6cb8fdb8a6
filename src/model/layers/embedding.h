// Token embedding and output head, both cut along the vocabulary.
#pragma once
#include "model/layers/scope.h"

namespace braid {

class Embedding {
 public:
  Embedding(const Scope& s, const Scope::HostWeight& rows);  // this rank's rows of [V, H]
  Tensor operator()(const BatchMeta&) const;  // [T, H] in the compute type

 private:
  Backend* backend_;
  Comm* tp_;
  DType compute_;
  Tensor table_;  // [rows held, H]
  int64_t first_row_ = 0;
};

class LmHead {
 public:
  LmHead(const Scope& s, const Scope::HostWeight& rows);  // likewise; the embedding's own rows where the two are tied
  Tensor operator()(Tensor x, const BatchMeta&) const;  // x [T, H] -> float32 [R, V] on every rank, rows of batch.logit_rows

 private:
  Backend* backend_;
  Comm* tp_;
  int64_t vocab_;
  LinearWeight weight_;
};

}  // namespace braid
