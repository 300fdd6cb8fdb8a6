// Llama and dense Qwen3: pre-norm, grouped-query attention (Qwen3 with a norm on each q and k head), gated MLP.
#include "model/layers/decoder.h"
#include "model/layers/gqa.h"
#include "model/models/factories.h"

namespace braid {

std::unique_ptr<Model> make_llama(const LoadContext& context, int64_t max_positions) {
  const ModelConfig& c = context.config;
  const RopeTable rope = load_rope_table(context, max_positions);
  return std::make_unique<DecoderModel>(context, [&](const Scope& s, int) {
    return DecoderLayer{
        .attention_norm = RmsNorm(s / "input_layernorm", c.hidden, c.norm_eps),
        .attention = std::make_unique<GroupedAttention>(s / "self_attn", rope),
        .ffn_norm = RmsNorm(s / "post_attention_layernorm", c.hidden, c.norm_eps),
        .ffn = GatedMlp(s / "mlp", c.intermediate),
    };
  });
}

std::vector<SkipRule> llama_skipped(const ModelConfig& c) {
  std::vector<SkipRule> rules = {{"", "rotary_emb.inv_freq", "rotary tables are computed"}};
  if (c.tie_embeddings) rules.push_back({"lm_head.weight", "", "tied to the embedding"});
  return rules;
}

}  // namespace braid
