// A request inside the scheduler: what it has said, what of it is computed, and the blocks that hold it.
#pragma once
#include <cstdint>
#include <vector>

#include "sched/block_cache.h"
#include "sched/plan.h"
#include "sched/request.h"

namespace braid {

// waiting (no blocks) -> running -> ended; a preemption leads from running back to waiting.
struct Sequence {
  explicit Sequence(Request&& r)
      : n_prompt(static_cast<int64_t>(r.prompt.size())), tokens(std::move(r.prompt)), request(std::move(r)) {
    row.id = request.id;
  }

  int64_t n_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t n_generated() const { return n_tokens() - n_prompt; }
  int64_t left() const { return n_tokens() - computed; }  // one while it decodes

  // What every step touches comes first: a thousand sequences are walked per step.
  int64_t computed = 0;  // leading tokens whose KV is in its blocks
  int64_t n_prompt = 0;
  int64_t max_tokens = 0;       // length at which it ends
  std::vector<int32_t> tokens;  // prompt and generated
  bool in_flight = false;       // in the plan that is not committed yet
  bool aborted = false;         // ends at that plan's commit
  int64_t cached_tokens = -1;   // -1: not admitted yet
  PublishedChain published;
  // Its row of the plan, and in `row.blocks` its block table. Lent to the plan between plan() and commit(), so that no
  // table is ever copied.
  PlannedSequence row;

  int64_t prompt_logprobs_sent = 0;  // prompt positions up to here have been reported
  Request request;                   // its prompt has moved to `tokens`
};

}  // namespace braid
