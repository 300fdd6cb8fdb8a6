// A request as the engine core knows it: tokens in, sampling rules, stop rules. Text is not known here.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"

namespace braid {

// Narrows what may come next (grammar, JSON schema). Owned by one sequence; engine thread only.
class Constraint {
 public:
  virtual ~Constraint() = default;
  virtual std::span<const uint32_t> mask() = 0;  // bitmask over the vocabulary for the next token
  virtual void advance(int32_t token) = 0;
};

struct SamplingParams {
  int max_tokens = -1;  // -1: what is left of the context
  int min_tokens = 0;
  float temperature = 0.0f;  // 0: greedy
  float top_p = 1.0f;
  float min_p = 0.0f;
  int top_k = 0;
  float presence_penalty = 0.0f, frequency_penalty = 0.0f, repetition_penalty = 1.0f;
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> stop_token_ids;  // in addition to the model's end tokens
  bool ignore_eos = false;
  int n_top_logprobs = 0;        // alternatives reported per token
  bool prompt_logprobs = false;  // log-probability of each prompt token given those before it
};

struct Request {
  RequestId id;
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  std::shared_ptr<Constraint> constraint;
  bool all_logits = false;  // return the logits of every computed row (verification)
};

enum class FinishReason {
  kNone,
  kStop,      // an end token or stop token
  kLength,    // max_tokens or the context limit
  kAborted,   // the caller asked
  kRejected,  // can never be scheduled; the text says why
  kError,     // NaN in its row, or the engine failed
};
const char* name_of(FinishReason);

struct TokenOutput {
  int32_t token = -1;
  float logprob = 0.0f;
  std::vector<std::pair<int32_t, float>> top;
};

// What one step made of one request. `tokens` may be empty (a middle chunk, or an end without a token).
struct Delta {
  RequestId id;
  std::vector<TokenOutput> tokens;
  FinishReason finish = FinishReason::kNone;
  std::string message;        // for kRejected and kError, and for kLength when it was the KV pool that was full
  int64_t cached_tokens = 0;  // prompt tokens found in the prefix cache, known from the first delta on
  // With Request::all_logits: rows computed in this step, the first for position `logits_start`. Rows found in the
  // prefix cache have none; rows computed again after a preemption come again.
  int64_t logits_start = 0;
  std::shared_ptr<const std::vector<float>> logits;  // [rows, vocabulary]
  // With prompt_logprobs: one entry per prompt position computed in this step, starting at logits_start + 1.
  // Such a request does not read the prefix cache, so that every position comes; each comes once (unless all_logits
  // too).
  std::vector<TokenOutput> prompt_logprobs;
};

}  // namespace braid
