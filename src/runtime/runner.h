// One rank at work: owns the backend, the loaded model and the KV cache, and turns step plans into logits. Used by its own
// rank thread alone.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "runtime/lowering.h"
#include "runtime/setup.h"

namespace braid {

struct RankCounters {
  int64_t bytes_read = 0;  // of the checkpoint's files
  int64_t weights_bytes = 0, cache_bytes = 0, workspace_bytes = 0;
  int64_t kv_rows_written = 0, kv_rows_read = 0;  // summed over steps, one layer
  int64_t row_tokens = 0, context_windows = 0;    // the same: new tokens that attended to rows; windows of their context
  int64_t mixed_steps = 0;                        // with some sequences that attended to rows and some through the cache
  std::map<std::string, CollectiveCount> collectives;
  ContextUse context;
};

class Runner {
 public:
  // Loads the weights. `source` is shared by the ranks of a process; reads are counted per rank.
  Runner(const RankSetup&, int rank, World&, const WeightSource& source, std::unique_ptr<Backend> backend);

  int64_t block_bytes() const;          // one KV block on this rank, all layers
  int64_t agree_on_blocks(int64_t n);   // the least that any rank of the run can hold
  void allocate_cache(int64_t n_blocks);
  // float32 [R, V], valid until the next call.
  Tensor forward(const StepPlan&);
  const RankStep& step() const { return step_; }
  Backend& backend() { return *backend_; }
  CheckpointReader& reader() { return reader_; }
  RankCounters counters() const;

 private:
  Tensor to_device(const std::vector<int32_t>& ints);

  const RankSetup* setup_;
  World* world_;
  std::unique_ptr<Backend> backend_;
  Parallel parallel_;
  CheckpointReader reader_;
  std::unique_ptr<Model> model_;
  std::vector<KvCache> caches_;
  SequenceShard shard_;
  RankStep step_;
  PartStep part_step_;
  std::vector<StepPart> parts_;
  int64_t rows_written_ = 0, rows_read_ = 0, row_tokens_ = 0, context_windows_ = 0, mixed_steps_ = 0;
};

// The back end that the configuration names, with this rank's share of the cores.
std::unique_ptr<Backend> make_backend(const RankSetup&);

}  // namespace braid
