// One rank at work: owns the backend, the loaded model and the KV cache, and turns step plans into logits. Used by its own
// rank thread alone.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "runtime/decode_recordings.h"
#include "runtime/lowering.h"
#include "runtime/setup.h"

namespace braid {

// What a rank's device holds, as the device itself reports it; all zeros where the memory is the host's.
struct DeviceUse {
  int64_t total = 0;
  int64_t before = 0;  // used when the rank started: other programs, the driver's context
  int64_t communicators = 0, weights = 0, workspace = 0, cache = 0, graphs = 0;
  int64_t free = 0;
};

struct RankCounters {
  int64_t bytes_read = 0;  // of the checkpoint's files
  int64_t widened_weights = 0;  // float8 weights whose blocks this rank's slices cut, kept wide
  int64_t weights_bytes = 0, cache_bytes = 0, workspace_bytes = 0;
  int64_t kv_rows_written = 0, kv_rows_read = 0;  // summed over steps, one layer
  int64_t row_tokens = 0, context_windows = 0;    // the same: new tokens that attended to rows; windows of their context
  int64_t mixed_steps = 0;                        // with some sequences that attended to rows and some through the cache
  CollectiveCounts collectives;
  ContextUse context;
  int64_t replays = 0;         // steps that were one launch
  int64_t recorded_nodes = 0;  // of the smallest recorded step
  double prepare_seconds = 0;  // of the host, over all steps: lowering
  double launch_seconds = 0;   // uploads, and asking the device for the step
  DeviceUse device;
};

class Runner {
 public:
  // Loads the weights. The world knows the backend's stream. `source` is shared by the ranks of a process; reads are counted per rank.
  Runner(const RankSetup&, int rank, World&, const WeightSource& source, std::unique_ptr<Backend> backend);

  int64_t block_bytes() const;          // one KV block on this rank, all layers
  // GPUs: runs the largest steps once, so that all that grows on first use has grown before the cache takes the rest.
  void warm_up();
  int64_t agree_on_blocks(int64_t n);   // the least that any rank of the run can hold
  void allocate_cache(int64_t n_blocks);
  void record_decode_steps();           // as the configuration says; behind allocate_cache()
  // float32 [R, V], valid until the next call.
  Tensor forward(const StepPlan&);
  const RankStep& step() const { return step_; }
  int rank() const { return parallel_.rank(); }
  Backend& backend() { return *backend_; }
  CheckpointReader& reader() { return reader_; }
  RankCounters counters() const;
  void fill_cache();  // with dummy values, for measurements that read what no step wrote; a float8 cache stays as it is
  DeviceMemory device_memory() const { return backend_->device_memory(); }
  std::span<const KvCache> caches() const { return caches_; }

 private:
  std::vector<KvCache> make_caches(MemoryKind, int64_t n_blocks);
  void note_use(int64_t DeviceUse::*what);  // adds what the device holds more than at the last note
  void agree_on_replay(int size);
  CollectiveCounts collective_counts() const;
  BatchMeta upload_step();  // what was lowered last; scratch
  Tensor to_device(const std::vector<int32_t>& ints);

  const RankSetup* setup_;
  World* world_;
  std::unique_ptr<Backend> backend_;
  DeviceUse use_;
  Parallel parallel_;
  CheckpointReader reader_;
  std::unique_ptr<Model> model_;
  std::vector<KvCache> caches_;
  SequenceShard shard_;
  std::unique_ptr<DecodeRecordings> recordings_;  // holds collectives of parallel_ and ends before it
  RankStep step_;
  PartStep part_step_;
  std::vector<StepPart> parts_;
  int64_t rows_written_ = 0, rows_read_ = 0, row_tokens_ = 0, context_windows_ = 0, mixed_steps_ = 0;
  double prepare_seconds_ = 0, launch_seconds_ = 0;
};

// The back end that the configuration names: with this rank's share of the cores, or on the device of that index.
std::unique_ptr<Backend> make_backend(const RankSetup&, int device);

}  // namespace braid
