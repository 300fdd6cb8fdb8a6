// The comparison behind `braid verify`: how each mode runs the engine, and what counts as equal.
//
// Float32: every logit within 2e-4 (GPUs: 1e-3) of the reference, greedy tokens equal; where the reference's two best logits are closer
// than 1e-3 another token is allowed and that prompt's comparison ends there. Long prompts: 90 % of the recorded
// positions within that, since a near-tie in routing may flip. Bfloat16: against a float32 run of its own on the same
// tokens, over rows whose expert choices are the same: median relative RMS of the logits at most 3 %.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/engine_run.h"

namespace braid {

struct VerifyMode {
  enum Kind { kFull, kChunk, kCached, kBatched, kPreempted } kind = kFull;
  int chunk = 0;
  std::string name() const;
};
std::optional<VerifyMode> parse_verify_mode(const std::string& text);

struct PromptReport {
  int64_t n_prompt = 0;
  int64_t n_positions = 0, n_within = 0;  // compared, and within the tolerance
  double max_abs_dlogit = 0;
  bool greedy_equal = true;
  double median_relative_rms = 0;  // bfloat16
  int64_t n_flipped = 0;           // rows whose expert choices differ from the float32 run
  std::string text;                // for people
};

struct ModeReport {
  std::string mode;
  std::vector<PromptReport> prompts;
  std::vector<std::string> failures;
  std::map<std::string, int64_t> counters;  // what was active: steps, cached_tokens, preemptions, ...
  int first_rank = 0;
  std::vector<RankCounters> ranks;  // of this process, from first_rank on
};

// What a prompt must give. Rows are indexed by position; positions that are not compared are empty.
struct Expected {
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;
  std::map<int64_t, std::vector<float>> rows;
  std::map<int64_t, std::vector<int32_t>> experts;  // bfloat16: the float32 run's choices, all layers of a position
};

// The experts that each position of each request was sent to, as the engine runs.
class ExpertLog {
 public:
  void see(const StepPlan&, const char* what, Tensor ids /*int32 [T, k]*/);
  std::map<int64_t, std::vector<int32_t>> of(RequestId id) const;

 private:
  struct Row {
    int64_t step = -1;  // a recomputed position starts over
    std::vector<int32_t> ids;
  };
  std::map<int64_t, std::map<int64_t, Row>> rows_;
};

class Verifier {
 public:
  Verifier(const RankSetup& setup, const std::string& reference_file, const std::string& long_file);
  bool is_driver() const { return driver_; }
  std::optional<ModeReport> run(const VerifyMode& mode);  // nullopt on processes other than 0
  void dump(const std::string& file);  // everything that run() computed for the short prompts

 private:
  struct Dumped {
    std::string name;
    std::vector<float> logits;
    std::vector<int32_t> greedy;
    int64_t rows = 0;
  };

  RankSetup setup_for(const VerifyMode&) const;
  std::vector<Completion> ask(EngineLoop&, const VerifyMode&, const std::vector<Expected>& prompts);
  void compare(const Expected&, const Completion&, bool is_long, ModeReport&) const;
  void compare_narrow(const Expected&, const Completion&, const std::map<int64_t, std::vector<int32_t>>& experts, ModeReport&) const;
  bool record_float32();  // false on processes other than 0
  void check_active(const VerifyMode&, const EngineStats&, ModeReport&) const;
  void keep_for_dump(const std::string& name, const Completion&);

  RankSetup setup_;
  double tolerance_;           // float32, |delta logit|
  std::vector<Expected> short_, long_;
  bool narrow_;                // bfloat16: `short_` holds a float32 run of its own, prompts lengthened by its greedy tokens
  bool recorded_ = false;
  std::vector<Dumped> dumped_;
  bool driver_ = true;
};

}  // namespace braid
