// The only description of a batch that kernels see: packed tokens of several sequences, each with some new tokens
// behind an existing context. Prefill, chunk, decode and verification differ in these numbers only. Made on each rank
// from the step plan (runtime/lowering); tensors live on the backend's device, int32 throughout.
//
// T tokens, S sequences, P block-table columns, R rows whose logits are wanted.
#pragma once
#include "base/sequence_shard.h"
#include "tensor/tensor.h"

namespace braid {

struct BatchMeta {
  int n_tokens = 0;    // T
  int n_seqs = 0;      // S
  int n_logit_rows = 0;  // R
  int max_q_len = 0;   // most new tokens of a sequence
  int max_kv_len = 0;  // longest sequence, new tokens included

  Tensor token_ids;    // [T]
  Tensor positions;    // [T] global position of each token
  Tensor q_start;      // [S + 1] first row of each sequence in T; the last entry is T
  Tensor kv_len;       // [S] global length of each sequence, this step's tokens included
  Tensor block_table;  // [S, P] block ids; columns beyond a sequence's length are 0
  Tensor slots;        // [T] where this rank keeps the token's KV row, -1 where it does not
  Tensor logit_rows;   // [R] rows of T, ascending

  SequenceShard shard;  // which KV rows this rank holds
};

}  // namespace braid
