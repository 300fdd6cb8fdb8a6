// Decides, step by step, which tokens of which requests are computed: continuous batching over a paged KV pool, with
// chunked prefill, prefix reuse and preemption by recompute. Pure logic on one thread: the same calls give the same
// plans. `plan()` and `commit()` alternate; requests come and go in between.
//
// A step's token budget goes first to sequences with one token left (decode), in running order, then to prefills, first
// come, first served, partly computed ones before new ones. A *long* prefill, one that does not fit the rest R of the
// budget, leaves room for the short: those behind it that fit whole into R/2 are served beside it, and it gets all that
// they leave. So a short prompt waits for one chunk of the long one ahead at most, no budget is lost, and the long one
// advances by R/2 a step or more. Further long prompts wait their turn rather than share: they keep no blocks
// meanwhile, and find the first one's blocks when they share its prefix. A request whose turn it is but for whom blocks
// are lacking is not overtaken.
//
// A request gets blocks for its whole prompt when it is admitted and grows block by block; when none is free the last
// running sequence gives way, goes to the front of the queue and is computed again later, its output kept. Since the
// first running sequence never gives way and each one ends, everyone's turn comes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "sched/block_cache.h"
#include "sched/plan.h"
#include "sched/request.h"
#include "sched/sequence.h"

namespace braid {

struct SchedulerConfig {
  int64_t block_tokens = 16;  // tokens of a virtual block: block_size * dcp
  int64_t n_blocks = 0;
  int max_num_seqs = 256;             // running at once; never more than max_num_batched_tokens
  int max_num_batched_tokens = 2048;  // budget of a step
  int64_t max_model_len = 0;          // prompt and answer together
  bool prefix_caching = true;
  bool chunked_prefill = true;  // off: a prompt is computed in one step (a recomputation after preemption need not be)
  int exact_chunk = 0;          // > 0: every chunk but a prompt's last has exactly this many tokens, aligned or not
  int long_prefill_token_threshold = 0;  // > 0: no prefill gets more in one step
  std::vector<int32_t> eos_token_ids;
  int max_waiting = 0;     // queue length; 0: unlimited
  int64_t vocab_size = 0;  // prompt ids are held against it; 0: not known here
  uint64_t hash_seed = 0;  // of the prefix index: a random number per process
};

struct SchedulerStats {
  int64_t steps = 0;
  int64_t n_waiting = 0, n_running = 0;
  int64_t blocks_total = 0, blocks_used = 0, blocks_cached = 0;  // used: held by live sequences; cached: free, findable
  // Since the start. Prompts count once, when first admitted, cached_tokens being what of them was found in the cache.
  int64_t prompt_tokens = 0, generated_tokens = 0, cached_tokens = 0;
  int64_t preemptions = 0, aborted = 0, rejected = 0, finished = 0;  // finished: by kStop or kLength
};

// How much of the held blocks is filled. Blocks that several sequences share are full and in the table of each, so the
// distinct tokens held are the sum of `computed` less n_shared whole blocks.
struct HeldTokens {
  std::vector<int64_t> computed;  // per running sequence, in order of admission
  int64_t n_shared = 0;           // table entries beyond the first that name their block
};

// What the sampler needs of a planned sequence. Valid until the commit.
struct SequenceView {
  std::span<const int32_t> prompt, generated;
  const SamplingParams& sampling;
  Constraint* constraint;  // may be null; commit() advances it
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerConfig config);  // throws Error for values that cannot work together

  // Queues a request whose id is not in use. When it can never run: the reason, and nothing is kept.
  std::optional<std::string> add(Request request);
  // Ends a request; its last delta, kAborted, comes with the next commit. No-op for one that is not here.
  void abort(RequestId id);
  // Nothing to compute and nothing to report.
  bool idle() const { return waiting_.empty() && running_.empty() && ended_.empty(); }

  // The next step; valid until its commit. It may be empty (all that is left are reports of aborts): then there is
  // nothing to run, but it is committed all the same, with an empty result.
  const StepPlan& plan();
  // The planned sequence of that index.
  SequenceView view(size_t index) const;
  // Takes the step's outcome in: one delta per planned sequence and per request aborted since the last commit. They
  // stay until the next commit, may be moved from, and their storage is used again.
  std::vector<Delta>& commit(const StepPlan& plan, StepResult&& result);

  SchedulerStats stats() const;
  void held_tokens(HeldTokens& held) const;  // between commit() and plan(); reuses the storage
  bool reset_prefix_cache();  // false while requests run
  const SchedulerConfig& config() const { return config_; }
  const BlockCache& blocks() const { return blocks_; }

 private:
  std::optional<std::string> reason_against(const Request& request) const;
  bool prefill_needs_whole_step() const;
  void plan_decodes();
  bool make_room(Sequence& s);
  void preempt(Sequence& s);
  void plan_prefills();
  void serve_short();
  bool may_admit() const;
  bool head_may_start();
  bool find_blocks(const Sequence& s);
  int64_t n_hit() const;
  void admit(size_t waiting_index);
  bool fits_whole(int64_t left) const;
  int64_t chunk(const Sequence& s, int64_t computed, bool ragged) const;
  void plan_row(Sequence& s, int64_t n);

  void drop_ended();
  void commit_row(Sequence& s, SequenceResult&& result, Delta& delta);
  void report_prompt_logprobs(Sequence& s, SequenceResult&& result, Delta& delta);
  void accept(Sequence& s, TokenOutput&& token, Delta& delta);
  bool is_stop(const Sequence& s, int32_t token) const;
  void finish(Sequence& s, FinishReason reason, Delta& delta);
  void give_back(Sequence& s);

  SchedulerConfig config_;
  int64_t max_running_;
  int64_t watermark_;  // blocks that stay free at an admission beside others, so that those can grow for a while
  BlockCache blocks_;
  std::unordered_map<int64_t, std::unique_ptr<Sequence>> sequences_;
  std::deque<Sequence*> waiting_;   // FCFS; the preempted in front
  std::vector<Sequence*> running_;  // in order of admission
  std::vector<Delta> ended_;        // aborted outside a step, to be reported
  std::vector<Delta> deltas_;       // of the last commit

  // The step being planned or under way.
  StepPlan plan_;
  std::vector<Sequence*> planned_;
  bool under_way_ = false;
  int64_t budget_ = 0;              // tokens left
  bool prefill_planned_ = false;    // in this step
  bool prefill_only_ = false;       // the last step left the decodes out
  bool head_lacks_blocks_ = false;  // and nothing has changed since it was found so
  BlockCache::Match match_;         // of the request being admitted
  std::vector<RequestId> forget_;   // for the next plan that is not empty
  SchedulerStats counts_;
};

}  // namespace braid
