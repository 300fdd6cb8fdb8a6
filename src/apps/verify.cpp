// braid verify: the real engine, run greedily on its own tokens, against recorded logits; in bfloat16 against a float32 run
// of its own. Needs no tokenizer and ignores end tokens.
#include <sys/stat.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/app.h"
#include "apps/verify_compare.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace braid {
namespace {

struct VerifyOptions {
  EngineConfig engine;
  std::string reference, modes = "full,chunk:1,chunk:7,cached,batched,preempted", dump;
  bool json = false;
};

bool exists(const std::string& path) {
  struct stat s {};
  return ::stat(path.c_str(), &s) == 0;
}

std::vector<VerifyMode> parse_modes(const std::string& text, std::vector<std::string>& problems) {
  std::vector<VerifyMode> modes;
  size_t at = 0;
  while (at <= text.size()) {
    const size_t comma = std::min(text.find(',', at), text.size());
    if (auto mode = parse_verify_mode(text.substr(at, comma - at))) {
      modes.push_back(*mode);
    } else {
      problems.push_back("--modes '" + text.substr(at, comma - at) + "' is unknown; use full, chunk:N, cached, batched, preempted");
    }
    at = comma + 1;
  }
  return modes;
}

void print_table(const std::vector<ModeReport>& reports) {
  for (const ModeReport& r : reports) {
    for (size_t i = 0; i < r.prompts.size(); ++i) {
      const PromptReport& p = r.prompts[i];
      std::printf("%-10s prompt %zu (%lld tokens): %s\n", r.mode.c_str(), i, static_cast<long long>(p.n_prompt), p.text.c_str());
    }
    for (const std::string& f : r.failures) std::printf("%-10s FAILED: %s\n", r.mode.c_str(), f.c_str());
  }
}

Json to_json(const std::vector<ModeReport>& reports, bool passed, const RankSetup& setup) {
  Json out = {{"passed", passed}, {"layout", layout_text(setup)}, {"modes", Json::array()}};
  for (const ModeReport& r : reports) {
    Json mode = {{"mode", r.mode}, {"prompts", Json::array()}, {"failures", r.failures}, {"counters", r.counters}};
    for (const PromptReport& p : r.prompts) {
      mode["prompts"].push_back({{"prompt_tokens", p.n_prompt}, {"max_abs_dlogit", p.max_abs_dlogit}, {"greedy_equal", p.greedy_equal},
                                 {"positions", p.n_positions}, {"positions_within", p.n_within},
                                 {"median_relative_rms", p.median_relative_rms}, {"flipped_rows", p.n_flipped}});
    }
    mode["ranks"] = counters_json(r.first_rank, r.ranks);
    out["modes"].push_back(std::move(mode));
  }
  return out;
}

}  // namespace

int run_verify(const Arguments& arguments) {
  VerifyOptions o;
  OptionTable table("verification");
  table.add("reference", &o.reference, "safetensors with input_ids_i, logits_i, greedy_i, greedy_logits_i; default: MODEL/reference.safetensors");
  table.add("modes", &o.modes, "comma list of full, chunk:N, cached, batched, preempted");
  table.add("dump", &o.dump, "write logits_MODE_I and greedy_MODE_I to this safetensors file");
  table.add("json", &o.json, "print a JSON object");
  add_engine_options(table, o.engine);
  std::vector<std::string> problems;
  if (parse_or_help("verify", "compare the engine's logits with a reference", table, arguments, problems)) return kOk;
  const std::vector<VerifyMode> modes = parse_modes(o.modes, problems);
  const RankSetup setup = resolve(o.engine, problems);
  const std::string reference = o.reference.empty() ? o.engine.model + "/reference.safetensors" : o.reference;
  if (!o.engine.model.empty() && !exists(reference)) problems.push_back("--reference " + reference + " does not exist");
  if (!problems.empty()) return refuse("verify", problems);

  Verifier verifier(setup, reference, o.engine.model + "/long.safetensors");
  std::vector<ModeReport> reports;
  for (const VerifyMode& mode : modes) {
    if (auto report = verifier.run(mode)) reports.push_back(std::move(*report));
  }
  if (!verifier.is_driver()) return kOk;
  bool passed = !reports.empty();
  for (const ModeReport& r : reports) passed = passed && r.failures.empty();
  if (!o.dump.empty()) verifier.dump(o.dump);
  if (o.json) {
    std::printf("%s\n", to_string(to_json(reports, passed, setup), 1).c_str());
  } else {
    print_table(reports);
    std::printf("%s\n", passed ? "passed" : "FAILED");
  }
  return passed ? kOk : kFailed;
}

}  // namespace braid
