// Which sequences of a step attend to keys as rows, and the windows in which their cached context is gathered: a pure
// function of (plan, rule, shard), integers only. The same rows, windows and message sizes on every rank of a group.
//
// Attention has two forms. Through the cache, a latent-attention query meets the compressed rows themselves, and under
// decode context parallelism queries and results travel. As rows, keys and values are expanded from compressed rows that
// travel instead; an expanded key serves all of a sequence's new tokens. The latter pays where there are many new tokens.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/batch.h"
#include "sched/plan.h"

namespace braid {

// What the form as rows costs more and less than the form through the cache, in any one unit: it is chosen for sequences
// of two or more new tokens where per_cached * cached < per_new * new + per_pair * pairs, a pair being a query and a
// token it sees.
struct RowRule {
  enum class Form { kNever, kAuto, kAlways };
  Form form = Form::kNever;
  double per_cached = 0, per_new = 0, per_pair = 0;
  int64_t window_tokens = 16384;  // cached tokens that are gathered at a time

  bool chooses(int64_t n_new, int64_t n_cached) const;
};

struct PartStep {
  struct Window {
    int first_row = 0, n_rows = 0, n_seqs = 0, n_tokens = 0, rank_rows = 0, max_q_len = 0, max_kv_len = 0;
    int64_t q_start = 0, kv_start = 0, slots = 0, order = 0;  // in ints
  };
  struct Part {
    bool from_rows = false;
    int first_row = 0, n_rows = 0, first_seq = 0, n_seqs = 0, max_q_len = 0, max_kv_len = 0;
    int64_t q_start = 0;
    std::vector<Window> windows;
  };
  std::vector<int32_t> ints;
  std::vector<Part> parts;  // empty: every row attends through the cache
  int64_t n_windows = 0;
  int64_t row_tokens = 0;   // new tokens that attend to rows
  int64_t rows_unread = 0;  // new KV rows of this rank that are therefore not read back from the cache
};

// Reuses `step`'s memory.
void lower_parts(const StepPlan&, const RowRule&, const SequenceShard&, PartStep& step);

// Views into `all`, the whole step, and into `ints`, a device copy of step.ints.
std::vector<StepPart> parts_of(const PartStep& step, const BatchMeta& all, Tensor ints);

}  // namespace braid
