// The backend for NVIDIA GPUs (compute capability 8.0 and up; Hopper has its own kernels where they pay). One stream;
// every operation but download(), sync(), sample() and, rarely, upload() only puts work on it: no operation waits, allocates outside the
// scratch arena or reads device values on the host, so that a step can be recorded as a graph once it has run. The
// drivers here check shapes and choose; kernels are in *.cu behind the plain functions of kernels.h.
//
// On Hopper a kernel is placed while the one in front of it still runs. Each waits for that one before it touches
// activations, but may read weights (of linear layers, heads and norms) before: no kernel may write those once they are
// used; pack_*() copies them or waits.
//
// Rows: in the reproducible mode (CudaOptions) a row's result never depends on the rows beside it or their number: every
// product is computed by one kernel whose order of summation depends on K alone. In the default mode products go to
// cuBLASLt or to narrow kernels by the number of rows, and a row's last bits may then change with that number.
#pragma once
#include <cuda_runtime.h>

#include <functional>
#include <vector>

#include "ops/backend.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/cuda_memory.h"
#include "ops/cuda/lt_products.h"
#include "ops/cuda/pinned_pool.h"
#include "ops/cuda/product.h"

namespace braid {

// Pinned memory for transfers in flight. Starts anew whenever the stream has been waited for.
class Staging {
 public:
  explicit Staging(int64_t size);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();
  void* take(int64_t size);  // nullptr: does not fit now
  void clear() { used_ = 0; }
  int64_t size() const { return size_; }

 private:
  char* data_ = nullptr;
  int64_t size_, used_ = 0;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaOptions&);
  ~CudaBackend() override;
  const char* name() const override { return "cuda"; }

  Tensor alloc(MemoryKind kind, DType t, std::initializer_list<int64_t> shape) override {
    return memory_.alloc(kind, t, shape);
  }
  void begin_step() override;
  ScratchMark scratch_mark() override { return memory_.mark(); }
  void scratch_release(const ScratchMark& m) override { memory_.release(m); }
  int64_t bytes(MemoryKind kind) const override { return memory_.bytes(kind); }
  void upload(Tensor device, const void* host) override;
  void download(void* host, Tensor device) override;
  void copy(Tensor to, Tensor from) override;
  void fill_zero(Tensor x) override;
  Stream stream() const override { return {stream_}; }
  void sync() override;
  DeviceMemory device_memory() const override;

  bool can_record() const override { return true; }
  void begin_recording() override;
  std::unique_ptr<Recording> end_recording() override;
  void replay(const Recording&) override;

  std::shared_ptr<std::byte[]> staging(int64_t bytes) override;
  void make_dummy(const DummyValues& v) override;

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
  void pack_results(Tensor messages, Tensor values, Tensor lse, int64_t lse_offset) override;
  void merge_results(Tensor y, Tensor lse, Tensor values, Tensor lses, int first) override;
  void attention_rows(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor k_rope, Tensor v, const RowSpans&,
                      float scale) override;
  void gather_cache(Tensor rows, const KvCache&, Tensor slots) override;
  void route(Tensor ids, Tensor weights, Tensor logits, Tensor bias, const RouterSpec&) override;
  void moe(Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights&) override;
  void moe_with_shared(Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights&, const GatedWeights& shared) override;
  void sample(std::span<SampleResult> out, Tensor logits, std::span<const SamplingRow> rows) override {
    sample_later(out, logits, rows);
    sync();
  }
  void sample_later(std::span<SampleResult> out, Tensor logits, std::span<const SamplingRow>) override;

 private:
  static constexpr int64_t kTileRows = 16;  // up to here our own tiles are at least as fast as cuBLASLt

  void* staged(int64_t size);         // pinned memory, up to staging_.size()
  Tensor keep(Tensor w);              // weights of the same type and shape on the device; w lies on either side
  void put(Tensor device, Tensor w);  // the same into memory that is there already
  void product(const cuda::ProductArgs&);
  bool moe_few(Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights&, const GatedWeights* shared);  // false: not for it
  void moe_rows(Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights&);
  bool latent_decode(Tensor y, Tensor lse, Tensor q, const KvCache&, const AttentionSpec&, const BatchMeta&);
  void attend(cuda::AttentionArgs, int64_t tokens, int64_t longest);
  void check_attention(const Tensor& q, const KvCache&, const AttentionSpec&, const BatchMeta&, int64_t dv) const;

  CudaOptions options_;
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  CudaMemory memory_;
  Staging staging_;
  std::vector<std::function<void()>> when_waited_;  // for the next sync(); may read what staging_ holds
  LtProducts lt_;
  std::shared_ptr<PinnedPool> pinned_;  // of weights being loaded
};

}  // namespace braid
