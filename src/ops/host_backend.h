// What the reference and the cpu backend share: memory that the host can touch, copies, and sampling.
#pragma once
#include "ops/backend.h"
#include "ops/host_memory.h"

namespace braid {

class HostBackend : public Backend {
 public:
  Tensor alloc(MemoryKind kind, DType t, std::initializer_list<int64_t> shape) override {
    return memory_.alloc(kind, t, shape);
  }
  void begin_step() override { memory_.begin_step(); }
  ScratchMark scratch_mark() override { return memory_.mark(); }
  void scratch_release(const ScratchMark& m) override { memory_.release(m); }
  int64_t bytes(MemoryKind kind) const override { return memory_.bytes(kind); }
  void upload(Tensor device, const void* host) override;
  void download(void* host, Tensor device) override;
  void copy(Tensor to, Tensor from) override;
  void fill_zero(Tensor x) override;
  void sample(std::span<SampleResult> out, Tensor logits, std::span<const SamplingRow> rows) override;

 protected:
  HostMemory memory_;
};

}  // namespace braid
