// config.json of every family and spelling, and the sentences for what is wrong with one.
#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "model/test_files.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kData = BRAID_SOURCE_DIR "/tests/data/";
ModelConfig fixture(const std::string& name, const std::string& overrides = "") {
  return load_model_config(kData + "fixtures/" + name, overrides);
}
ModelConfig released(const std::string& name, const std::string& overrides = "") {
  return load_model_config(kData + "configs/" + name + ".json", overrides);
}

// A file with some keys of a fixture changed; null erases a key.
std::string changed(const TempFolder& folder, const std::string& name, const Json& changes) {
  Json json = read_json_file(kData + "fixtures/" + name + "/config.json");
  json.merge_patch(changes);
  return folder.write("config.json", to_string(json));
}
std::string complaint(const std::string& name, const Json& changes) {
  const TempFolder folder;
  const std::string file = changed(folder, name, changes);
  const std::string message = error_of([&] { load_model_config(file); });
  EXPECT_THAT(message, HasSubstr(file));
  return message;
}

}  // namespace

TEST(Config, Llama) {
  const ModelConfig c = fixture("llama");
  EXPECT_EQ(c.architecture, Architecture::kLlama);
  EXPECT_EQ(c.dtype, DType::kBF16);
  EXPECT_EQ(c.vocab, 320);
  EXPECT_EQ(c.hidden, 64);
  EXPECT_EQ(c.intermediate, 160);
  EXPECT_EQ(c.n_layers, 3);
  EXPECT_EQ(c.n_heads, 8);
  EXPECT_EQ(c.n_kv_heads, 2);
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_EQ(c.max_position, 4096);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  EXPECT_FALSE(c.tie_embeddings || c.qk_norm || c.attention_bias || c.mlp_bias);
  EXPECT_EQ(c.rope.dim, 8);
  EXPECT_EQ(c.rope.theta, 10000.0);
  EXPECT_EQ(c.rope.layout, RopeLayout::kHalfSplit);
  EXPECT_FALSE(c.mla || c.indexer);
  EXPECT_THAT(c.moe_layer, ElementsAre(false, false, false));
  EXPECT_THAT(c.eos_ids, ElementsAre(2));
  EXPECT_EQ(c.bos_id, 1);
  EXPECT_DOUBLE_EQ(c.softmax_scale(), 1.0 / std::sqrt(8.0));
  EXPECT_NO_THROW(check_supported(c));
}

TEST(Config, Qwen3AndItsMixture) {
  const ModelConfig dense = fixture("qwen3");
  EXPECT_TRUE(dense.qk_norm && dense.tie_embeddings);
  EXPECT_EQ(dense.head_dim, 16);
  EXPECT_EQ(dense.rope.theta, 1e6);
  EXPECT_TRUE(dense.eos_ids.empty());
  EXPECT_FALSE(dense.bos_id);
  const ModelConfig moe = fixture("qwen3_moe");
  EXPECT_EQ(moe.moe.n_experts, 16);
  EXPECT_EQ(moe.moe.intermediate, 32);
  EXPECT_EQ(moe.moe.shared_intermediate, 0);
  EXPECT_EQ(moe.moe.router.top_k, 4);
  EXPECT_EQ(moe.moe.router.score, RouterScore::kSoftmax);
  EXPECT_EQ(moe.moe.router.group_score, GroupScore::kNone);
  EXPECT_TRUE(moe.moe.router.renormalise);
  EXPECT_FALSE(moe.moe.has_correction_bias);
  EXPECT_THAT(moe.moe_layer, ElementsAre(true, true, true));
  const ModelConfig sparse =
      fixture("qwen3_moe", R"({"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]})");
  EXPECT_THAT(sparse.moe_layer, ElementsAre(false, true, false, false, false, true));
}

TEST(Config, DeepseekV2Lite) {
  for (const ModelConfig& c : {fixture("deepseek_v2_lite"), released("deepseek-v2-lite")}) {
    EXPECT_EQ(c.architecture, Architecture::kDeepseekV2);
    EXPECT_EQ(c.mla->q_lora_rank, 0);
    EXPECT_EQ(c.head_dim, 0);  // the file's head_dim is a trap
    EXPECT_EQ(c.rope.layout, RopeLayout::kInterleaved);
    EXPECT_EQ(c.moe.router.score, RouterScore::kSoftmax);
    EXPECT_EQ(c.moe.router.group_score, GroupScore::kNone);
    EXPECT_EQ(c.moe.router.scale, 1.0f);
    EXPECT_FALSE(c.moe.router.renormalise || c.moe.has_correction_bias || c.is_moe_layer(0));
    EXPECT_TRUE(c.is_moe_layer(1));
    EXPECT_EQ(c.moe.shared_intermediate, 2 * c.moe.intermediate);
  }
  const ModelConfig lite = released("deepseek-v2-lite");
  EXPECT_NEAR(lite.softmax_scale() * std::sqrt(192.0), 1.58963, 1e-5);
  const ModelConfig grouped =
      released("deepseek-v2-lite", R"({"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3})");
  EXPECT_EQ(grouped.moe.router.group_score, GroupScore::kMax);
  EXPECT_EQ(grouped.moe.router.n_groups, 8);
  EXPECT_EQ(grouped.moe.router.top_groups, 3);
}

TEST(Config, DeepseekV3) {
  const ModelConfig c = released("deepseek-r1");
  EXPECT_EQ(c.architecture, Architecture::kDeepseekV3);
  EXPECT_EQ(c.mla->q_lora_rank, 1536);
  EXPECT_EQ(c.mla->kv_lora_rank, 512);
  EXPECT_EQ(c.mla->qk_head(), 192);
  EXPECT_EQ(c.mla->v_head, 128);
  EXPECT_EQ(c.moe.router.n_groups, 8);
  EXPECT_EQ(c.moe.router.top_groups, 4);
  EXPECT_EQ(c.moe.router.group_score, GroupScore::kTopTwoSum);
  EXPECT_EQ(c.moe.router.score, RouterScore::kSigmoid);
  EXPECT_EQ(c.moe.router.scale, 2.5f);
  EXPECT_TRUE(c.moe.router.renormalise && c.moe.has_correction_bias);
  EXPECT_EQ(c.moe_layer.size(), 62u);  // the drafting layer included
  EXPECT_FALSE(c.is_moe_layer(2));
  EXPECT_TRUE(c.is_moe_layer(3) && c.is_moe_layer(61));
  EXPECT_EQ(c.fp8_block_rows, 128);
  EXPECT_NEAR(c.softmax_scale(), 0.135234, 5e-7);
  const ModelConfig tiny = fixture("deepseek_v3");
  EXPECT_EQ(tiny.rope.kind, RopeKind::kDefault);
  EXPECT_EQ(tiny.n_mtp_layers, 0);
  EXPECT_EQ(tiny.head_dim, 0);
  EXPECT_DOUBLE_EQ(tiny.softmax_scale(), 1.0 / std::sqrt(40.0));
  EXPECT_EQ(fixture("deepseek_v3_yarn").rope.original_max_position, 64);
  const ModelConfig demo = load_model_config(BRAID_SOURCE_DIR "/models/demo");  // the old spelling of dtype and rope
  EXPECT_EQ(demo.dtype, DType::kBF16);
  EXPECT_EQ(demo.rope.theta, 100000.0);
  EXPECT_EQ(demo.n_mtp_layers, 1);
}

TEST(Config, PlannedButNotBuiltFamilies) {
  const ModelConfig v32 = released("deepseek-v3.2-exp");
  EXPECT_EQ(v32.indexer->n_heads, 64);
  EXPECT_EQ(v32.indexer->full, std::vector<bool>(61, true));
  const ModelConfig glm = released("glm-5.2");
  EXPECT_EQ(glm.indexer->head_dim, 128);
  EXPECT_EQ(glm.mla->latent_norm_eps, 1e-6f);
  EXPECT_EQ(glm.norm_eps, 1e-5f);
  EXPECT_DOUBLE_EQ(glm.softmax_scale(), 0.0625);
  EXPECT_EQ(std::count(glm.indexer->full.begin(), glm.indexer->full.end(), true), 21);
  // The formula and the list of the released file agree.
  EXPECT_EQ(released("glm-5.2", R"({"indexer_types": null})").indexer->full, glm.indexer->full);
  for (const ModelConfig& c : {v32, glm})
    EXPECT_THAT(error_of([&] { check_supported(c); }), HasSubstr("is not supported yet; supported are llama, qwen3"));
}

TEST(Config, KimiK2ReadsAsDeepseekV3) {
  const ModelConfig c = released("deepseek-r1", R"({"model_type": "kimi_k2", "n_group": 1, "topk_group": 1})");
  EXPECT_EQ(c.architecture, Architecture::kDeepseekV3);
  EXPECT_EQ(c.moe.router.group_score, GroupScore::kNone);
}

TEST(Config, OldAndNewSpellingsAgree) {
  const ModelConfig old = fixture("deepseek_v3", R"({"rope_theta": 5000, "rope_scaling": {"type": "yarn", "factor": 4,
      "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0}})");
  const ModelConfig fresh = fixture("deepseek_v3_yarn", R"({"rope_parameters": {"rope_theta": 5000}})");
  for (const ModelConfig& c : {old, fresh}) {
    EXPECT_EQ(c.rope.kind, RopeKind::kYarn);
    EXPECT_EQ(c.rope.theta, 5000.0);
    EXPECT_EQ(c.rope.factor, 4.0);
    EXPECT_EQ(c.rope.beta_fast, 32.0);
    EXPECT_EQ(c.rope.mscale_all_dim, 1.0);
  }
  // An override in the other spelling replaces what the file says, and keeps what it does not mention.
  EXPECT_EQ(fixture("deepseek_v3_yarn", R"({"rope_theta": 7000})").rope.factor, 4.0);
  EXPECT_EQ(fixture("deepseek_v3_yarn", R"({"rope_scaling": {"type": "linear"}})").rope.kind, RopeKind::kLinear);
  EXPECT_EQ(released("deepseek-r1", R"({"rope_parameters": {"factor": 8}})").rope.factor, 8.0);
  EXPECT_EQ(released("deepseek-r1", R"({"rope_parameters": {"factor": 8}})").rope.kind, RopeKind::kYarn);
  EXPECT_EQ(fixture("qwen3_moe", R"({"num_experts": 8})").moe.n_experts, 8);
  EXPECT_EQ(fixture("qwen3_moe", R"({"torch_dtype": "float16"})").dtype, DType::kF16);
  EXPECT_THAT(complaint("qwen3_moe", {{"num_experts", 8}}),
              HasSubstr("'num_experts' is 8 but 'num_local_experts' is 16"));
}

TEST(Config, OverridesMergeAndMayBringUnknownKeys) {
  const ModelConfig c = fixture("llama", R"({"num_hidden_layers": 7, "nonsense": {"a": 1}, "eos_token_id": [3, 4]})");
  EXPECT_EQ(c.n_layers, 7);
  EXPECT_THAT(c.eos_ids, ElementsAre(3, 4));
  EXPECT_EQ(fixture("deepseek_v3", R"({"q_lora_rank": null})").mla->q_lora_rank, 0);
  EXPECT_THAT(error_of([] { fixture("llama", "[1]"); }), HasSubstr("--hf-overrides must be a JSON object"));
  EXPECT_THAT(error_of([] { fixture("llama", "{"); }), HasSubstr("--hf-overrides is not valid JSON"));
}

TEST(Config, WrongValuesAreNamedWithFileAndKey) {
  EXPECT_THAT(
      complaint("llama", {{"model_type", "gpt_oss"}}),
      HasSubstr(
          "model_type 'gpt_oss' is not supported; supported are llama, qwen3, qwen3_moe, deepseek_v2, deepseek_v3"));
  EXPECT_THAT(complaint("llama", {{"model_type", nullptr}}), HasSubstr("'model_type' is missing"));
  EXPECT_THAT(complaint("llama", {{"hidden_size", nullptr}}), HasSubstr("'hidden_size' is missing"));
  EXPECT_THAT(complaint("llama", {{"hidden_size", 0}}), HasSubstr("'hidden_size' is 0; it must be an integer from 1"));
  EXPECT_THAT(complaint("llama", {{"hidden_size", -64}}), HasSubstr("'hidden_size' is -64"));
  EXPECT_THAT(complaint("llama", {{"hidden_size", "64"}}), HasSubstr("'hidden_size' is \"64\""));
  EXPECT_THAT(complaint("llama", {{"hidden_size", 64.5}}), HasSubstr("'hidden_size' is 64.5"));
  EXPECT_THAT(complaint("llama", {{"hidden_size", true}}), HasSubstr("'hidden_size' is true"));
  EXPECT_THAT(complaint("llama", {{"vocab_size", 18446744073709551615u}}),
              HasSubstr("'vocab_size' is 18446744073709551615"));
  EXPECT_THAT(complaint("llama", {{"num_key_value_heads", 3}}),
              HasSubstr("'num_key_value_heads' is 3; it must divide the 8"));
  EXPECT_THAT(complaint("llama", {{"head_dim", nullptr}, {"num_attention_heads", 6}}),
              HasSubstr("it must divide the 64 of 'hidden_size'"));
  EXPECT_EQ(fixture("llama", R"({"head_dim": null, "num_attention_heads": 4})").head_dim, 16);
  EXPECT_THAT(complaint("qwen3", {{"head_dim", nullptr}}), HasSubstr("'head_dim' is missing"));
  EXPECT_THAT(complaint("llama", {{"head_dim", 7}}), HasSubstr("7 rotary lanes"));
  EXPECT_THAT(complaint("llama", {{"rms_norm_eps", 0}}), HasSubstr("'rms_norm_eps' is 0"));
  EXPECT_THAT(complaint("llama", {{"dtype", "int8"}}),
              HasSubstr("'dtype' is \"int8\"; it must be float32, bfloat16 or float16"));
  EXPECT_THAT(complaint("llama", {{"hidden_act", "gelu"}}), HasSubstr("'hidden_act' is \"gelu\"; it must be silu"));
  EXPECT_THAT(complaint("llama", {{"rope_parameters", {{"rope_type", "dynamic"}}}}),
              HasSubstr("'rope_parameters.rope_type' is \"dynamic\""));
  EXPECT_THAT(complaint("llama", {{"rope_parameters", {{"rope_type", "yarn"}}}}),
              HasSubstr("'rope_parameters.factor' is missing"));
  EXPECT_THAT(complaint("llama", {{"quantization_config", {{"quant_method", "gptq"}}}}),
              HasSubstr("'quantization_config.quant_method' is \"gptq\""));
  EXPECT_THAT(complaint("qwen3", {{"use_sliding_window", true}}), HasSubstr("'use_sliding_window' is true"));
  EXPECT_THAT(complaint("qwen3", {{"layer_types", {"sliding_attention"}}}),
              HasSubstr("'layer_types' is \"sliding_attention\""));
}

TEST(Config, WrongMlaAndRouterValues) {
  EXPECT_THAT(complaint("deepseek_v3", {{"q_lora_rank", nullptr}}), HasSubstr("'q_lora_rank' is missing"));
  EXPECT_THAT(complaint("deepseek_v3", {{"v_head_dim", nullptr}}), HasSubstr("'v_head_dim' is missing"));
  EXPECT_THAT(complaint("deepseek_v3", {{"n_group", 3}, {"topk_group", 1}}),
              HasSubstr("'n_group' is 3; it must divide the 16 experts"));
  EXPECT_THAT(complaint("deepseek_v3", {{"topk_group", 5}}),
              HasSubstr("'topk_group' is 5; it must be an integer from 1 to 4"));
  EXPECT_THAT(complaint("deepseek_v3", {{"topk_group", 1}, {"num_experts_per_tok", 5}}),
              HasSubstr("the 1 chosen groups hold 4 experts"));
  EXPECT_THAT(complaint("deepseek_v3", {{"num_experts_per_tok", 17}}),
              HasSubstr("'num_experts_per_tok' is 17; it must be an integer from 1 to 16"));
  EXPECT_THAT(complaint("deepseek_v3", {{"scoring_func", "softmax"}}),
              HasSubstr("'scoring_func' is \"softmax\"; it must be sigmoid"));
  EXPECT_THAT(complaint("deepseek_v2_lite", {{"topk_method", "noaux_tc"}}), HasSubstr("'topk_method' is \"noaux_tc\""));
}

TEST(Config, GenerationConfig) {
  const ModelConfig demo = load_model_config(BRAID_SOURCE_DIR "/models/demo");
  const GenerationConfig g = load_generation_config(BRAID_SOURCE_DIR "/models/demo", demo);
  EXPECT_THAT(g.eos_ids, ElementsAre(2));
  EXPECT_EQ(g.do_sample, true);
  EXPECT_EQ(g.temperature, 0.7);
  EXPECT_EQ(g.top_p, 0.95);
  EXPECT_FALSE(g.top_k || g.repetition_penalty);
  const GenerationConfig absent = load_generation_config(kData + "configs/deepseek-r1.json", released("deepseek-r1"));
  EXPECT_THAT(absent.eos_ids, ElementsAre(1));
  EXPECT_FALSE(absent.temperature);
}

}  // namespace braid
