#include "runtime/lowering.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace braid {
namespace {

void lay_out(const StepPlan& plan, const SequenceShard& shard, RankStep& step, int padding) {
  step.n_tokens = step.n_logit_rows = padding;
  step.max_q_len = step.max_kv_len = step.table_columns = padding > 0 ? 1 : 0;
  step.n_seqs = static_cast<int>(plan.sequences.size()) + padding;
  for (const PlannedSequence& s : plan.sequences) {
    const int n = static_cast<int>(s.tokens.size());
    const int64_t length = s.start.value + n;
    step.n_tokens += n;
    step.n_logit_rows += s.every_row() ? n : s.sample ? 1 : 0;
    step.max_q_len = std::max(step.max_q_len, n);
    step.max_kv_len = std::max(step.max_kv_len, static_cast<int>(length));
    step.table_columns = std::max(step.table_columns, static_cast<int>(shard.table_columns(length)));
  }
  int64_t next = 0;
  auto take = [&](int64_t n) { return std::exchange(next, next + n); };
  step.token_ids = take(step.n_tokens);
  step.positions = take(step.n_tokens);
  step.slots = take(step.n_tokens);
  step.q_start = take(step.n_seqs + 1);
  step.kv_len = take(step.n_seqs);
  step.logit_rows = take(step.n_logit_rows);
  step.block_table = take(int64_t{step.n_seqs} * step.table_columns);
  step.ints.assign(static_cast<size_t>(next), 0);
}

}  // namespace

void lower(const StepPlan& plan, const SequenceShard& shard, RankStep& step, int padded_seqs) {
  const int n_true = static_cast<int>(plan.sequences.size());
  lay_out(plan, shard, step, std::max(0, padded_seqs - n_true));
  int32_t* ints = step.ints.data();
  step.rows_written = step.rows_read = 0;
  step.logit_row_start.assign(1, 0);
  int row = 0, logit_row = 0;
  for (int s = 0; s < n_true; ++s) {
    const PlannedSequence& seq = plan.sequences[static_cast<size_t>(s)];
    const int n = static_cast<int>(seq.tokens.size());
    const int64_t length = seq.start.value + n;
    BRAID_CHECK(shard.table_columns(length) <= static_cast<int64_t>(seq.blocks.size()), "sequence {} of {} tokens has {} blocks",
                seq.id.value, length, seq.blocks.size());
    ints[step.q_start + s] = row;
    ints[step.kv_len + s] = static_cast<int32_t>(length);
    int32_t* table = ints + step.block_table + int64_t{s} * step.table_columns;
    const BlockId* blocks = seq.blocks.data();
    for (int64_t c = 0, n_columns = shard.table_columns(length); c < n_columns; ++c) table[c] = static_cast<int32_t>(blocks[c].value);
    for (int i = 0; i < n; ++i) {
      const TokenPos g = seq.start + i;
      ints[step.token_ids + row + i] = seq.tokens[static_cast<size_t>(i)];
      ints[step.positions + row + i] = static_cast<int32_t>(g.value);
      SlotId slot = kNoSlot;
      if (shard.owns(g)) {
        slot = shard.slot(seq.blocks[static_cast<size_t>(shard.table_column(g))], shard.local(g));
        ++step.rows_written;
      }
      ints[step.slots + row + i] = static_cast<int32_t>(slot.value);
    }
    step.rows_read += shard.local_length(length);
    for (int i = seq.every_row() ? 0 : n - 1; i < n && (seq.every_row() || seq.sample); ++i) {
      ints[step.logit_rows + logit_row++] = row + i;
    }
    step.logit_row_start.push_back(logit_row);
    row += n;
  }
  for (int s = n_true; s < step.n_seqs; ++s, ++row) {  // token 0 at position 0; the first column is block 0
    ints[step.q_start + s] = row;
    ints[step.kv_len + s] = 1;
    ints[step.slots + row] = static_cast<int32_t>(kNoSlot.value);
    ints[step.logit_rows + logit_row++] = row;
  }
  ints[step.q_start + step.n_seqs] = row;
}

BatchMeta batch_of(const RankStep& step, const SequenceShard& shard, Tensor ints) {
  const int64_t n = int64_t{step.n_seqs} * step.table_columns;
  return batch_of(step, shard, ints, ints.rows(step.block_table, step.block_table + n).view({step.n_seqs, step.table_columns}));
}

BatchMeta batch_of(const RankStep& step, const SequenceShard& shard, Tensor ints, Tensor table) {
  BatchMeta b;
  b.n_tokens = step.n_tokens;
  b.n_seqs = step.n_seqs;
  b.n_logit_rows = step.n_logit_rows;
  b.max_q_len = step.max_q_len;
  b.max_kv_len = step.max_kv_len;
  b.shard = shard;
  auto part = [&](int64_t at, int64_t n) { return ints.rows(at, at + n); };
  b.token_ids = part(step.token_ids, step.n_tokens);
  b.positions = part(step.positions, step.n_tokens);
  b.slots = part(step.slots, step.n_tokens);
  b.q_start = part(step.q_start, step.n_seqs + 1);
  b.kv_len = part(step.kv_len, step.n_seqs);
  b.block_table = table;
  b.logit_rows = part(step.logit_rows, step.n_logit_rows);
  return b;
}

}  // namespace braid
