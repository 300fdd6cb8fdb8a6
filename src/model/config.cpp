// config.json to ModelConfig: one section per part of a model, then one per family.
#include "model/config.h"

#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "model/config_reader.h"
#include "model/rope.h"

namespace braid {
namespace {

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

struct Family {
  const char* model_type;
  Architecture architecture;
  bool built;  // there is a model file for it
};
constexpr Family kFamilies[] = {
    {"llama", Architecture::kLlama, true},
    {"qwen3", Architecture::kQwen3, true},
    {"qwen3_moe", Architecture::kQwen3Moe, true},
    {"deepseek_v2", Architecture::kDeepseekV2, true},
    {"deepseek_v3", Architecture::kDeepseekV3, true},
    {"kimi_k2", Architecture::kDeepseekV3, true},  // the same keys and tensors as deepseek_v3
    {"deepseek_v32", Architecture::kDeepseekV32, false},
    {"glm_moe_dsa", Architecture::kGlmMoeDsa, false},
};

std::string built_types() {
  std::vector<std::string> names;
  for (const Family& f : kFamilies)
    if (f.built) names.push_back(f.model_type);
  return fmt::format("{}", fmt::join(names, ", "));
}

bool is_mla(Architecture a) { return a >= Architecture::kDeepseekV2; }
bool has_sparse_index(Architecture a) { return a >= Architecture::kDeepseekV32; }

// --- overrides
// --------------------------------------------------------------------------------------------------------

// Spellings of one key. An override of one of them must not be contradicted by another one in the file.
const std::vector<std::vector<const char*>> kSpellings = {
    {"num_experts", "num_local_experts", "n_routed_experts"},
    {"num_experts_per_tok", "num_experts_per_token"},
    {"dtype", "torch_dtype"},
};

void merge(Json& base, const Json& patch) {
  for (const auto& [key, value] : patch.items()) {
    if (value.is_object() && base.contains(key) && base[key].is_object()) {
      merge(base[key], value);
    } else {
      base[key] = value;  // null included: "q_lora_rank": null says something
    }
  }
}

// {"rope_parameters": {"rope_theta": t, ...}} to {"rope_theta": t, "rope_scaling": {...}}, and back.
void old_rope_spelling(Json& config) {
  if (!config.contains("rope_parameters") || !config["rope_parameters"].is_object()) return;
  Json scaling = config["rope_parameters"];
  config.erase("rope_parameters");
  if (scaling.contains("rope_theta")) config["rope_theta"] = scaling["rope_theta"];
  scaling.erase("rope_theta");
  config["rope_scaling"] = scaling;
}
void new_rope_spelling(Json& config) {
  Json parameters =
      config.contains("rope_scaling") && config["rope_scaling"].is_object() ? config["rope_scaling"] : Json::object();
  if (config.contains("rope_theta")) parameters["rope_theta"] = config["rope_theta"];
  if (config.contains("rope_parameters") && config["rope_parameters"].is_object())
    merge(parameters, config["rope_parameters"]);
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"] = parameters;
}

// A kind of scaling under one name ("type") replaces the one under the other ("rope_type").
void drop_scaling_type(Json& config, const Json& patch, const char* key) {
  if (!patch.contains(key) || !patch[key].is_object() || !config.contains(key) || !config[key].is_object()) return;
  if (!patch[key].contains("type") && !patch[key].contains("rope_type")) return;
  config[key].erase("type");
  config[key].erase("rope_type");
}

void apply_overrides(Json& config, const Json& patch) {
  for (const auto& names : kSpellings) {
    bool set = false;
    for (const char* name : names) set = set || patch.contains(name);
    if (set)
      for (const char* name : names) config.erase(name);
  }
  // Rope settings: bring the file to the patch's spelling first.
  if (patch.contains("rope_scaling") || patch.contains("rope_theta")) {
    old_rope_spelling(config);
  } else if (patch.contains("rope_parameters")) {
    new_rope_spelling(config);
  }
  drop_scaling_type(config, patch, "rope_scaling");
  drop_scaling_type(config, patch, "rope_parameters");
  merge(config, patch);
}

Json parse_overrides(const std::string& overrides) {
  Json patch;
  try {
    patch = Json::parse(overrides);
  } catch (const Json::parse_error& e) {
    throw Error("--hf-overrides is not valid JSON: {}", e.what());
  }
  if (!patch.is_object()) throw Error("--hf-overrides must be a JSON object, not {}", patch.type_name());
  return patch;
}

// --- parts of a model
// -------------------------------------------------------------------------------------------------

DType read_dtype(const ModelConfigReader& r) {
  // Absent means float32, as in transformers.
  const std::string name = r.text({"dtype", "torch_dtype"}, "float32");
  if (name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  r.fail(r.has({"dtype"}) ? "dtype" : "torch_dtype", name, "float32, bfloat16 or float16");
}

void read_yarn(RopeConfig& rope, const ModelConfigReader& r) {
  rope.beta_fast = r.positive({"beta_fast"}, 32.0);
  rope.beta_slow = r.positive({"beta_slow"}, 1.0);
  rope.truncate = r.boolean({"truncate"}, true);
  rope.mscale = r.number({"mscale"}, 0.0);
  rope.mscale_all_dim = r.number({"mscale_all_dim"}, 0.0);
  if (r.has({"attention_factor"})) rope.attention_factor = r.positive({"attention_factor"});
}

void read_llama3(RopeConfig& rope, const ModelConfigReader& r) {
  rope.low_freq_factor = r.positive({"low_freq_factor"});
  rope.high_freq_factor = r.positive({"high_freq_factor"});
  if (rope.high_freq_factor <= rope.low_freq_factor)
    r.fail("high_freq_factor", rope.high_freq_factor, fmt::format("above low_freq_factor {}", rope.low_freq_factor));
}

void read_rope_scaling(RopeConfig& rope, const ModelConfigReader& r, int64_t max_position) {
  const std::string type = r.text({"rope_type", "type"}, "default");
  if (type == "default") return;
  if (type == "linear") {
    rope.kind = RopeKind::kLinear;
  } else if (type == "yarn") {
    rope.kind = RopeKind::kYarn;
  } else if (type == "llama3") {
    rope.kind = RopeKind::kLlama3;
  } else {
    r.fail(r.has({"rope_type"}) ? "rope_type" : "type", type, "default, linear, yarn or llama3");
  }
  rope.factor = r.positive({"factor"});
  rope.original_max_position = r.integer({"original_max_position_embeddings"}, 1, kMaxTokens, max_position);
  if (rope.kind == RopeKind::kYarn) read_yarn(rope, r);
  if (rope.kind == RopeKind::kLlama3) read_llama3(rope, r);
}

RopeConfig read_rope(const ModelConfigReader& r, int64_t dim, RopeLayout layout, int64_t max_position) {
  if (dim % 2 != 0) throw Error("{}: {} rotary lanes per head; the number must be even", r.file(), dim);
  RopeConfig rope;
  rope.dim = static_cast<int>(dim);
  rope.layout = layout;
  // New files keep everything in rope_parameters; old ones have rope_theta beside rope_scaling.
  const char* key = r.has({"rope_parameters"}) ? "rope_parameters" : "rope_scaling";
  const double outer_theta = r.positive({"rope_theta"}, 10000.0);
  rope.theta = outer_theta;
  if (r.has({key})) {
    const ModelConfigReader nested = r.nested(key);
    rope.theta = nested.positive({"rope_theta"}, outer_theta);
    if (nested.has({"full_attention"}))
      throw Error("{}: '{}' differs by kind of layer; only one for all is supported", r.file(), key);
    if (const double part = nested.number({"partial_rotary_factor"}, 1.0); part != 1.0)
      nested.fail("partial_rotary_factor", part, "1");
    read_rope_scaling(rope, nested, max_position);
  }
  if (rope.theta <= 1.0) throw Error("{}: 'rope_theta' is {}; it must be above 1", r.file(), rope.theta);
  return rope;
}

void read_attention(ModelConfig& c, const ModelConfigReader& r) {
  c.n_heads = static_cast<int>(r.size({"num_attention_heads"}));
  c.n_kv_heads = static_cast<int>(r.size({"num_key_value_heads"}, c.n_heads));
  if (c.n_heads % c.n_kv_heads != 0)
    throw Error("{}: 'num_key_value_heads' is {}; it must divide the {} of 'num_attention_heads'", c.file, c.n_kv_heads,
                c.n_heads);
  // Only llama may leave it out; in the others it is not hidden / heads in general.
  const bool derived = c.architecture == Architecture::kLlama && !r.has({"head_dim"});
  if (derived && c.hidden % c.n_heads != 0)
    throw Error("{}: 'num_attention_heads' is {}; without 'head_dim' it must divide the {} of 'hidden_size'", c.file,
                c.n_heads, c.hidden);
  c.head_dim = derived ? c.hidden / c.n_heads : r.size({"head_dim"});
  for (const std::string& kind : r.texts({"layer_types"}))
    if (kind != "full_attention") r.fail("layer_types", kind, "full_attention in every layer");
  if (r.boolean({"use_sliding_window"}, false)) r.fail("use_sliding_window", true, "false");
  c.rope = read_rope(r, c.head_dim, RopeLayout::kHalfSplit, c.max_position);
}

void read_mla(ModelConfig& c, const ModelConfigReader& r) {
  c.n_heads = c.n_kv_heads = static_cast<int>(r.size({"num_attention_heads"}));
  MlaConfig mla;
  if (!r.present({"q_lora_rank"})) throw Error("{}: 'q_lora_rank' is missing (null: q has no low rank form)", c.file);
  mla.q_lora_rank = r.integer({"q_lora_rank"}, 1, kMaxConfigSize, 0);
  mla.kv_lora_rank = r.size({"kv_lora_rank"});
  mla.qk_nope = r.size({"qk_nope_head_dim"});
  mla.qk_rope = r.size({"qk_rope_head_dim"});
  mla.v_head = r.size({"v_head_dim"});
  // transformers builds the latent norms with its class default of 1e-6, whatever rms_norm_eps is (GLM: 1e-5).
  mla.latent_norm_eps = 1e-6f;
  c.mla = mla;
  const bool half = c.architecture == Architecture::kDeepseekV3 && !r.boolean({"rope_interleave"}, true);
  c.rope = read_rope(r, mla.qk_rope, half ? RopeLayout::kHalfSplit : RopeLayout::kInterleaved, c.max_position);
}

// Which layers have an indexer of their own: the list, else the pattern, else the formula.
std::vector<bool> full_index_layers(const ModelConfig& c, const ModelConfigReader& r) {
  const size_t n = static_cast<size_t>(c.n_layers);
  std::vector<bool> full(n, true);
  std::vector<std::string> kinds = r.texts({"indexer_types"});
  const std::string pattern = r.text({"index_topk_pattern"}, "");
  if (kinds.empty())
    for (const char letter : pattern) kinds.push_back(letter == 'F' ? "full" : letter == 'S' ? "shared" : "?");
  if (!kinds.empty()) {
    const char* key = r.has({"indexer_types"}) ? "indexer_types" : "index_topk_pattern";
    if (kinds.size() < n) throw Error("{}: '{}' has {} entries for {} layers", c.file, key, kinds.size(), n);
    for (size_t i = 0; i < n; ++i) {
      if (kinds[i] != "full" && kinds[i] != "shared") r.fail(key, kinds[i], "full or shared in every layer");
      full[i] = kinds[i] == "full";
    }
  } else {
    const int64_t every = r.size({"index_topk_freq"}, 1);
    const int64_t offset = r.integer({"index_skip_topk_offset"}, 0, kMaxConfigSize, 2);
    for (size_t i = 0; i < n; ++i) full[i] = std::max<int64_t>(static_cast<int64_t>(i) - offset + 1, 0) % every == 0;
  }
  if (!full[0]) throw Error("{}: layer 0 shares an index choice, but no layer before it makes one", c.file);
  return full;
}

void read_indexer(ModelConfig& c, const ModelConfigReader& r) {
  IndexerConfig indexer;
  indexer.n_heads = r.size({"index_n_heads"});
  indexer.head_dim = r.size({"index_head_dim"});
  indexer.top_k = r.size({"index_topk"});
  indexer.full = full_index_layers(c, r);
  c.indexer = indexer;
}

// --- mixtures
// ---------------------------------------------------------------------------------------------------------

void require_text(const ModelConfigReader& r, const char* key, std::initializer_list<const char*> allowed) {
  if (!r.has({key})) return;  // re-exported files leave out what the family fixes
  const std::string value = r.text({key});
  for (const char* a : allowed)
    if (value == a) return;
  r.fail(key, value, fmt::format("{}", fmt::join(allowed, " or ")));
}

void read_experts(ModelConfig& c, const ModelConfigReader& r) {
  c.moe.n_experts = r.size({"num_experts", "num_local_experts", "n_routed_experts"});
  c.moe.intermediate = r.size({"moe_intermediate_size"});
  const int64_t n = c.moe.n_experts;
  c.moe.router.top_k = static_cast<int>(r.integer({"num_experts_per_tok", "num_experts_per_token"}, 1, n));
}

void read_groups(ModelConfig& c, const ModelConfigReader& r, GroupScore score) {
  RouterSpec& router = c.moe.router;
  router.n_groups = static_cast<int>(r.size({"n_group"}));
  router.top_groups = static_cast<int>(r.integer({"topk_group"}, 1, router.n_groups));
  if (c.moe.n_experts % router.n_groups != 0)
    throw Error("{}: 'n_group' is {}; it must divide the {} experts", c.file, router.n_groups, c.moe.n_experts);
  const int64_t per_group = c.moe.n_experts / router.n_groups;
  if (router.top_k > per_group * router.top_groups)
    throw Error("{}: 'num_experts_per_tok' is {}, but the {} chosen groups hold {} experts", c.file, router.top_k,
                router.top_groups, per_group * router.top_groups);
  if (router.n_groups == 1) return;  // nothing to rank
  if (score == GroupScore::kTopTwoSum && per_group < 2)
    throw Error("{}: 'n_group' is {} for {} experts; a group is ranked by its two best and needs two", c.file,
                router.n_groups, c.moe.n_experts);
  router.group_score = score;
}

void read_deepseek_router(ModelConfig& c, const ModelConfigReader& r) {
  RouterSpec& router = c.moe.router;
  router.scale = static_cast<float>(r.positive({"routed_scaling_factor"}));
  if (c.architecture == Architecture::kDeepseekV2) {
    require_text(r, "scoring_func", {"softmax"});
    require_text(r, "topk_method", {"greedy", "group_limited_greedy"});
    router.score = RouterScore::kSoftmax;
    if (r.text({"topk_method"}, "greedy") == "group_limited_greedy") read_groups(c, r, GroupScore::kMax);
    // transformers does not renormalise for this family, whatever the key says.
    if (r.boolean({"norm_topk_prob"}, false))
      log_warn("{}: 'norm_topk_prob' is true; deepseek_v2 never renormalises, as in transformers", c.file);
    return;
  }
  require_text(r, "scoring_func", {"sigmoid"});
  require_text(r, "topk_method", {"noaux_tc"});
  router.score = RouterScore::kSigmoid;
  router.renormalise = r.boolean({"norm_topk_prob"}, true);
  c.moe.has_correction_bias = true;
  read_groups(c, r, GroupScore::kTopTwoSum);
}

// mlp_layer_types names each layer and beats the formulas. Drafting layers follow the formula of the layers before
// them.
void read_moe_layers(ModelConfig& c, const ModelConfigReader& r) {
  const size_t n = static_cast<size_t>(c.n_layers), all = n + static_cast<size_t>(c.n_mtp_layers);
  c.moe_layer.assign(all, false);
  if (c.moe.n_experts == 0) return;
  if (c.architecture == Architecture::kQwen3Moe) {
    const int64_t step = r.size({"decoder_sparse_step"}, 1);
    for (size_t i = 0; i < all; ++i) c.moe_layer[i] = (static_cast<int64_t>(i) + 1) % step == 0;
    for (const int64_t i : r.integers({"mlp_only_layers"}, 0, c.n_layers - 1))
      c.moe_layer[static_cast<size_t>(i)] = false;
    return;
  }
  const std::vector<std::string> kinds = r.texts({"mlp_layer_types"});
  const int64_t first = r.integer({"first_k_dense_replace"}, 0, kMaxConfigSize,
                                  kinds.empty() ? std::optional<int64_t>{} : std::optional<int64_t>{0});
  const int64_t every = r.size({"moe_layer_freq"}, 1);
  for (size_t i = 0; i < all; ++i)
    c.moe_layer[i] = static_cast<int64_t>(i) >= first && static_cast<int64_t>(i) % every == 0;
  if (kinds.empty()) return;
  if (kinds.size() < n) throw Error("{}: 'mlp_layer_types' has {} entries for {} layers", c.file, kinds.size(), n);
  for (size_t i = 0; i < std::min(all, kinds.size()); ++i) {
    if (kinds[i] != "dense" && kinds[i] != "sparse")
      r.fail("mlp_layer_types", kinds[i], "dense or sparse in every layer");
    c.moe_layer[i] = kinds[i] == "sparse";
  }
}

// --- the whole
// --------------------------------------------------------------------------------------------------------

void read_quantisation(ModelConfig& c, const ModelConfigReader& r) {
  if (!r.has({"quantization_config"})) return;
  const ModelConfigReader q = r.nested("quantization_config");
  if (const std::string method = q.text({"quant_method"}); method != "fp8")
    q.fail("quant_method", method, "fp8 (e4m3 with weight_block_size)");
  require_text(q, "fmt", {"e4m3"});
  c.fp8 = true;
  if (!q.has({"weight_block_size"})) return;
  const std::vector<int64_t> block = q.integers({"weight_block_size"}, 1, kMaxConfigSize);
  if (block.size() != 2) throw Error("{}: 'quantization_config.weight_block_size' must be [rows, columns]", c.file);
  c.fp8_block_rows = block[0];
  c.fp8_block_columns = block[1];
}

void read_token_ids(ModelConfig& c, const ModelConfigReader& r) {
  for (const int64_t id : r.integers({"eos_token_id"}, 0, kMaxTokens)) c.eos_ids.push_back(static_cast<int32_t>(id));
  if (r.has({"bos_token_id"})) c.bos_id = static_cast<int32_t>(r.integer({"bos_token_id"}, 0, kMaxTokens));
}

void read_common(ModelConfig& c, const ModelConfigReader& r) {
  c.dtype = read_dtype(r);
  c.vocab = r.integer({"vocab_size"}, 1, int64_t{1} << 24);
  c.hidden = r.size({"hidden_size"});
  c.intermediate = r.size({"intermediate_size"});
  c.n_layers = static_cast<int>(r.integer({"num_hidden_layers"}, 1, 4096));
  c.n_mtp_layers = static_cast<int>(r.integer({"num_nextn_predict_layers"}, 0, 64, 0));
  c.max_position = r.integer({"max_position_embeddings"}, 1, kMaxTokens);
  c.norm_eps = static_cast<float>(r.positive({"rms_norm_eps"}));
  c.tie_embeddings = r.boolean({"tie_word_embeddings"}, false);
  c.attention_bias = r.boolean({"attention_bias"}, false);
  c.mlp_bias = r.boolean({"mlp_bias"}, false);
  require_text(r, "hidden_act", {"silu"});
  read_token_ids(c, r);
  read_quantisation(c, r);
}

ModelConfig parse(const ModelConfigReader& r) {
  ModelConfig c;
  c.file = r.file();
  c.model_type = r.text({"model_type"});
  const Family* family = nullptr;
  for (const Family& f : kFamilies)
    if (c.model_type == f.model_type) family = &f;
  if (family == nullptr)
    throw Error("{}: model_type '{}' is not supported; supported are {}", c.file, c.model_type, built_types());
  c.architecture = family->architecture;
  read_common(c, r);
  if (is_mla(c.architecture)) {
    read_mla(c, r);
    if (has_sparse_index(c.architecture)) read_indexer(c, r);
    read_experts(c, r);
    c.moe.shared_intermediate = r.integer({"n_shared_experts"}, 0, 1024, 0) * c.moe.intermediate;
    read_deepseek_router(c, r);
  } else {
    read_attention(c, r);
    c.qk_norm = c.architecture != Architecture::kLlama;
    if (c.architecture == Architecture::kQwen3Moe) {
      read_experts(c, r);
      c.moe.router.renormalise = r.boolean({"norm_topk_prob"}, false);
    }
  }
  read_moe_layers(c, r);
  return c;
}

std::string beside(const std::string& path, const char* name) {
  const std::filesystem::path p(path);
  return (std::filesystem::is_directory(p) ? p / name : p.parent_path() / name).string();
}

}  // namespace

double ModelConfig::softmax_scale() const {
  const double width = static_cast<double>(mla ? mla->qk_head() : head_dim);
  const double m = mla && rope.kind == RopeKind::kYarn && rope.mscale_all_dim != 0.0
                       ? yarn_mscale(rope.factor, rope.mscale_all_dim)
                       : 1.0;
  return m * m / std::sqrt(width);
}

ModelConfig load_model_config(const std::string& path, const std::string& overrides) {
  const std::string file = std::filesystem::is_directory(path) ? beside(path, "config.json") : path;
  Json config = read_json_file(file);
  if (!config.is_object()) throw Error("{} must hold a JSON object, not {}", file, config.type_name());
  if (!overrides.empty()) apply_overrides(config, parse_overrides(overrides));
  return parse(ModelConfigReader(config, file));
}

void check_supported(const ModelConfig& c) {
  for (const Family& f : kFamilies)
    if (f.architecture == c.architecture && f.built) return;
  throw Error("{}: model_type '{}' is not supported yet; supported are {}", c.file, c.model_type, built_types());
}

GenerationConfig load_generation_config(const std::string& path, const ModelConfig& config) {
  GenerationConfig g;
  g.eos_ids = config.eos_ids;
  const std::string file = beside(path, "generation_config.json");
  if (!std::filesystem::exists(file)) return g;
  const Json json = read_json_file(file);
  if (!json.is_object()) throw Error("{} must hold a JSON object, not {}", file, json.type_name());
  const ModelConfigReader r(json, file);
  if (r.has({"eos_token_id"})) {
    g.eos_ids.clear();
    for (const int64_t id : r.integers({"eos_token_id"}, 0, kMaxTokens)) g.eos_ids.push_back(static_cast<int32_t>(id));
  }
  if (r.has({"do_sample"})) g.do_sample = r.boolean({"do_sample"}, false);
  if (r.has({"temperature"})) g.temperature = r.number({"temperature"});
  if (r.has({"top_p"})) g.top_p = r.number({"top_p"});
  if (r.has({"top_k"})) g.top_k = static_cast<int32_t>(r.integer({"top_k"}, -1, kMaxTokens));
  if (r.has({"repetition_penalty"})) g.repetition_penalty = r.positive({"repetition_penalty"});
  return g;
}

}  // namespace braid
