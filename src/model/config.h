// What a model's config.json says, as final numbers: one plain struct that model files, `plan` and the runtime read, so
// that nothing else looks at raw JSON. Old and new Hugging Face spellings give the same struct.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace braid {

enum class Architecture { kLlama, kQwen3, kQwen3Moe, kDeepseekV2, kDeepseekV3, kDeepseekV32, kGlmMoeDsa };
enum class RopeKind { kDefault, kLinear, kYarn, kLlama3 };

struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  RopeLayout layout = RopeLayout::kHalfSplit;
  int dim = 0;  // lanes rotated per head, even
  double theta = 10000.0;
  double factor = 1.0;                                   // context extension; kinds other than default
  int64_t original_max_position = 0;                     // yarn, llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn: rotations over the original length
  bool truncate = true;                                  // yarn: round the ramp's ends to whole lanes
  double mscale = 0.0, mscale_all_dim = 0.0;             // yarn, DeepSeek; 0: not given
  std::optional<double> attention_factor;                // yarn: multiplies cos and sin; not given: derived
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
};

// Latent attention. Widths of q, k and v come from here only: `head_dim` of an MLA config means something else.
struct MlaConfig {
  int64_t q_lora_rank = 0;  // 0: q is projected directly
  int64_t kv_lora_rank = 0, qk_nope = 0, qk_rope = 0, v_head = 0;
  float latent_norm_eps = 1e-6f;  // of q_a_layernorm and kv_a_layernorm
  int64_t qk_head() const { return qk_nope + qk_rope; }
};

// Sparse index of deepseek_v32 and glm_moe_dsa.
struct IndexerConfig {
  int64_t n_heads = 0, head_dim = 0, top_k = 0;
  std::vector<bool> full;  // per layer: has its own indexer; others reuse the choice of the nearest full layer before
};

struct MoeConfig {
  int64_t n_experts = 0;            // 0: no layer is a mixture
  int64_t intermediate = 0;         // of one routed expert
  int64_t shared_intermediate = 0;  // of the shared experts together; 0: none
  RouterSpec router;
  bool has_correction_bias = false;
};

struct ModelConfig {
  std::string file;  // for messages
  Architecture architecture = Architecture::kLlama;
  std::string model_type;     // as the file spells it
  DType dtype = DType::kF32;  // the checkpoint's float type: float32, bfloat16 or float16

  int64_t vocab = 0, hidden = 0;
  int64_t intermediate = 0;  // of a dense layer
  int n_layers = 0;
  int n_mtp_layers = 0;  // drafting layers, stored as layers n_layers and up
  int n_heads = 0, n_kv_heads = 0;
  int64_t head_dim = 0;  // 0 for latent attention
  int64_t max_position = 0;
  float norm_eps = 1e-6f;
  bool tie_embeddings = false, attention_bias = false, mlp_bias = false;
  bool qk_norm = false;  // per-head norms of q and k

  RopeConfig rope;
  std::optional<MlaConfig> mla;
  std::optional<IndexerConfig> indexer;
  MoeConfig moe;
  std::vector<bool> moe_layer;  // [n_layers + n_mtp_layers]

  bool fp8 = false;                                       // the checkpoint's linear layers are float8_e4m3
  int64_t fp8_block_rows = 128, fp8_block_columns = 128;  // of one weight_scale_inv entry

  std::vector<int32_t> eos_ids;
  std::optional<int32_t> bos_id;

  bool is_moe_layer(int layer) const { return moe_layer.at(static_cast<size_t>(layer)); }
  double softmax_scale() const;  // final: 1/sqrt(width of q), times mscale^2 for DeepSeek's yarn
};

// `path` is a checkpoint folder or a config file. `overrides` is a JSON object (empty: none) merged into the file's
// before it is read: objects key by key, anything else replaced; setting one spelling of a key drops the others. Throws
// Error naming file, key and value.
ModelConfig load_model_config(const std::string& path, const std::string& overrides = "");

// Throws Error when the configuration can be read, and planned with, but not built yet.
void check_supported(const ModelConfig&);

// Sampling defaults beside the checkpoint; absent keys stay empty, a missing file leaves all empty but eos_ids, which
// are then the config's.
struct GenerationConfig {
  std::vector<int32_t> eos_ids;
  std::optional<bool> do_sample;
  std::optional<double> temperature, top_p, repetition_penalty;
  std::optional<int32_t> top_k;
};
GenerationConfig load_generation_config(const std::string& path, const ModelConfig&);

}  // namespace braid
