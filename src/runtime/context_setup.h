// What --dcp-config and its vLLM spellings ask for, and what of it is active: the four settings of a decode-context-parallel
// group. A setting that cannot apply switches itself off with a reason; one that contradicts the run is a problem.
#pragma once
#include <string>
#include <vector>

#include "model/config.h"
#include "runtime/config.h"

namespace braid {

struct ContextChoice {
  std::string option, asked, active, reason;
};

struct ContextSetup {
  ContextOptions options;
  std::vector<ContextChoice> choices;  // one row per setting that matters to this run
};

ContextSetup resolve_context(const EngineConfig&, const ModelConfig&, DType compute, std::vector<std::string>& problems);

}  // namespace braid
