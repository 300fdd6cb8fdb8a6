// A World of ranks with GPUs, over a host world that carries steps, control messages, agreement and failure. A watch
// thread looks after what the streams are asked: work that does not end is reported like a late rank, and after any
// failure the communicators are aborted, so that no kernel waits for a peer that will not come.
#pragma once
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/nccl_communicator.h"
#include "comm/world.h"

namespace braid {

class NcclWorld final : public World {
 public:
  explicit NcclWorld(std::unique_ptr<HostWorld> host);
  ~NcclWorld() override;

  int size() const override { return host_->size(); }
  int n_processes() const override { return host_->n_processes(); }
  int process() const override { return host_->process(); }
  int first_on_host() const override { return host_->first_on_host(); }
  std::unique_ptr<Comm> group(int rank, const std::string& name, std::span<const int> ranks) override;
  void use_stream(int rank, void* stream) override;
  void launched(int rank) override;
  void set_step(int rank, int64_t step) override { host_->set_step(rank, step); }
  void control_send(std::span<const std::byte> message) override { host_->control_send(message); }
  std::vector<std::byte> control_receive() override { return host_->control_receive(); }
  std::string failure() const override { return host_->failure(); }
  void fail(const std::string& reason) override { host_->fail(reason); }
  void set_terminate_handler(std::function<void()> handler) override { host_->set_terminate_handler(std::move(handler)); }

 private:
  using Clock = std::chrono::steady_clock;
  struct LocalRank {
    cudaStream_t stream = nullptr;
    cudaEvent_t step_done = nullptr;     // recorded behind a step's work
    bool running = false;                // until step_done has been seen
    Clock::time_point since;             // its launch
    std::vector<std::pair<std::vector<int>, std::weak_ptr<NcclCommunicator>>> communicators;
  };
  LocalRank& local(int rank) { return locals_[static_cast<size_t>(rank - first_local())]; }
  // One communicator serves all groups of the same ranks: their collectives follow one another on the stream anyway.
  std::shared_ptr<NcclCommunicator> communicator(int rank, int place, std::span<const int> ranks, Comm& host);
  void watch();
  void check_streams();
  void abort_all();

  const std::unique_ptr<HostWorld> host_;
  std::mutex mutex_;  // locals_
  std::vector<LocalRank> locals_;
  std::atomic<bool> stop_{false};
  std::thread watch_;
};

}  // namespace braid
