// One step as plain data: the same bytes on every rank. Positions are global; nothing here knows of ranks. Prefill,
// chunk, decode and verification are the same thing with more or fewer tokens.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/types.h"
#include "sched/request.h"

namespace braid {

struct PlannedSequence {
  RequestId id;
  TokenPos start;                // position of tokens[0]; everything before it is in the cache
  std::vector<int32_t> tokens;   // computed in this step
  std::vector<BlockId> blocks;   // whole block table of the sequence, enough for start + tokens.size()
  bool sample = false;           // the last row yields a token (false for a middle chunk)
  bool all_logits = false;       // logits of every row are wanted
  bool prompt_logprobs = false;  // and the log-probability of the prompt token after each row, while there is one
  bool every_row() const { return all_logits || prompt_logprobs; }  // logits of all rows must be computed
  bool operator==(const PlannedSequence&) const = default;
};

struct StepPlan {
  int64_t step = 0;
  std::vector<PlannedSequence> sequences;  // those with one token left first, then prefill chunks
  // Ended or preempted since the last plan: ranks drop what they keep per request, before they look at `sequences`.
  std::vector<RequestId> forget;
  bool empty() const { return sequences.empty(); }
  int64_t n_tokens() const;
  bool operator==(const StepPlan&) const = default;
};

// Little-endian, 32 bits per token and block id: what crosses to ranks in other processes.
std::vector<std::byte> serialize(const StepPlan&);
StepPlan deserialize_plan(std::span<const std::byte>);  // throws RuntimeFailure on anything malformed

// Per planned sequence, in order.
struct SequenceResult {
  TokenOutput token;  // when `sample` was set
  bool bad = false;   // NaN in its logits: the request ends with an error, the others go on
  std::shared_ptr<const std::vector<float>> logits;  // [rows, vocabulary] when all_logits was set
  std::vector<TokenOutput> prompt_logprobs;          // for the tokens after each row, up to the prompt's last
};
struct StepResult {
  std::vector<SequenceResult> sequences;
};

}  // namespace braid
