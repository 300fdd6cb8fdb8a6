// A mixture of experts on the device: which rows go to which expert, and the sum of what comes back.
#pragma once
#include "ops/backend.h"
#include "ops/cuda/product.h"

namespace braid::cuda {

// Integers that group_pairs() fills: two arrays of `pairs`, one of `experts`, two of tiles and the number of tiles.
int64_t group_ints(int64_t pairs, int experts, int tile_rows);
// Groups the (token, choice) pairs whose expert is one of [first, first + experts): x_rows are tokens, y_rows pairs.
RowGroups group_pairs(cudaStream_t, Tensor ids /*[T, k]*/, int first, int experts, int tile_rows, int32_t* memory);
// y[t] = sum over t's choices held here, in order, of weights[t, j] * parts[t * k + j].
void combine_experts(cudaStream_t, Tensor y, Tensor parts /*float32 [T k, H]*/, Tensor ids, Tensor weights, int first,
                     int experts);

// A whole mixture for up to kFewRows rows in the default mode; `shared`, or null, is added to it. A row's last bits may
// depend on the rows beside it. `gated` is scratch, [T, moe_few_choices(), F].
inline constexpr int kFewRows = 16;
bool moe_few_takes(Tensor y, Tensor x, Tensor ids, const ExpertWeights&, const GatedWeights* shared);
int64_t moe_few_choices(Tensor ids, const ExpertWeights&, const GatedWeights* shared);
void moe_few(cudaStream_t, Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights&, const GatedWeights* shared, Tensor gated);

}  // namespace braid::cuda
