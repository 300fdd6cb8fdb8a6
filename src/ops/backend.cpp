// What backends have in common: defaults of those that compute where they are called.
#include "ops/backend.h"

#include "base/error.h"

namespace braid {

void Backend::begin_recording() { BRAID_CHECK(false, "the {} backend records nothing", name()); }

std::unique_ptr<Recording> Backend::end_recording() {
  BRAID_CHECK(false, "the {} backend records nothing", name());
  return nullptr;
}

void Backend::replay(const Recording&) { BRAID_CHECK(false, "the {} backend records nothing", name()); }

void Backend::gated_network(Tensor y, Tensor x, const GatedWeights& w) {
  const Tensor gate_up = scratch(x.dtype, {x.dim(0), w.gate_up.n}), gated = scratch(x.dtype, {x.dim(0), w.down.k});
  linear(gate_up, x, w.gate_up);
  silu_mul(gated, gate_up);
  linear(y, gated, w.down);
}

void Backend::moe_with_shared(Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights& w, const GatedWeights& shared) {
  const ScratchScope temporary(*this);
  const Tensor own = scratch(DType::kF32, {x.dim(0), x.dim(1)});
  moe(y, x, ids, weights, w);
  gated_network(own, x, shared);
  add(y, own);
}

void Backend::pack_results(Tensor messages, Tensor values, Tensor lse, int64_t lse_offset) {
  const int64_t ranks = messages.dim(0), tokens = values.dim(0), heads = values.dim(1) / ranks, d = values.dim(2);
  for (int64_t r = 0; r < ranks; ++r) {
    char* message = static_cast<char*>(messages.data) + r * messages.stride[0];
    copy(Tensor(message, values.dtype, {tokens, heads * d}), values.view({tokens, ranks * heads * d}).columns(r * heads * d, (r + 1) * heads * d));
    copy(Tensor(message + lse_offset, DType::kF32, {tokens, heads}), lse.columns(r * heads, (r + 1) * heads));
  }
}

std::shared_ptr<std::byte[]> Backend::staging(int64_t bytes) {
  return std::shared_ptr<std::byte[]>(new std::byte[static_cast<size_t>(bytes)]);
}

}  // namespace braid
