#include "model/layers/embedding.h"

namespace braid {

Embedding::Embedding(const Scope& s, const Scope::HostWeight& rows)
    : backend_(&s.backend()), tp_(&s.parallel().tp()), compute_(s.context().compute) {
  const Placement place = s.parallel().place(Role::kEmbed);
  first_row_ = part_of(s.config().vocab, place.part, place.parts).begin;
  table_ = backend_->alloc(MemoryKind::kWeights, rows.tensor.dtype, {rows.tensor.dim(0), rows.tensor.dim(1)});
  backend_->upload(table_, rows.tensor.data);
}

Tensor Embedding::operator()(const BatchMeta& b) const {
  const int64_t hidden = table_.dim(1);
  Tensor x = backend_->scratch(compute_, {b.n_tokens, hidden});
  if (tp_->size() == 1) {
    backend_->embed(x, b.token_ids, table_, first_row_);
    return x;
  }
  // One rank has the row, the others zeros, so that the sum is exact in any order.
  Tensor sum = backend_->scratch(DType::kF32, {b.n_tokens, hidden});
  backend_->embed(sum, b.token_ids, table_, first_row_);
  tp_->all_reduce(sum, "embed");
  backend_->copy(x, sum);
  return x;
}

LmHead::LmHead(const Scope& s, const Scope::HostWeight& rows)
    : backend_(&s.backend()), tp_(&s.parallel().tp()), vocab_(s.config().vocab), weight_(backend_->pack_linear(rows.tensor, {})) {}

Tensor LmHead::operator()(Tensor x, const BatchMeta& b) const {
  const int64_t n = b.n_logit_rows;
  Tensor rows = backend_->scratch(x.dtype, {n, x.dim(1)});
  backend_->gather_rows(rows, x, b.logit_rows);
  Tensor part = backend_->scratch(DType::kF32, {n, weight_.n});
  backend_->linear(part, rows, weight_);
  if (tp_->size() == 1) return part;

  // Ranks hold up to one row of the vocabulary more than others; gather rank-major, then lay the parts side by side.
  std::vector<int64_t> counts;
  for (int r = 0; r < tp_->size(); ++r) counts.push_back(n * part_of(vocab_, r, tp_->size()).size());
  Tensor gathered = backend_->scratch(DType::kF32, {n * vocab_, 1});
  tp_->all_gatherv(gathered, part.view({n * weight_.n, 1}), counts, "logits");
  Tensor logits = backend_->scratch(DType::kF32, {n, vocab_});
  int64_t offset = 0;
  for (int r = 0; r < tp_->size(); ++r) {
    const Range range = part_of(vocab_, r, tp_->size());
    backend_->copy(logits.columns(range.begin, range.end), gathered.rows(offset, offset + n * range.size()).view({n, range.size()}));
    offset += n * range.size();
  }
  return logits;
}

}  // namespace braid
