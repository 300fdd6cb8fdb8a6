// DeepSeek-V2, V3 and R1: latent attention; after the first dense layers a mixture of experts with a shared expert. The
// families differ in the router and in whether the query has a latent of its own, both of which the configuration says.
#include "model/layers/decoder.h"
#include "model/layers/mla.h"
#include "model/models/factories.h"

namespace braid {

std::unique_ptr<Model> make_deepseek(const LoadContext& context, int64_t max_positions) {
  const ModelConfig& c = context.config;
  const RopeTable rope = load_rope_table(context, max_positions);
  return std::make_unique<DecoderModel>(context, [&](const Scope& s, int layer) {
    using Ffn = std::variant<GatedMlp, Moe>;
    return DecoderLayer{
        .attention_norm = RmsNorm(s / "input_layernorm", c.hidden, c.norm_eps),
        .attention = std::make_unique<LatentAttention>(s / "self_attn", rope),
        .ffn_norm = RmsNorm(s / "post_attention_layernorm", c.hidden, c.norm_eps),
        .ffn = c.is_moe_layer(layer) ? Ffn(Moe(s / "mlp")) : Ffn(GatedMlp(s / "mlp", c.intermediate)),
    };
  });
}

std::vector<SkipRule> deepseek_skipped(const ModelConfig& c) {
  std::vector<SkipRule> rules = {{"", "rotary_emb.inv_freq", "rotary tables are computed"}};
  for (int i = 0; i < c.n_mtp_layers; ++i) {
    rules.push_back({"model.layers." + std::to_string(c.n_layers + i) + ".", "", "multi-token prediction layer, drafting is off"});
  }
  if (c.tie_embeddings) rules.push_back({"lm_head.weight", "", "tied to the embedding"});
  return rules;
}

}  // namespace braid
