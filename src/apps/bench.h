// The benchmarks of `braid bench`, and what those in process share.
#pragma once
#include "apps/app.h"
#include "apps/engine_run.h"
#include "base/json.h"

namespace braid {

int run_bench_latency(const Arguments&);
int run_bench_throughput(const Arguments&);
int run_bench_serve(const Arguments&);
int run_bench_decode(const Arguments&);

// Of exactly n_output tokens, greedily, whatever the model would say: equal work in every run.
Request bench_request(std::vector<int32_t> prompt, int n_output);

// Steps, preemptions, cached tokens and the local ranks' counters: what the engine really did.
Json engine_counters(const EngineLoop&);

// To `file` as well, where one is named; throws Error when it cannot be written.
void write_result_file(const std::string& file, const Json& result);

}  // namespace braid
