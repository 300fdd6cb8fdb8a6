// The numbers that the server itself measures, and the engine's, under braid's names and under those that dashboards
// written for vLLM expect.
#pragma once
#include <map>
#include <string>

#include "runtime/engine.h"
#include "server/metrics.h"

namespace braid {

class ServerMetrics {
 public:
  explicit ServerMetrics(const std::string& model_name);

  struct Snapshot {
    EngineStats engine;
    int64_t connections = 0, generations = 0;  // open sockets; completion requests in work
    double io_cpu_seconds = 0;
  };
  std::string prometheus_text(const Snapshot& now);
  void request_finished(const std::string& reason) { finished_by(reason).add(); }

  MetricsRegistry registry;
  Histogram& ttft_s;
  Histogram& inter_token_s;
  Histogram& e2e_s;
  Histogram& queue_s;  // parts of a sequence's time: until its first step begins, until its first token, after it
  Histogram& prefill_s;
  Histogram& decode_s;
  Histogram& inference_s;  // the last two together
  Histogram& time_per_output_token_s;  // mean of one request
  Histogram& prompt_tokens;
  Histogram& generation_tokens;
  Histogram& params_n;
  Histogram& params_max_tokens;
  Counter& http_errors;
  Counter& disconnects;

 private:
  Counter& finished_by(const std::string& reason);

  Snapshot now_;  // of the text being made
  std::map<std::string, Counter*> finished_;
};

}  // namespace braid
