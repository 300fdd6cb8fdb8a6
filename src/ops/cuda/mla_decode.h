// Latent attention in its absorbed form for few query tokens per sequence: every query head reads the same cached row
// of 576 values, of which the first 512 are also the value. Plain C++ types, so that host code may include it.
//
// The work is split over the context: the plan is made on the device from the lengths found there, so that a recorded
// graph serves any lengths. Two kernels per call: partial results, then their merge.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/sequence_shard.h"

namespace braid {

inline constexpr int kMlaLatent = 512;           // lanes of a row that are key and value
inline constexpr int kMlaRow = kMlaLatent + 64;  // with the rotated key lanes

// Pointers are to device memory. T tokens, S sequences, N heads, P block-table columns. Rows of a sequence are
// consecutive tokens; token t sees local rows [0, shard.local_length(positions[t] + 1)).
struct MlaDecodeArgs {
  const void* q = nullptr;      // bf16 [T, N, 576]
  const void* cache = nullptr;  // [slots, 576], bf16, or e4m3 with value = stored * cache_scale
  bool float8 = false;
  float cache_scale = 1.0f;
  float softmax_scale = 1.0f;
  void* out = nullptr;                   // bf16 [T, N, 512]
  float* lse = nullptr;                  // [T, N], natural logarithm; may be null
  const int32_t* q_start = nullptr;      // [S + 1]
  const int32_t* positions = nullptr;    // [T]
  const int32_t* kv_len = nullptr;       // [S] global length, this step's tokens included
  const int32_t* block_table = nullptr;  // [S, P]
  int n_tokens = 0, n_seqs = 0, n_heads = 0, table_columns = 0;
  int max_q_len = 0;          // most tokens of a sequence: with n_heads it fixes the grid
  int64_t n_slots = 0;        // rows of the cache
  SequenceShard shard;        // block_size a multiple of 16
  void* workspace = nullptr;  // mla_decode_workspace() bytes, 128-byte aligned
};

// Whether the kernels can serve these sizes on this device (compute capability 9.0).
bool mla_decode_supported(int capability_major, int capability_minor, int64_t row, int64_t latent, int block_size);

// Bytes of workspace for calls with up to these sizes.
size_t mla_decode_workspace(int n_seqs, int max_q_len, int n_heads);

cudaError_t mla_decode(const MlaDecodeArgs& args, cudaStream_t stream);

}  // namespace braid
