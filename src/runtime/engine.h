// The engine as its users see it (server, generate, eval, verify): requests in, deltas out. Any thread may call; the
// engine's own thread owns every sequence. A sink is called on the engine thread, once per step and request, and must
// not block; after a delta with a finish reason it is called no more.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sched/request.h"

namespace braid {

struct EngineStats {
  int64_t steps = 0, multi_sequence_steps = 0;
  int64_t n_waiting = 0, n_running = 0;
  int64_t blocks_total = 0, blocks_used = 0, blocks_cached = 0;  // used: held by live sequences; cached: for hits only
  int64_t prompt_tokens = 0, generated_tokens = 0, cached_tokens = 0;  // since the start
  int64_t preemptions = 0, aborted = 0, rejected = 0, finished = 0;
  double last_step_seconds = 0;
};

// What the engine is doing, for a live view. The engine's thread leaves it ready after every step, so that asking for it
// never waits for one.
struct EngineActivity {
  // KV rows, one per token: those of live sequences, those kept for prefix hits, and all.
  struct Rank {
    int rank = 0, owner = 0;  // owner: which tokens it holds; ranks of one owner hold the same ones
    int64_t rows_used = 0, rows_cached = 0, rows_total = 0;
  };
  struct Step {
    int64_t number = 0;
    double seconds = 0;
    int64_t prefill_tokens = 0, decode_tokens = 0;
  };
  int tp = 1, dcp = 1, pcp = 1, dp = 1;
  int interleave = 1;  // tokens in a run on one owner
  std::vector<Rank> ranks;
  std::vector<Step> steps;  // the last ones, oldest first
};

class Engine {
 public:
  using Sink = std::function<void(Delta&&)>;
  virtual ~Engine() = default;

  // Never throws for what a request asks: a request that cannot run ends with kRejected and the reason.
  virtual void submit(Request request, Sink sink) = 0;
  virtual void abort(RequestId id) = 0;  // no-op for an unknown or finished request
  RequestId next_id() { return RequestId(next_id_++); }

  virtual EngineStats stats() const = 0;
  virtual EngineActivity activity() const = 0;
  virtual std::string failure() const = 0;     // empty while healthy; else why the engine stopped
  virtual bool reset_prefix_cache() = 0;       // false while requests run
  virtual int64_t max_model_len() const = 0;   // tokens of prompt and answer together
  virtual int vocab_size() const = 0;
  // What was asked, what is active and why, for /server_info and the start-up table: option -> [asked, active, reason].
  struct OptionState {
    std::string option, asked, active, reason;
  };
  virtual std::vector<OptionState> options() const = 0;

 private:
  std::atomic<int64_t> next_id_{1};
};

}  // namespace braid
