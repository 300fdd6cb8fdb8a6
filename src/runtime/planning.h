// A run that computes nothing: every rank is built and stepped once over a backend that only counts, ranks that only meet on
// paper, and a weight source that reads no weights. What it says of bytes is therefore what the same code would allocate
// and send; there is no second set of formulas.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "model/layers/attention.h"
#include "runtime/setup.h"

namespace braid {

struct RankPlan {
  int rank = 0;
  int64_t weights_bytes = 0;    // as stored, without a backend's padding
  int64_t workspace_bytes = 0;  // activations of the largest step
  int64_t file_bytes = 0;       // read from the checkpoint
  double kv_bytes_per_token = 0;  // all layers, averaged over a sequence
  int64_t kv_bytes = 0;
  std::map<std::string, CollectiveCount> decode_collectives;  // of one step with one token
  ContextUse context;
};

// What rank 0 would hold and send, and all ranks keep, with the settings of a decode-context-parallel group turned over.
struct PlanVariant {
  ContextOptions options;
  int64_t weights_bytes = 0, kv_tokens = 0;
  std::map<std::string, CollectiveCount> decode_collectives;
};

struct RunPlan {
  std::vector<RankPlan> ranks;
  std::vector<PlanVariant> variants;  // empty without a group of more than one rank
  int64_t n_blocks = 0;
  int64_t kv_tokens = 0;
};

// `memory_bytes` is what each rank may use; 0: what this machine would give it.
RunPlan plan_run(const RankSetup&, int64_t memory_bytes);

// Throws Error where the weights of `n_local` ranks from `first` cannot be held in this machine's memory: before any is read.
void check_weights_fit(const RankSetup&, int first, int n_local);

}  // namespace braid
