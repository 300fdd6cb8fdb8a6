// Runs step plans on all ranks of this process, and over the control channel on those of other processes. Local ranks
// are threads; the first local rank runs on the calling thread, so that one rank costs no hand-over.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "ops/sampling.h"
#include "runtime/loading_progress.h"
#include "runtime/runner.h"

namespace braid {

class Executor {
 public:
  // Starts the ranks, loads the weights and allocates the cache; collective over processes. Throws Error for bad
  // checkpoints, RuntimeFailure for lost peers.
  Executor(RankSetup setup, std::unique_ptr<World> world);
  ~Executor();

  bool is_driver() const { return world_->process() == 0; }
  const RankSetup& setup() const { return setup_; }
  World& world() { return *world_; }
  std::string world_failure() const { return world_->failure(); }
  int64_t n_blocks() const { return n_blocks_; }

  // Process 0: runs the plan everywhere; `sampling` has one row per planned sequence. Throws RuntimeFailure when a rank
  // is lost, after which the executor is dead.
  StepResult run(const StepPlan& plan, std::span<const SamplingRow> sampling);
  // Other processes: runs what process 0 sends until it says stop.
  void follow();

  // For measurements: `work` on every rank of this process at once, each on its own thread.
  void each_rank(const std::function<void(Runner&)>& work) {
    on_all_ranks([&](int local) { work(*runners_[static_cast<size_t>(local)]); });
  }

  // Shows `see` what the first local rank's model computes on the way (Backend::observer), as host tensors. Set between
  // steps. A replayed step shows nothing.
  using Observer = std::function<void(const StepPlan&, const char* what, Tensor value)>;
  void observe(Observer see);

  std::vector<RankCounters> counters() const;  // of the local ranks, in order
  const std::vector<std::pair<std::string, double>>& phases() const { return phases_; }  // of the start, in seconds

 private:
  void start_ranks();
  void phase(const char* name);
  template <typename F>
  void spin_until(F done) const;
  std::unique_ptr<Backend> make_rank_backend(int local);  // whose stream the world then knows
  void measure_context();  // settles what is "auto" in the context setup
  void size_cache();
  void check_coverage();
  void rank_loop(int local);
  void on_all_ranks(const std::function<void(int local)>& work);
  StepResult read_result(const StepPlan&, std::span<const SamplingRow>, Tensor logits);

  RankSetup setup_;
  std::unique_ptr<World> world_;
  std::unique_ptr<LoadingProgress> source_;
  std::vector<std::unique_ptr<Runner>> runners_;
  int64_t n_blocks_ = 0;
  const StepPlan* plan_ = nullptr;  // being run
  std::chrono::steady_clock::time_point phase_start_ = std::chrono::steady_clock::now();
  std::vector<std::pair<std::string, double>> phases_;

  // Work hand-over to the rank threads: a generation counter, one job at a time.
  std::mutex mutex_;
  std::condition_variable start_, done_;
  const std::function<void(int)>* job_ = nullptr;
  std::atomic<int64_t> generation_{0};
  std::atomic<int> unfinished_{0};
  bool stopping_ = false;
  std::vector<std::exception_ptr> errors_;
  std::vector<std::thread> threads_;
};

}  // namespace braid
