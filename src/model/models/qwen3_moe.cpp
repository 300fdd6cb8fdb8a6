// Qwen3-MoE: Qwen3's attention, softmax router over all experts, no shared expert.
#include "model/layers/decoder.h"
#include "model/layers/gqa.h"
#include "model/models/factories.h"

namespace braid {

std::unique_ptr<Model> make_qwen3_moe(const LoadContext& context, int64_t max_positions) {
  const ModelConfig& c = context.config;
  const RopeTable rope = load_rope_table(context, max_positions);
  return std::make_unique<DecoderModel>(context, [&](const Scope& s, int layer) {
    using Ffn = std::variant<GatedMlp, Moe>;
    return DecoderLayer{
        .attention_norm = RmsNorm(s / "input_layernorm", c.hidden, c.norm_eps),
        .attention = std::make_unique<GroupedAttention>(s / "self_attn", rope),
        .ffn_norm = RmsNorm(s / "post_attention_layernorm", c.hidden, c.norm_eps),
        .ffn = c.is_moe_layer(layer) ? Ffn(Moe(s / "mlp")) : Ffn(GatedMlp(s / "mlp", c.intermediate)),
    };
  });
}

}  // namespace braid
