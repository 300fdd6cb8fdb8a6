// What --dcp-config and its vLLM spellings ask for, and what of it is active: the four settings of a decode-context-parallel
// group. A setting that cannot apply switches itself off with a reason; one that contradicts the run is a problem.
#pragma once
#include <string>
#include <vector>

#include "model/config.h"
#include "runtime/config.h"
#include "runtime/step_parts.h"

namespace braid {

struct ContextChoice {
  std::string option, asked, active, reason;
};

struct ContextSetup {
  ContextOptions options;
  std::vector<ContextChoice> choices;  // one row per setting that matters to this run
  bool to_measure = false;             // some setting is "auto": its choice above rests on estimates
};

// Bytes that a rank contributes to one layer's exchange for one token: to the gather of queries, and to every peer's
// heads as results before and after the value up-projection.
struct ContextMessages {
  int64_t query = 0, result = 0, projected = 0;
};
ContextMessages messages_of(const EngineConfig&, const ModelConfig&, DType compute);

// What decides "auto", in microseconds for one layer and token. The defaults are estimates for the rank threads of one host.
struct ContextCosts {
  bool measured = false;
  double gather = 20.0, exchange = 0, exchange_projected = 0;  // 0: a gather's, and the bytes at the rate of the weights
  double weight_bytes_per_microsecond = 10e3;
};

// Which form of attention several new tokens take; appends to `context` what was asked, what is active and why.
RowRule row_rule(const EngineConfig&, const ModelConfig&, ContextSetup& context);

ContextSetup resolve_context(const EngineConfig&, const ModelConfig&, DType compute, const ContextCosts&,
                             std::vector<std::string>& problems);

}  // namespace braid
