// Operations that have no kernels yet.
#include "base/error.h"
#include "ops/cuda/cuda_backend.h"

namespace braid {
namespace {
[[noreturn]] void missing(const char* what) { throw RuntimeFailure(fmt::format("cuda has no {}", what)); }
}  // namespace

void CudaBackend::copy(Tensor, Tensor) { missing("copy"); }
void CudaBackend::fill_zero(Tensor) { missing("fill_zero"); }
LinearWeight CudaBackend::pack_linear(Tensor, Tensor, int) { missing("pack_linear"); }
LinearWeight CudaBackend::linear_rows(const LinearWeight&, int64_t, int64_t) const { missing("linear_rows"); }
HeadWeight CudaBackend::pack_heads(Tensor) { missing("pack_heads"); }
ExpertWeights CudaBackend::make_experts(int, int, int64_t, int64_t, DType, int) { missing("make_experts"); }
void CudaBackend::pack_expert(ExpertWeights&, int, Tensor, Tensor, Tensor) { missing("pack_expert"); }
void CudaBackend::embed(Tensor, Tensor, Tensor, int64_t) { missing("embed"); }
void CudaBackend::linear(Tensor, Tensor, const LinearWeight&) { missing("linear"); }
void CudaBackend::head_linear(Tensor, Tensor, const HeadWeight&) { missing("head_linear"); }
void CudaBackend::rms_norm(Tensor, Tensor, Tensor, float) { missing("rms_norm"); }
void CudaBackend::add_rms_norm(Tensor, Tensor, Tensor, Tensor, float) { missing("add_rms_norm"); }
void CudaBackend::add(Tensor, Tensor) { missing("add"); }
void CudaBackend::silu_mul(Tensor, Tensor) { missing("silu_mul"); }
void CudaBackend::gather_rows(Tensor, Tensor, Tensor) { missing("gather_rows"); }
void CudaBackend::gqa_rope_cache(Tensor, Tensor, Tensor, Tensor, Tensor, float, const RopeTable&, const KvCache&,
                                 const BatchMeta&) {
  missing("gqa_rope_cache");
}
void CudaBackend::mla_rope_cache(Tensor, Tensor, Tensor, Tensor, float, const RopeTable&, const KvCache&,
                                 const BatchMeta&) {
  missing("mla_rope_cache");
}
void CudaBackend::attention(Tensor, Tensor, Tensor, const KvCache&, const AttentionSpec&, const BatchMeta&) {
  missing("attention");
}
void CudaBackend::attention_partial(Tensor, Tensor, Tensor, Tensor, const KvCache&, const AttentionSpec&,
                                    const BatchMeta&) {
  missing("attention_partial");
}
void CudaBackend::merge_partials(Tensor, Tensor, Tensor, Tensor, Tensor, float) { missing("merge_partials"); }
void CudaBackend::merge_results(Tensor, Tensor, Tensor, Tensor, int) { missing("merge_results"); }
void CudaBackend::attention_rows(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, const RowSpans&, float) {
  missing("attention_rows");
}
void CudaBackend::gather_cache(Tensor, const KvCache&, Tensor) { missing("gather_cache"); }
void CudaBackend::route(Tensor, Tensor, Tensor, Tensor, const RouterSpec&) { missing("route"); }
void CudaBackend::moe(Tensor, Tensor, Tensor, Tensor, const ExpertWeights&) { missing("moe"); }
void CudaBackend::sample(std::span<SampleResult>, Tensor, std::span<const SamplingRow>) { missing("sample"); }

}  // namespace braid
