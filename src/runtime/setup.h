// What a run is made of, decided once before any rank starts and before any weight is read: the model's dimensions, types,
// limits. resolve() reports every impossible option at once.
#pragma once
#include <string>
#include <vector>

#include "model/config.h"
#include "model/layers/scope.h"
#include "runtime/config.h"
#include "runtime/context_setup.h"
#include "runtime/step_parts.h"

namespace braid {

struct RankSetup {
  EngineConfig config;
  ModelConfig model;
  DType compute = DType::kF32;   // activations
  DType kv_dtype = DType::kF32;  // cached keys and values
  WeightRule weights;            // which are kept in eight bits
  std::string weights_active, weights_reason;  // "float8_e4m3", "int8" or "none", and why where nobody asked for that
  ContextSetup context;          // how a decode-context-parallel group works
  RowRule rows;                  // which sequences attend to keys as rows
  int64_t max_model_len = 0;     // tokens of prompt and answer together; may shrink to what the cache holds
  bool max_model_len_asked = false;
  int threads = 1;               // per rank
  std::string device;            // cpu, cuda or reference
  std::vector<int> graph_sizes;  // sequences of recorded decode steps, ascending; empty: none
  std::string graph_reason;      // why there are none

  bool on_gpus() const { return device == "cuda"; }

  int64_t virtual_block() const { return int64_t{config.block_size} * config.layout.dcp; }  // tokens of a block id
};

// Everything that is wrong is appended to `problems`; where there are any, the result is not fit for a run.
RankSetup resolve(const EngineConfig&, std::vector<std::string>& problems);

// What --cuda-graph-sizes means: one number N for 1, 2, 4, 8, 16, ..., N; or a list.
std::vector<int> graph_sizes_of(const std::string& text, int max_num_seqs, std::vector<std::string>& problems);

// Decides anew what is "auto", by costs that were measured.
void settle_context(RankSetup&, const ContextCosts&);

ModelDims dims_of(const ModelConfig&);

// resolve() for callers that stop at the first set of problems: throws one Error with all of them, a line each.
RankSetup resolve_or_throw(const EngineConfig&);

}  // namespace braid
