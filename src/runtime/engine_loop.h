// The engine on process 0: one thread that owns the scheduler and drives the executor.
//
//   inbox (any thread) -> scheduler.plan -> executor.run -> scheduler.commit -> sinks
//
// Sleeps when there is nothing to do. When a rank or peer is lost, every request ends with kError, and failure() says why.
#pragma once
#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "runtime/engine.h"
#include "runtime/executor.h"
#include "sched/scheduler.h"

namespace braid {

class EngineLoop final : public Engine {
 public:
  struct Submission {
    Request request;
    Sink sink;
  };

  EngineLoop(std::unique_ptr<Executor> executor, std::vector<int32_t> eos_token_ids);
  ~EngineLoop() override;  // running requests end with kAborted

  void submit(Request request, Sink sink) override;
  void submit_together(std::vector<Submission> submissions);  // no step comes between them, whatever the timing
  void abort(RequestId id) override;
  EngineStats stats() const override;
  EngineActivity activity() const override;
  std::string failure() const override;
  bool reset_prefix_cache() override;
  int64_t max_model_len() const override { return max_model_len_; }
  int vocab_size() const override { return vocab_; }
  std::vector<OptionState> options() const override;

  const Executor& executor() const { return *executor_; }  // counters, once no request runs
  World& world() { return executor_->world(); }

 private:
  struct Abortion {
    RequestId id;
  };
  struct CacheReset {
    std::promise<bool> done;
  };
  using Command = std::variant<Submission, Abortion, CacheReset>;

  void post(Command command);
  void loop();
  bool take_commands();  // false when stopping
  void apply(Submission&&);
  void apply(Abortion&&);
  void apply(CacheReset&&);
  void step();
  void fail(const std::string& reason);
  SamplingRow sampling_row(const SequenceView&, const PlannedSequence&) const;
  void deliver(std::vector<Delta>& deltas);
  void end_all(FinishReason, const std::string& message);
  void record_step(const StepPlan& plan);
  void publish_stats();

  std::unique_ptr<Executor> executor_;
  Scheduler scheduler_;
  int64_t max_model_len_;
  int vocab_;
  std::unordered_map<int64_t, Sink> sinks_;  // engine thread only
  std::vector<SamplingRow> sampling_;        // reused
  double last_step_seconds_ = 0;
  int64_t multi_sequence_steps_ = 0;
  HeldTokens held_now_;  // reused

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::vector<Command> inbox_;
  bool stopping_ = false;
  EngineStats stats_;
  HeldTokens held_;
  std::deque<EngineActivity::Step> recent_steps_;
  std::string failure_;

  std::thread thread_;
};

// The scheduler's view of a run.
SchedulerConfig scheduler_config(const RankSetup&, int64_t n_blocks, std::vector<int32_t> eos_token_ids);

}  // namespace braid
