// The only description of a batch that kernels see: packed tokens of several sequences, each with some new tokens
// behind an existing context. Prefill, chunk, decode and verification differ in these numbers only. Made on each rank
// from the step plan (runtime/lowering); tensors live on the backend's device, int32 throughout.
//
// T tokens, S sequences, P block-table columns, R rows whose logits are wanted.
#pragma once
#include <vector>

#include "base/sequence_shard.h"
#include "tensor/tensor.h"

namespace braid {

struct StepPart;

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

  // Where some sequences attend to keys as rows instead of through the cache: all rows of the step in consecutive parts of
  // one kind. Null: every row attends through the cache.
  const std::vector<StepPart>* parts = nullptr;
};

// Rows of several sequences that meet in one product: sequence s has queries [q_start[s], q_start[s + 1]) and keys
// [kv_start[s], kv_start[s + 1]). Either may be none.
struct RowSpans {
  int n_seqs = 0;      // S
  int max_q_len = 0, max_kv_len = 0;
  Tensor q_start;      // [S + 1]
  Tensor kv_start;     // [S + 1]
  bool causal = false; // query i of a sequence sees keys j <= i + kv_len - q_len, otherwise all
};

// Some cached tokens of consecutive sequences, to be gathered from all ranks and attended to together. J tokens, of which
// every rank of the group contributes C rows, the last of them padding where it holds fewer.
struct ContextWindow {
  int first_row = 0, n_rows = 0;  // the sequences' queries, from the part's first row
  int n_tokens = 0;               // J
  int rank_rows = 0;              // C
  Tensor slots;    // [C] this rank's rows, -1 for padding
  Tensor order;    // [J] which of the gathered [W C] rows each token is, by sequence and position; empty where W is 1
  RowSpans spans;  // of those queries and the J tokens
};

// Rows [first_row, first_row + batch.n_tokens) of a step: whole sequences that attend in the same way.
struct StepPart {
  int first_row = 0;
  bool from_rows = false;  // by attention_rows, or through the cache
  BatchMeta batch;         // of these rows alone; no token ids and no logit rows
  RowSpans fresh;          // from_rows: the new tokens among themselves
  std::vector<ContextWindow> windows;  // from_rows: the cached tokens before them, every one in one window
};

}  // namespace braid
