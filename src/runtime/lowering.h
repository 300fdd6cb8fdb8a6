// From the global step plan to one rank's batch: a pure function of (plan, shard), integers only. The result is one flat
// array, so that a step costs one upload; BatchMeta's tensors are views of it.
#pragma once
#include <vector>

#include "ops/batch.h"
#include "sched/plan.h"

namespace braid {

// Where each integer array of BatchMeta starts in RankStep::ints. The block tables are last.
struct RankStep {
  std::vector<int32_t> ints;
  int n_tokens = 0, n_seqs = 0, n_logit_rows = 0, max_q_len = 0, max_kv_len = 0, table_columns = 0;
  int64_t token_ids = 0, positions = 0, q_start = 0, kv_len = 0, slots = 0, logit_rows = 0, block_table = 0;
  std::vector<int> logit_row_start;  // [S + 1] first logit row of each sequence
  int64_t rows_written = 0;          // KV rows that this rank stores in this step
  int64_t rows_read = 0;             // local lengths of the step's sequences, added up
};

// Reuses `step`'s memory. A step of fewer than `padded_seqs` sequences, each with one token, is filled up with sequences
// of one token that is kept nowhere.
void lower(const StepPlan& plan, const SequenceShard& shard, RankStep& step, int padded_seqs = 0);

// Views into `ints`, which is a device copy of step.ints, and into `table` [S, P or more] where block tables lie apart.
BatchMeta batch_of(const RankStep& step, const SequenceShard& shard, Tensor ints, Tensor table);
BatchMeta batch_of(const RankStep& step, const SequenceShard& shard, Tensor ints);

}  // namespace braid
