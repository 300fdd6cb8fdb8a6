// See server_metrics.h.
#include "server/server_metrics.h"

#include <fmt/core.h>

#include "server/json_escape.h"

namespace braid {
namespace {

const std::vector<double> kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,   0.25,  0.5,   0.75,
                                      1.0,   2.5,    5.0,   7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
const std::vector<double> kShortSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                                           0.3,   0.4,    0.5,   0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0};
const std::vector<double> kTokens = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                     2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
const std::vector<double> kSmallCounts = {1, 2, 5, 10, 20};

std::string model_label(const std::string& name) {
  std::string label = "model_name=";
  append_json_string(label, name);
  return label + ",engine=\"0\"";
}

}  // namespace

ServerMetrics::ServerMetrics(const std::string& model_name)
    : registry(model_label(model_name)),
      ttft_s(registry.histogram({"braid_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
                                "From the whole request to its first token.", kSeconds)),
      inter_token_s(registry.histogram({"braid_inter_token_latency_seconds", "vllm:inter_token_latency_seconds",
                                        "vllm:time_per_output_token_seconds"},
                                       "Time between tokens of one sequence; a step's tokens share its time.",
                                       kShortSeconds)),
      e2e_s(registry.histogram({"braid_request_latency_seconds", "vllm:e2e_request_latency_seconds"},
                               "From the whole request to its last token.", kSeconds)),
      queue_s(registry.histogram({"braid_request_queue_time_seconds", "vllm:request_queue_time_seconds"},
                                 "From the whole request to the beginning of its first step.", kSeconds)),
      prefill_s(registry.histogram({"braid_request_prefill_time_seconds", "vllm:request_prefill_time_seconds"},
                                   "From the beginning of the first step to the first token.", kSeconds)),
      decode_s(registry.histogram({"braid_request_decode_time_seconds", "vllm:request_decode_time_seconds"},
                                  "From the first token to the last.", kSeconds)),
      inference_s(registry.histogram({"braid_request_inference_time_seconds", "vllm:request_inference_time_seconds"},
                                     "From the beginning of the first step to the last token.", kSeconds)),
      time_per_output_token_s(registry.histogram(
          {"braid_request_time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds"},
          "Mean time per output token after the first, one observation per sequence.", kShortSeconds)),
      prompt_tokens(registry.histogram({"braid_request_prompt_tokens", "vllm:request_prompt_tokens"},
                                       "Prompt tokens of finished requests.", kTokens)),
      generation_tokens(registry.histogram({"braid_request_generation_tokens", "vllm:request_generation_tokens"},
                                           "Output tokens of finished requests.", kTokens)),
      params_n(registry.histogram({"braid_request_params_n", "vllm:request_params_n"}, "n of requests.", kSmallCounts)),
      params_max_tokens(registry.histogram({"braid_request_params_max_tokens", "vllm:request_params_max_tokens"},
                                           "max_tokens of requests, after the default.", kTokens)),
      http_errors(registry.counter({"braid_http_errors_total"}, "Requests refused with an error status.")),
      disconnects(registry.counter({"braid_client_disconnects_total"}, "Clients that left before their reply ended.")) {
  const auto gauge = [&](std::vector<std::string> names, const char* help, std::function<double()> read) {
    registry.callback(std::move(names), "gauge", help, std::move(read));
  };
  const auto total = [&](std::vector<std::string> names, const char* help, std::function<double()> read) {
    registry.callback(std::move(names), "counter", help, std::move(read));
  };
  const auto d = [](int64_t n) { return static_cast<double>(n); };
  gauge({"braid_requests_running", "vllm:num_requests_running"}, "Sequences in the running batch.",
        [=, this] { return d(now_.engine.n_running); });
  gauge({"braid_requests_waiting", "vllm:num_requests_waiting"}, "Sequences that wait to be admitted.",
        [=, this] { return d(now_.engine.n_waiting); });
  gauge({"braid_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
        "KV blocks held by live sequences; 1 is all.",
        [=, this] { return now_.engine.blocks_total ? d(now_.engine.blocks_used) / d(now_.engine.blocks_total) : 0; });
  gauge({"braid_kv_cache_blocks_total"}, "KV blocks.", [=, this] { return d(now_.engine.blocks_total); });
  gauge({"braid_kv_cache_blocks_used"}, "KV blocks held by live sequences.",
        [=, this] { return d(now_.engine.blocks_used); });
  gauge({"braid_last_step_seconds"}, "Duration of the last engine step.",
        [this] { return now_.engine.last_step_seconds; });
  gauge({"braid_http_connections"}, "Open connections.", [=, this] { return d(now_.connections); });
  gauge({"braid_http_generations"}, "Completion requests in work.", [=, this] { return d(now_.generations); });
  total({"braid_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"},
        "Prompt tokens looked up in the prefix cache.", [=, this] { return d(now_.engine.prompt_tokens); });
  total({"braid_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"}, "Prompt tokens found in the prefix cache.",
        [=, this] { return d(now_.engine.cached_tokens); });
  total({"braid_preemptions_total", "vllm:num_preemptions_total"}, "Sequences preempted to free KV blocks.",
        [=, this] { return d(now_.engine.preemptions); });
  total({"braid_prompt_tokens_total", "vllm:prompt_tokens_total"}, "Prompt tokens processed.",
        [=, this] { return d(now_.engine.prompt_tokens); });
  total({"braid_generation_tokens_total", "vllm:generation_tokens_total"}, "Tokens generated.",
        [=, this] { return d(now_.engine.generated_tokens); });
  total({"braid_steps_total"}, "Engine steps.", [=, this] { return d(now_.engine.steps); });
  total({"braid_io_cpu_seconds_total"}, "CPU time of the server's io thread.", [this] { return now_.io_cpu_seconds; });
  for (const char* reason : {"stop", "length", "abort", "error"}) finished_by(reason);  // present from the start
}

Counter& ServerMetrics::finished_by(const std::string& reason) {
  Counter*& counter = finished_[reason];
  if (!counter)
    counter = &registry.counter({"braid_requests_finished_total", "vllm:request_success_total"},
                                "Sequences that ended, by reason.", fmt::format("finished_reason=\"{}\"", reason));
  return *counter;
}

std::string ServerMetrics::prometheus_text(const Snapshot& now) {
  now_ = now;
  return registry.prometheus_text();
}

}  // namespace braid
