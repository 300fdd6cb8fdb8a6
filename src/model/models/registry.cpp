// The table of model files: a new model adds its row here.
#include "base/error.h"
#include "model/models/factories.h"

namespace braid {
namespace {

struct ModelRow {
  Architecture architecture;
  std::unique_ptr<Model> (*make)(const LoadContext&, int64_t max_positions);
  std::vector<SkipRule> (*skipped)(const ModelConfig&);
};

const ModelRow kModels[] = {
    {Architecture::kLlama, make_llama, llama_skipped},
    {Architecture::kQwen3, make_llama, llama_skipped},
    {Architecture::kQwen3Moe, make_qwen3_moe, llama_skipped},
    {Architecture::kDeepseekV2, make_deepseek, deepseek_skipped},
    {Architecture::kDeepseekV3, make_deepseek, deepseek_skipped},
};

const ModelRow& row_of(const ModelConfig& config) {
  check_supported(config);
  for (const ModelRow& row : kModels) {
    if (row.architecture == config.architecture) return row;
  }
  throw Error("{}: model type '{}' is not built", config.file, config.model_type);
}

}  // namespace

std::unique_ptr<Model> make_model(const LoadContext& context, int64_t max_positions) {
  return row_of(context.config).make(context, max_positions);
}

std::vector<SkipRule> skipped_tensors(const ModelConfig& config) { return row_of(config).skipped(config); }

}  // namespace braid
