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
  explicit Sequence(Request&& r) : request(std::move(r)), n_prompt(static_cast<int64_t>(request.prompt.size())) {
    tokens.swap(request.prompt);
    row.id = request.id;
  }

  int64_t n_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t n_generated() const { return n_tokens() - n_prompt; }
  int64_t left() const { return n_tokens() - computed; }  // one while it decodes

  Request request;  // its prompt has moved to `tokens`
  int64_t n_prompt;
  std::vector<int32_t> tokens;  // prompt and generated
  int64_t max_tokens = 0;       // length at which it ends

  int64_t computed = 0;  // leading tokens whose KV is in its blocks
  // Its row of the plan, and in `row.blocks` its block table. Lent to the plan between plan() and commit(), so that no
  // table is ever copied.
  PlannedSequence row;
  PublishedChain published;

  bool in_flight = false;            // in the plan that is not committed yet
  bool aborted = false;              // ends at that plan's commit
  int64_t cached_tokens = -1;        // -1: not admitted yet
  int64_t prompt_logprobs_sent = 0;  // prompt positions up to here have been reported
};

}  // namespace braid
