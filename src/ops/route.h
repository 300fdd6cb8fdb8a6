// The choice of experts for one row, shared by the host backends: integers and comparisons once the scores are there.
#pragma once
#include <cstdint>
#include <limits>
#include <span>

#include "base/sequence_shard.h"
#include "ops/backend.h"

namespace braid {

// What a group of experts is ranked by: its members' best, or the sum of their two best.
BRAID_HOST_DEVICE inline float group_value(const float* members, int size, GroupScore how) {
  float first = -std::numeric_limits<float>::infinity(), second = first;
  for (int i = 0; i < size; ++i) {
    const float v = members[i];
    if (v > first) {
      second = first;
      first = v;
    } else if (v > second) {
      second = v;
    }
  }
  return how == GroupScore::kTopTwoSum ? first + second : first;
}

// Picks ids.size() experts by score + bias: first the best groups, then the best members of those; ties go to the
// lowest id, and a NaN ranks last. Writes the ids ascending, with their weights from the scores alone.
void choose_experts(std::span<int32_t> ids, float* weights, std::span<const float> scores, const float* bias,
                    const RouterSpec&);

}  // namespace braid
