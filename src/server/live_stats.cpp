// See live_stats.h.
#include "server/live_stats.h"

#include <nlohmann/json.hpp>

#include "server/json_fields.h"

namespace braid {

std::string live_stats_json(const LiveStats& s) {
  const EngineStats& e = s.engine;
  const EngineActivity& a = s.activity;
  OrderedJson out = {
      {"version", s.version},
      {"model", s.model},
      {"unhealthy", s.unhealthy},
      {"max_model_len", s.max_model_len},
      {"now_s", s.now_s},
      {"layout", {{"tp", a.tp}, {"dcp", a.dcp}, {"pcp", a.pcp}, {"dp", a.dp}, {"interleave", a.interleave}}},
      {"requests",
       {{"running", e.n_running},
        {"waiting", e.n_waiting},
        {"finished", e.finished},
        {"aborted", e.aborted},
        {"rejected", e.rejected},
        {"preemptions", e.preemptions}}},
      {"tokens", {{"prompt", e.prompt_tokens}, {"cached", e.cached_tokens}, {"generated", e.generated_tokens}}},
      {"blocks", {{"used", e.blocks_used}, {"cached", e.blocks_cached}, {"total", e.blocks_total}}},
      {"n_steps", e.steps},
      {"ranks", OrderedJson::array()},
      {"steps", OrderedJson::array()}};
  for (const EngineActivity::Rank& r : a.ranks)
    out["ranks"].push_back({{"rank", r.rank},
                            {"owner", r.owner},
                            {"rows_used", r.rows_used},
                            {"rows_cached", r.rows_cached},
                            {"rows_total", r.rows_total}});
  for (const EngineActivity::Step& step : a.steps)
    out["steps"].push_back({{"number", step.number},
                            {"seconds", step.seconds},
                            {"prefill_tokens", step.prefill_tokens},
                            {"decode_tokens", step.decode_tokens}});
  return to_string(out);
}

}  // namespace braid
