// GET /stats: what the page's live view draws, as one JSON object. Rates are the reader's: totals and the clock they
// were read at are given, so that two replies tell tokens per second.
#pragma once
#include <string>

#include "runtime/engine.h"

namespace braid {

struct LiveStats {
  std::string version, model;
  std::string unhealthy;  // empty: well
  int64_t max_model_len = 0;
  double now_s = 0;  // of a clock that never jumps
  EngineStats engine;
  EngineActivity activity;
};

std::string live_stats_json(const LiveStats&);

}  // namespace braid
