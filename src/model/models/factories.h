// One factory per model file, and the tensors that it leaves unread; registry.cpp holds the table.
#pragma once
#include <memory>
#include <vector>

#include "model/model.h"

namespace braid {

std::unique_ptr<Model> make_llama(const LoadContext&, int64_t max_positions);      // llama and dense qwen3
std::unique_ptr<Model> make_qwen3_moe(const LoadContext&, int64_t max_positions);
std::unique_ptr<Model> make_deepseek(const LoadContext&, int64_t max_positions);   // deepseek_v2 and deepseek_v3

std::vector<SkipRule> llama_skipped(const ModelConfig&);
std::vector<SkipRule> deepseek_skipped(const ModelConfig&);

}  // namespace braid
