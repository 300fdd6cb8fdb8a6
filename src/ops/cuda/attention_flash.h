// Attention of long runs of queries with small heads in bfloat16: prompts of grouped attention, and latent attention in
// its expanded form.
#pragma once
#include "ops/cuda/attention.h"

namespace braid::cuda {

inline constexpr int kFlashRows = 128;  // of a block

// Few queries, large heads, float8 caches and the reproducible mode are left to attention_mma().
bool attention_flash_takes(const AttentionArgs&);
void attention_flash(cudaStream_t, const AttentionArgs&);

}  // namespace braid::cuda
