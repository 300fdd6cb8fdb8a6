// The fast host backend: packed weights, kernels of the best instruction-set level this machine has, own threads. The
// drivers here (cpu_*.cpp) split work and compute addresses; arithmetic is in kernels/. A row's result depends neither
// on its batch nor on the number of threads.
#pragma once
#include <string>

#include "ops/cpu/kernels.h"
#include "ops/cpu/panels.h"
#include "ops/cpu/workers.h"
#include "ops/host_backend.h"

namespace braid {

class CpuBackend final : public HostBackend {
 public:
  explicit CpuBackend(const CpuOptions&);
  const char* name() const override { return name_.c_str(); }

  LinearWeight pack_linear(const WeightMatrix& w, Tensor bias, int k_slices) override;
  LinearWeight linear_rows(const LinearWeight&, int64_t begin, int64_t end) const override;
  HeadWeight pack_heads(Tensor w, bool transposed) override;
  ExpertWeights make_experts(int first, int count, int64_t hidden, int64_t ffn, const WeightFormat& stored,
                             int k_slices) override;
  void pack_expert(ExpertWeights&, int expert, const WeightMatrix& gate, const WeightMatrix& up,
                   const WeightMatrix& down) override;

  void copy(Tensor to, Tensor from) override;
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
  void sample(std::span<SampleResult> out, Tensor logits, std::span<const SamplingRow> rows) override;

 private:
  template <typename Write>  // write(block, sums of its rows)
  void attend(const Tensor& q, const KvCache&, const AttentionSpec&, const BatchMeta&, int dv, const Write&);
  PanelLayout layout(int64_t n, int64_t k, int k_slices, const WeightFormat& stored) const;
  PanelLayout gate_up_layout(const ExpertWeights&) const;
  PanelLayout down_layout(const ExpertWeights&) const;
  // x in a type that a kernel reads: itself, or a float32 copy in scratch.
  Tensor readable(Tensor x, const WeightFormat& weights);
  const Kernels::Products& products(DType x, const WeightFormat& weights) const;
  // y[t] = sum over the experts of t's pairs of weight * down(gated). Pairs are grouped by expert: `start` [count + 1].
  void add_experts(Tensor y, Tensor gated /*[pairs, F]*/, const int32_t* start, const int32_t* token,
                   const float* weight, const ExpertWeights&);
  void add_few_pairs(Tensor y, Tensor gated, const int32_t* start, const int32_t* token, const float* weight,
                     const ExpertWeights&);
  // f(row, worker) for every row, in chunks; `nanoseconds` per row is a guess.
  template <typename F>
  void for_rows(int64_t n_rows, double nanoseconds, const F& f);

  const Kernels& kernels_;
  Workers workers_;
  std::string name_;
};

template <typename F>
void CpuBackend::for_rows(int64_t n_rows, double nanoseconds, const F& f) {
  const int64_t chunk = std::max<int64_t>(1, static_cast<int64_t>(4000.0 / nanoseconds));
  workers_.run((n_rows + chunk - 1) / chunk, nanoseconds * static_cast<double>(n_rows), [&](int64_t task, int worker) {
    for (int64_t r = task * chunk; r < std::min(n_rows, (task + 1) * chunk); ++r) f(r, worker);
  });
}

}  // namespace braid
