#include "model/layers/moe.h"

namespace braid {
namespace {

ExpertWeights load_experts(const Scope& s) {
  const ModelConfig& c = s.config();
  const Placement place = s.parallel().place(Role::kGateUp);
  const Range columns = part_of(c.moe.intermediate, place.part, place.parts);
  const Scope experts = s / "experts";
  const int n = static_cast<int>(c.moe.n_experts), k_slices = s.parallel().k_slices();
  const Range all{0, c.hidden};
  WeightFormat kept = (experts / 0 / "gate_proj").kept_format(c.hidden);
  if ((experts / 0 / "down_proj").kept_format(c.moe.intermediate, place.parts * k_slices) != kept) kept = {};
  const WeightFormat stored = kept.scaled() ? kept : (experts / 0 / "gate_proj").stored();
  ExpertWeights w = s.backend().make_experts(0, n, c.hidden, columns.size(), stored, k_slices);
  for (int e = 0; e < n; ++e) {
    const auto gate = (experts / e / "gate_proj").host_matrix(c.moe.intermediate, c.hidden, columns, all, 1, kept);
    const auto up = (experts / e / "up_proj").host_matrix(c.moe.intermediate, c.hidden, columns, all, 1, kept);
    const auto down = (experts / e / "down_proj").host_matrix(c.hidden, c.moe.intermediate, all, columns, k_slices, kept);
    s.backend().pack_expert(w, e, gate.matrix(), up.matrix(), down.matrix());
  }
  return w;
}

}  // namespace

Moe::Moe(const Scope& s)
    : backend_(&s.backend()), parallel_(&s.parallel()), router_(s.config().moe.router),
      gate_((s / "gate").wide_linear(Role::kReplicated, s.config().moe.n_experts, s.config().hidden)), experts_(load_experts(s)) {
  const ModelConfig& c = s.config();
  if (c.moe.has_correction_bias) choice_bias_ = (s / "gate").vector("e_score_correction_bias", c.moe.n_experts);
  if (c.moe.shared_intermediate > 0) shared_.emplace(s / "shared_experts", c.moe.shared_intermediate);
}

void Moe::operator()(Tensor y, Tensor x) const {
  const int64_t n = x.dim(0), hidden = x.dim(1);
  Tensor logits = backend_->scratch(DType::kF32, {n, gate_.n});  // float32: rounding them would move the choice
  backend_->linear(logits, x, gate_);
  Tensor ids = backend_->scratch(DType::kI32, {n, router_.top_k});
  Tensor weights = backend_->scratch(DType::kF32, {n, router_.top_k});
  backend_->route(ids, weights, logits, choice_bias_, router_);
  if (backend_->observer) backend_->observer("experts", ids);

  if (!shared_) {
    backend_->moe(y, x, ids, weights, experts_);
    parallel_->tp().all_reduce(y, "moe_out");
    return;
  }
  if (!parallel_->reproducible()) {  // they meet first, so that half as much is sent
    backend_->moe_with_shared(y, x, ids, weights, experts_, shared_->weights());
    parallel_->tp().all_reduce(y, "moe_out");
    return;
  }
  // Each has its own tree over slices and ranks: one above the other in one sum.
  Tensor both = backend_->scratch(DType::kF32, {2 * n, hidden});
  Tensor routed = both.rows(0, n), shared = both.rows(n, 2 * n);
  backend_->moe(routed, x, ids, weights, experts_);
  shared_->partial(shared, x);
  parallel_->tp().all_reduce(both, "moe_out");
  backend_->add(routed, shared);
  backend_->copy(y, routed);
}

}  // namespace braid
