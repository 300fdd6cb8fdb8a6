// One row of sampling: what the sampler must know of a request beyond its logits, and what comes back.
// Drawing uses a counter generator keyed by (seed, position), so that a token never depends on its batch.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace braid {

struct SamplingRow {
  float temperature = 0.0f;  // 0: the largest logit, lowest id on ties
  float top_p = 1.0f;
  float min_p = 0.0f;
  int top_k = 0;             // 0 or -1: off
  uint64_t seed = 0;
  int64_t position = 0;      // global position of the token being drawn
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;  // over generated tokens
  float repetition_penalty = 1.0f;                          // over prompt and generated tokens
  std::span<const int32_t> prompt, generated;
  std::span<const std::pair<int32_t, float>> logit_bias;
  std::span<const int32_t> banned;   // logit becomes -inf (end tokens before min_tokens)
  std::span<const uint32_t> allowed; // bitmask over the vocabulary, bit id % 32 of word id / 32; empty: everything
  int n_top_logprobs = 0;
};

struct SampleResult {
  int32_t token = -1;
  float logprob = 0.0f;  // natural log of the token's probability under the unmodified logits
  std::vector<std::pair<int32_t, float>> top;  // the n best of the unmodified logits, best first
  bool bad = false;      // the row had a NaN, or nothing was allowed: the request ends, the others go on
};

// What sampling must know of a whole row: the largest logit's id (the lowest on ties; -1 where there is a NaN or nothing
// but -infinity), and the log of the sum of all exponentials.
struct LogitSummary {
  int32_t best = -1;
  double log_sum_exp = 0.0;
};
LogitSummary summarise(std::span<const float> logits);

// The whole of sampling for one row, on the host. In this order: log-probabilities of the logits as they came; allowed
// mask, banned tokens, logit bias, repetition, frequency and presence penalties; then the largest, or temperature,
// min_p, top_k, top_p and one draw. Equal logits are ranked by ascending id. Writes into `logits`.
SampleResult sample_row(std::span<float> logits, const SamplingRow&);
SampleResult sample_row(std::span<float> logits, const SamplingRow&, const LogitSummary&);

// Philox 4x32-10 with key `seed` and counter `position`: uniform in [0, 1), 53 bits.
double uniform_draw(uint64_t seed, int64_t position);

}  // namespace braid
