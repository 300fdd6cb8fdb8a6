#include "model/layers/decoder.h"

#include "model/rope.h"

namespace braid {
namespace {

std::vector<DecoderLayer> load_layers(const LoadContext& context, const DecoderModel::MakeLayer& make_layer) {
  std::vector<DecoderLayer> layers;
  const Scope root = Scope(context) / "model" / "layers";
  for (int i = 0; i < context.config.n_layers; ++i) layers.push_back(make_layer(root / i, i));
  return layers;
}

LmHead load_head(const LoadContext& context, const Scope::HostWeight& embedding) {
  const Scope head = Scope(context) / "lm_head";
  return context.config.tie_embeddings ? LmHead(head, embedding) : LmHead(head, head.vocabulary_weight(Role::kLmHead));
}

}  // namespace

DecoderModel::DecoderModel(const LoadContext& context, const MakeLayer& make_layer)
    : DecoderModel(context, make_layer, (Scope(context) / "model" / "embed_tokens").vocabulary_weight(Role::kEmbed)) {}

DecoderModel::DecoderModel(const LoadContext& context, const MakeLayer& make_layer, const Scope::HostWeight& embedding)
    : backend_(&context.backend), embedding_(Scope(context), embedding), layers_(load_layers(context, make_layer)),
      norm_(Scope(context) / "model" / "norm", context.config.hidden, context.config.norm_eps), head_(load_head(context, embedding)) {}

Tensor DecoderModel::forward(const BatchMeta& b, std::span<const KvCache> caches) const {
  Tensor residual = embedding_(b);
  Tensor out = backend_->scratch(DType::kF32, {residual.dim(0), residual.dim(1)});  // of the sublayer before
  Tensor add;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const DecoderLayer& l = layers_[i];
    {
      const ScratchScope temporaries(*backend_);
      (*l.attention)(out, l.attention_norm(residual, add), caches[i], b);
      add = out;
    }
    const ScratchScope temporaries(*backend_);
    const Tensor x = l.ffn_norm(residual, add);
    std::visit([&](const auto& ffn) { ffn(out, x); }, l.ffn);
  }
  return head_(norm_(residual, add), b);
}

std::vector<CacheSpec> DecoderModel::caches() const {
  std::vector<CacheSpec> specs;
  for (const DecoderLayer& l : layers_) specs.push_back(l.attention->cache());
  return specs;
}

ContextUse DecoderModel::context_use() const {
  ContextUse use;
  for (const DecoderLayer& l : layers_) l.attention->count(use);
  return use;
}

RopeTable load_rope_table(const LoadContext& context, int64_t max_positions) {
  const RopeConfig& rope = context.config.rope;
  const std::vector<float> host = make_rope_table(rope, max_positions);
  RopeTable table;
  table.layout = rope.layout;
  table.cos_sin = context.backend.alloc(MemoryKind::kWeights, DType::kF32, {max_positions, rope.dim / 2, 2});
  context.backend.upload(table.cos_sin, host.data());
  return table;
}

}  // namespace braid
