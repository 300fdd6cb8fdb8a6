// The pre-norm decoder that most models are: embedding, layers of attention and feed-forward on one residual stream, final
// norm, output head. A model file says what its layers are made of.
#pragma once
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "model/layers/embedding.h"
#include "model/layers/moe.h"
#include "model/layers/norm.h"
#include "model/model.h"

namespace braid {

struct DecoderLayer {
  RmsNorm attention_norm;
  std::unique_ptr<Attention> attention;
  RmsNorm ffn_norm;
  std::variant<GatedMlp, Moe> ffn;
};

class DecoderModel final : public Model {
 public:
  using MakeLayer = std::function<DecoderLayer(const Scope&, int layer)>;
  DecoderModel(const LoadContext&, const MakeLayer&);
  Tensor forward(const BatchMeta&, std::span<const KvCache>) const override;
  std::vector<CacheSpec> caches() const override;
  ContextUse context_use() const override;

 private:
  DecoderModel(const LoadContext&, const MakeLayer&, const Scope::HostWeight& embedding);

  Backend* backend_;
  Embedding embedding_;
  std::vector<DecoderLayer> layers_;
  RmsNorm norm_;
  LmHead head_;
};

// The device's rotation table of a model, shared by its layers.
RopeTable load_rope_table(const LoadContext&, int64_t max_positions);

}  // namespace braid
