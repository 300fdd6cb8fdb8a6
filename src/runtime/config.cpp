#include "runtime/config.h"

namespace braid {
namespace {

void range(OptionRow& row, double min, double max) { row.min = min, row.max = max; }

void add_model_options(OptionTable& t, EngineConfig& c) {
  t.set_group("model");
  t.add("model", &c.model, "Hugging Face folder, or a config.json alone where weights are dummy; may stand first, without --model");
  t.add("tokenizer", &c.tokenizer, "folder of the tokenizer; default: the model's");
  t.add("load-format", &c.load_format, "auto: safetensors; dummy: weights from --seed and their names", {}).choices = {"auto", "safetensors", "dummy"};
  t.add("hf-overrides", &c.hf_overrides, "JSON object that replaces keys of config.json");
  t.add("dtype", &c.dtype, "activation type; auto: the checkpoint's").choices = {"auto", "float32", "bfloat16", "float", "bf16", "half", "float16"};
  t.add("quantization", &c.quantization,
        "eight-bit weights of linear layers and experts, on CPU ranks: fp8 and int8 round the checkpoint's; auto: a float8 checkpoint stays so; none: it is widened").choices = {"auto", "none", "fp8", "int8"};
  t.add("seed", &c.seed, "of dummy weights, and of requests that bring none");
  t.add("trust-remote-code", &c.trust_remote_code, "accepted and ignored: no code is ever run from a checkpoint");
}

void add_rank_options(OptionTable& t, EngineConfig& c) {
  t.set_group("ranks");
  range(t.add("tensor-parallel-size", &c.layout.tp, "ranks that share each layer", {"tp"}), 1, 1024);
  range(t.add("decode-context-parallel-size", &c.layout.dcp, "ranks that share one sequence's KV cache; divides tp", {"dcp"}), 1, 1024);
  t.add("dcp-config", &c.dcp_config, "JSON object: interleave_size (1), enable_query_replication (true), enable_project_before_merge (true), comm_backend (a2a, or ag_rs)");
  range(t.add("dcp-kv-cache-interleave-size", &c.dcp_interleave, "interleave_size of --dcp-config; 0: as there", {"cp-kv-cache-interleave-size"}), 0, 65536);
  t.add("dcp-comm-backend", &c.dcp_comm_backend, "comm_backend of --dcp-config; empty: as there").choices = {"", "a2a", "ag_rs"};
  range(t.add("prefill-context-parallel-size", &c.layout.pcp, "ranks that share one prompt's tokens", {"pcp"}), 1, 1024);
  range(t.add("data-parallel-size", &c.layout.dp, "independent copies of the attention", {"dp"}), 1, 1024);
  t.add("device", &c.device, "back end of every rank; auto: cuda where a GPU is usable, else cpu").choices = {"auto", "cpu", "cuda", "reference"};
  t.add("enforce-eager", &c.enforce_eager, "GPUs: run decode steps operation by operation, without recorded graphs");
  t.add("cuda-graph-sizes", &c.graph_sizes, "sequences of the decode steps that are recorded: a list (1,2,4,8), or one number, the largest; default: up to --max-num-seqs, at most 256", {"cudagraph-capture-sizes"});
  t.add("cpu-level", &c.cpu_level, "instruction set of CPU ranks, for comparisons; auto: the best that the machine has").choices = {"auto", "v2", "v3", "v4", "v4_bf16"};
  range(t.add("threads", &c.threads, "worker threads of a rank; 0: the cores divided by the local ranks"), 0, 1024);
  t.add("fp8-query", &c.fp8_query, "gather the queries of a float8 cache as float8: half the message and a little less precision");
  t.add("reproducible", &c.reproducible, "the same bits for every layout, chunking and batch; slower");
  range(t.add("stall-seconds", &c.stall_seconds, "a collective that waits longer is reported and ends the run"), 0.1, 86400);
}

void add_cache_options(OptionTable& t, EngineConfig& c) {
  t.set_group("cache");
  t.add("kv-cache-dtype", &c.kv_cache_dtype, "type of cached keys and values; auto: the activation type").choices = {"auto", "float32", "bf16", "bfloat16", "fp8", "fp8_e4m3"};
  range(t.add("block-size", &c.block_size, "tokens of a KV block on one rank"), 1, 65536);
  range(t.add("gpu-memory-utilization", &c.memory_utilization, "share of the device's memory to use (CPU ranks: of half the machine's)", {"memory-utilization"}), 0.01, 1.0);
  t.add("kv-cache-memory-bytes", &c.kv_cache_memory, "KV bytes of each rank (64GiB, 10G); overrides the share", {"kv-cache-memory"});
  range(t.add("num-kv-blocks", &c.num_kv_blocks, "exact number of KV blocks; 0: as many as fit", {"num-gpu-blocks-override"}), 0, 1e12);
  t.add("enable-prefix-caching", &c.prefix_caching, "reuse the KV of equal prompt beginnings");
}

void add_scheduler_options(OptionTable& t, EngineConfig& c) {
  t.set_group("scheduler");
  t.add("max-model-len", &c.max_model_len, "tokens of prompt and answer together; auto: the model's limit or what fits");
  range(t.add("max-num-seqs", &c.max_num_seqs, "sequences in one step"), 1, 1 << 20);
  range(t.add("max-num-batched-tokens", &c.max_num_batched_tokens, "tokens computed in one step"), 1, 1 << 24);
  t.add("enable-chunked-prefill", &c.chunked_prefill, "split prompts longer than a step's budget");
  range(t.add("prefill-chunk", &c.prefill_chunk, "exact chunk size, exempt from alignment (for tests); 0: off"), 0, 1 << 24);
  range(t.add("long-prefill-token-threshold", &c.long_prefill_token_threshold, "most tokens of one prompt in a step; 0: off"), 0, 1 << 24);
  t.add("attn-prefill-form", &c.attn_prefill_form,
        "several new tokens attend to expanded keys and gathered rows, or absorbed, through the cache; auto: whichever costs less").choices = {"auto", "expanded", "absorbed"};
  range(t.add("attn-prefill-chunk-size", &c.attn_prefill_chunk, "cached tokens that the expanded form gathers at a time"), 1, 1e9);
}

}  // namespace

void add_engine_options(OptionTable& t, EngineConfig& c) {
  add_model_options(t, c);
  add_rank_options(t, c);
  add_cache_options(t, c);
  add_scheduler_options(t, c);
}

}  // namespace braid
