#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/bench.h"
#include "base/error.h"

namespace braid {

Request bench_request(std::vector<int32_t> prompt, int n_output) {
  Request r;
  r.prompt = std::move(prompt);
  r.sampling.max_tokens = n_output;
  r.sampling.ignore_eos = true;
  return r;
}

Json engine_counters(const EngineLoop& engine) {
  const EngineStats s = engine.stats();
  return {{"steps", s.steps},
          {"multi_sequence_steps", s.multi_sequence_steps},
          {"prompt_tokens", s.prompt_tokens},
          {"cached_tokens", s.cached_tokens},
          {"generated_tokens", s.generated_tokens},
          {"preemptions", s.preemptions},
          {"ranks", counters_json(0, engine.executor().counters())}};
}

void write_result_file(const std::string& file, const Json& result) {
  if (file.empty()) return;
  std::ofstream out(file, std::ios::binary);
  out << to_string(result, 1) << '\n';
  if (!out.flush()) throw Error("cannot write {}: {}", file, std::strerror(errno));
}

}  // namespace braid
