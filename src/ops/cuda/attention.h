// Attention over a paged cache or over keys as rows, generic in head sizes, types and grouping. A block takes some rows, a row being one
// query head of one new token, that read one key/value head of one sequence, and one *part* of the keys: a stripe in the
// reproducible mode, else a run of consecutive local rows. Parts are put together by merge_parts(). Tiles of keys are
// counted from a part's first row and the running maximum is a whole power of two, so that a row's bits do not depend on
// the rows beside it.
#pragma once
#include <cuda_runtime.h>

#include "ops/backend.h"

namespace braid::cuda {

// Unfinished sums of `n` parts: sum [n, T, N, Dv], weight and k [n, T, N]; strides in elements.
struct PartialSums {
  float *sum = nullptr, *weight = nullptr, *k = nullptr;
  int64_t sum_part = 0, sum_token = 0, sum_head = 0;
  int64_t weight_part = 0, weight_token = 0;  // of weight
  int64_t k_part = 0, k_token = 0;
};

// A finished result, y [T, N, Dv] and perhaps lse [T, N].
struct FinishedRows {
  void* y = nullptr;
  DType type = DType::kF32;
  int64_t token = 0, head = 0;
  float* lse = nullptr;
  int64_t lse_token = 0;
  float value_scale = 1.0f;
};

struct AttentionArgs {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  DType q_type = DType::kF32, cache_type = DType::kF32;
  int64_t q_token = 0, q_head = 0, k_slot = 0, k_head = 0, v_slot = 0, v_head = 0;
  const int32_t* q_start = nullptr;  // [S + 1]
  // Through the cache: a key is found by the block table, a row sees what its position allows.
  const int32_t *positions = nullptr, *block_table = nullptr;
  int64_t table_stride = 0;
  SequenceShard shard;
  // As rows: sequence s has keys [kv_start[s], kv_start[s + 1]); null: through the cache.
  const int32_t* kv_start = nullptr;
  bool causal = false;
  const void* k_rope = nullptr;  // lanes of a key from dn on, shared by all heads; or null
  int64_t rope_row = 0;
  int n_seqs = 0, max_q_len = 0, n_kv = 1, group = 1, dk = 0, dn = 0, dv = 0;  // dn: lanes of a key that are in k
  bool latent = false;  // v is the first lanes of k
  float scale_log2 = 1.0f;
  bool reproducible = false;
  int n_stripes = 1;      // of this rank
  int n_splits = 1;       // of a stripe
  int64_t split_rows = 0; // keys of a split, a multiple of the key tile
  PartialSums partial;    // sum null: the one part is finished into `out`
  FinishedRows out;
};

inline constexpr int kAttentionKeys = 32;  // rows of a key tile

// Query rows of a block where a sequence has up to `rows` per key/value head. The two shapes add a row's weight in
// different orders, so the reproducible mode has one only.
inline int attention_block_rows(int64_t rows, bool reproducible) { return rows <= 16 && !reproducible ? 16 : 64; }

void attention_mma(cudaStream_t, const AttentionArgs&);   // bfloat16 queries; bfloat16 or float8 cache
void attention_mma_float8(cudaStream_t, const AttentionArgs&);  // its half for float8, a file of its own to compile
void attention_simt(cudaStream_t, const AttentionArgs&);  // the rest, in float32

// Adds parts in the tree (p, p + n/2), ..., (0, 1): finished into `out` where it has a y, else as one partial into `sums`.
void merge_parts(cudaStream_t, const PartialSums& parts, int n_parts, int64_t tokens, int64_t heads, int64_t dv,
                 const FinishedRows& out, const PartialSums& sums);
void merge_results(cudaStream_t, Tensor y, Tensor lse, Tensor values, Tensor lses, int first);

}  // namespace braid::cuda
