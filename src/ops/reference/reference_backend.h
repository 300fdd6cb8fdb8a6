// The reference: every operation as its definition reads, one thread, sums in double, no blocking and no packing. What
// the fast backends are compared with; fast enough for tiny models only. Where a definition rounds to the compute type
// on the way (norms, the gated product of experts), so does this.
#pragma once
#include "ops/host_backend.h"

namespace braid {

class ReferenceBackend : public HostBackend {
 public:
  const char* name() const override { return "reference"; }

  LinearWeight pack_linear(const WeightMatrix& w, Tensor bias, int k_slices) override;
  LinearWeight linear_rows(const LinearWeight&, int64_t begin, int64_t end) const override;
  HeadWeight pack_heads(Tensor w, bool transposed) override;
  ExpertWeights make_experts(int first, int count, int64_t hidden, int64_t ffn, const WeightFormat& stored,
                             int k_slices) override;
  void pack_expert(ExpertWeights&, int expert, const WeightMatrix& gate, const WeightMatrix& up,
                   const WeightMatrix& down) override;

  void embed(Tensor y, Tensor ids, Tensor table, int64_t first_row) override;
  void linear(Tensor y, Tensor x, const LinearWeight&) override;
  void head_linear(Tensor y, Tensor x, const HeadWeight&) override;
  void rms_norm(Tensor y, Tensor x, Tensor w, float eps) override;
  void add_rms_norm(Tensor y, Tensor residual, Tensor add, Tensor w, float eps) override;
  void add(Tensor y, Tensor x) override;
  void silu_mul(Tensor y, Tensor gate_up) override;
  void gather_rows(Tensor y, Tensor x, Tensor rows) override;
  void gqa_rope_cache(Tensor q, Tensor k, Tensor v, Tensor q_norm, Tensor k_norm, float eps, const RopeTable&,
                      const KvCache&, const BatchMeta&) override;
  void mla_rope_cache(Tensor q_out, Tensor q_in, Tensor kv_a, Tensor norm, float eps, const RopeTable&, const KvCache&,
                      const BatchMeta&) override;
  void attention(Tensor y, Tensor lse, Tensor q, const KvCache&, const AttentionSpec&, const BatchMeta&) override;
  void attention_partial(Tensor sum, Tensor weight, Tensor k, Tensor q, const KvCache&, const AttentionSpec&,
                         const BatchMeta&) override;
  void merge_partials(Tensor y, Tensor lse, Tensor sums, Tensor weights, Tensor ks, float value_scale) override;
  void merge_results(Tensor y, Tensor lse, Tensor values, Tensor lses, int first) override;
  void attention_rows(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor k_rope, Tensor v, const RowSpans&,
                      float scale) override;
  void gather_cache(Tensor rows, const KvCache&, Tensor slots) override;
  void route(Tensor ids, Tensor weights, Tensor logits, Tensor bias, const RouterSpec&) override;
  void moe(Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights&) override;

 private:
  Tensor keep(Tensor host);  // a dense copy that lives as long as the backend
};

// x / sqrt(mean(x^2) + eps), rounded to `t`, times w, rounded to `t`; n elements in place. w empty: no weight.
void reference_norm(std::span<double> x, const float* w, float eps, DType t);

}  // namespace braid
