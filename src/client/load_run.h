// Load on an OpenAI-compatible server: requests that arrive at random intervals, at most so many at a time, streamed,
// and what each of them took.
#pragma once
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/progress.h"
#include "client/dataset.h"
#include "client/http_client.h"

namespace braid {

struct LoadOptions {
  HttpUrl url;
  std::string route = "/v1/completions";  // ".../chat/completions" gets messages, others a prompt
  std::string model, api_key;
  double request_rate = std::numeric_limits<double>::infinity();  // requests per second; infinite: all at once
  double burstiness = 1;    // shape of the gamma distribution of intervals; 1: a Poisson process
  int max_concurrency = 0;  // 0: no limit
  uint64_t seed = 0;        // of the intervals
  bool ignore_eos = false;
  double temperature = 0;
};

struct LoadRecord {
  std::string error;   // empty: answered
  double start_s = 0;  // since the run began
  double ttft_s = 0, latency_s = 0;
  std::vector<double> itl_s;                     // between events that bring text; a merged event's tokens share one
  int64_t prompt_tokens = 0, output_tokens = 0;  // as the server counts; events where it does not
  std::string text;
  // Seconds per output token after the first; 0 where there is no second.
  double tpot_s() const {
    return output_tokens > 1 ? (latency_s - ttft_s) / static_cast<double>(output_tokens - 1) : 0;
  }
};

struct LoadResult {
  double seconds = 0;  // from the first request to the last one's end
  std::vector<LoadRecord> records;
};

// One record per prompt, in order.
LoadResult run_load(const LoadOptions& options, std::span<const BenchPrompt> prompts, Progress& progress);

// When each of n requests arrives, in seconds.
std::vector<double> arrival_times(size_t n, double rate, double burstiness, uint64_t seed);

}  // namespace braid
