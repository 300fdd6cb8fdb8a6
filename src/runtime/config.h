// What a run was asked to be, one field per option, and the table that names the options. vLLM's and ATOM's spellings are
// aliases. validate() in runtime/validate.h says what is impossible, before any weight is read.
#pragma once
#include <cstdint>
#include <string>

#include "base/option_table.h"
#include "parallel/layout.h"

namespace braid {

struct EngineConfig {
  // model
  std::string model;
  std::string tokenizer;  // folder; empty: the model's
  std::string load_format = "auto";
  std::string hf_overrides;
  std::string dtype = "auto";
  std::string quantization = "auto";
  uint64_t seed = 0;
  bool trust_remote_code = false;

  // ranks
  Layout layout;
  std::string device = "auto";
  std::string cpu_level = "auto";  // instruction set of CPU ranks
  int threads = 0;  // per rank; 0: the cores divided by the local ranks
  std::string dcp_config;         // JSON object; see runtime/context_setup.h
  int dcp_interleave = 0;         // the same settings under vLLM's names; 0 and empty: not given
  std::string dcp_comm_backend;
  bool fp8_query = false;         // queries are gathered as float8
  bool reproducible = false;
  double stall_seconds = 8.0;
  bool enforce_eager = false;
  std::string graph_sizes;  // empty: see graph_sizes_of()

  // cache
  std::string kv_cache_dtype = "auto";
  int block_size = 16;
  double memory_utilization = 0.9;
  std::string kv_cache_memory;  // bytes per rank; empty: from memory_utilization
  int64_t num_kv_blocks = 0;    // 0: as many as fit
  bool prefix_caching = true;

  // scheduler
  std::string max_model_len = "auto";
  int max_num_seqs = 256;
  int max_num_batched_tokens = 2048;
  bool chunked_prefill = true;
  int prefill_chunk = 0;  // exact chunks; 0: as the budget allows
  int long_prefill_token_threshold = 0;

  // attention of prompts
  std::string attn_prefill_form = "auto";
  int64_t attn_prefill_chunk = 16384;  // cached tokens that are gathered at a time
};

// Adds the rows of all fields to `table`; `config` must outlive it.
void add_engine_options(OptionTable& table, EngineConfig& config);

}  // namespace braid
