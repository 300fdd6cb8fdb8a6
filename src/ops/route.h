// The choice of experts for one row, shared by the host backends: integers and comparisons once the scores are there.
#pragma once
#include <cstdint>
#include <span>

#include "ops/backend.h"

namespace braid {

// Picks ids.size() experts by score + bias: first the best groups, then the best members of those; ties go to the
// lowest id, and a NaN ranks last. Writes the ids ascending, with their weights from the scores alone.
void choose_experts(std::span<int32_t> ids, float* weights, std::span<const float> scores, const float* bias,
                    const RouterSpec&);

}  // namespace braid
