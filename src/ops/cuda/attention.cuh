// What the attention kernels share: which rows and keys a block has, and how results are stored.
#pragma once
#include "ops/cuda/attention.h"
#include "ops/cuda/device.cuh"

namespace braid::cuda {

// One block's share, the same in all its threads.
struct AttentionBlock {
  int seq, kv, part;
  int first_row, n_rows;  // rows of the sequence: token * group + head of the group
  int first_token;        // of the sequence, in the step
  SequenceShard stripe;   // deals this rank's rows to its stripes
  int64_t begin = 0, end = 0;  // keys of the part that its last row sees
};

// Keys of the stripe that a token of the sequence sees.
__device__ inline int64_t seen_keys(const AttentionArgs& a, const AttentionBlock& b, int64_t token) {
  if (!a.kv_start) return b.stripe.local_length(a.shard.local_length(int64_t{a.positions[b.first_token + token]} + 1));
  const int64_t keys = a.kv_start[b.seq + 1] - a.kv_start[b.seq];
  if (!a.causal) return keys;
  const int64_t queries = a.q_start[b.seq + 1] - b.first_token;
  return max(int64_t{0}, min(keys, token + keys - queries + 1));
}

template <int kRows>
__device__ AttentionBlock attention_block(const AttentionArgs& a) {
  AttentionBlock b;
  b.seq = static_cast<int>(blockIdx.y) / a.n_kv;
  b.kv = static_cast<int>(blockIdx.y) % a.n_kv;
  b.part = static_cast<int>(blockIdx.z);
  b.first_token = a.q_start[b.seq];
  const int rows = (a.q_start[b.seq + 1] - b.first_token) * a.group;
  b.first_row = static_cast<int>(blockIdx.x) * kRows;
  b.n_rows = min(kRows, rows - b.first_row);
  if (b.n_rows <= 0) return b;
  b.stripe = {a.n_stripes, a.n_stripes == 1 ? 1 : a.shard.interleave, a.shard.block_size, b.part / a.n_splits};
  b.begin = b.part % a.n_splits * a.split_rows;
  b.end = min(seen_keys(a, b, (b.first_row + b.n_rows - 1) / a.group), b.begin + a.split_rows);
  return b;
}

__device__ inline int64_t token_of(const AttentionArgs& a, const AttentionBlock& b, int row) {
  return b.first_token + (b.first_row + row) / a.group;
}
__device__ inline int head_of(const AttentionArgs& a, const AttentionBlock& b, int row) {
  return b.kv * a.group + (b.first_row + row) % a.group;
}
// Keys of the part, counted from its begin, that a row sees.
__device__ inline int visible_keys(const AttentionArgs& a, const AttentionBlock& b, int row) {
  const int64_t seen = seen_keys(a, b, (b.first_row + row) / a.group);
  return static_cast<int>(max(int64_t{0}, min(seen, b.end) - b.begin));
}
// Slot, or row, of the key with this index in its stripe.
__device__ inline int64_t key_slot(const AttentionArgs& a, const AttentionBlock& b, int64_t index) {
  if (a.kv_start) return a.kv_start[b.seq] + index;
  const LocalPos j(b.stripe.global(LocalPos(index)).value);
  const BlockId block(a.block_table[b.seq * a.table_stride + j.value / a.shard.block_size]);
  return a.shard.slot(block, j).value;
}

// The new running maximum, a whole number of powers of two, and what the sums so far are multiplied by.
__device__ inline float raise_maximum(float& k, float score) {
  const float raised = fmaxf(k, ceilf(score));
  const float factor = raised == k ? 1.0f : power_of_two(k - raised);
  k = raised;
  return factor;
}
__device__ inline float softmax_term(float score, float k) { return k == -BRAID_INFINITY ? 0.0f : exp2f(score - k); }

__device__ inline void store_value(void* to, DType type, int64_t offset, float value) {
  if (type == DType::kBF16) {
    static_cast<BFloat16*>(to)[offset] = from_f<BFloat16>(value);
  } else {
    static_cast<float*>(to)[offset] = value;
  }
}
__device__ inline float log_sum(float weight, float k) { return (k + log2f(weight)) * 0.693147180559945309f; }

// Lane `i` of a row's result.
__device__ inline void store_lane(const AttentionArgs& a, int part, int64_t token, int head, int64_t i, float sum,
                                  float weight) {
  if (a.partial.sum) {
    a.partial.sum[part * a.partial.sum_part + token * a.partial.sum_token + head * a.partial.sum_head + i] = sum;
  } else {
    const float value = weight == 0.0f ? 0.0f : sum / weight * a.out.value_scale;
    store_value(a.out.y, a.out.type, token * a.out.token + head * a.out.head + i, value);
  }
}
// The row's own numbers; by one thread.
__device__ inline void store_row(const AttentionArgs& a, int part, int64_t token, int head, float weight, float k) {
  if (a.partial.sum) {
    a.partial.weight[part * a.partial.weight_part + token * a.partial.weight_token + head] = weight;
    a.partial.k[part * a.partial.k_part + token * a.partial.k_token + head] = k;
  } else if (a.out.lse) {
    a.out.lse[token * a.out.lse_token + head] = log_sum(weight, k);
  }
}

inline dim3 attention_grid(const AttentionArgs& a, int block_rows) {
  return {blocks_for(int64_t{a.max_q_len} * a.group, block_rows), static_cast<unsigned>(a.n_seqs * a.n_kv),
          static_cast<unsigned>(a.n_stripes * a.n_splits)};
}

}  // namespace braid::cuda
