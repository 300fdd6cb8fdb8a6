// A World whose ranks run on CPUs: groups, steps and failure, which are the same for every carrier between processes.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "comm/comm.h"
#include "comm/host_group.h"
#include "comm/run_state.h"

namespace braid {

class HostWorld : public World {
 public:
  HostWorld(const WorldOptions& options, int n_processes, int process, int ranks_on_host);

  // One rank's membership of a group.
  struct Membership {
    std::shared_ptr<HostGroup> group;
    int place = 0;
  };
  Membership join(int rank, const std::string& name, std::span<const int> ranks);
  const std::shared_ptr<RunState>& run() const { return run_; }

  int size() const override { return run_->size(); }
  int n_processes() const override { return n_processes_; }
  int process() const override { return process_; }
  std::unique_ptr<Comm> group(int rank, const std::string& name, std::span<const int> ranks) override;
  void set_step(int rank, int64_t step) override;
  std::string failure() const override { return run_->failure(); }
  void fail(const std::string& reason) override { run_->fail(reason); }
  int first_on_host() const override { return first_local(); }
  void use_stream(int, void*) override {}
  void launched(int) override {}

 protected:
  // A group's way to its members in other processes; `id` is the same in all of them.
  virtual std::shared_ptr<ProcessLink> link(uint64_t id, const std::string& name, const std::vector<int>& ranks,
                                            const std::vector<HostGroup::Share>& shares) = 0;
  int64_t spin_ns() const { return spin_ns_; }

 private:
  const std::shared_ptr<RunState> run_;
  const int n_processes_, process_;
  const int64_t spin_ns_;

  // The n-th call of a rank with the same name and ranks makes the n-th such group, so that calls need not wait.
  using Key = std::tuple<std::string, std::vector<int>, int>;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<HostGroup>> groups_;
  std::map<std::tuple<int, std::string, std::vector<int>>, int> calls_;  // by rank
};

// Ranks are the threads of this process.
std::unique_ptr<HostWorld> make_thread_world(const WorldOptions&);
// Ranks are spread over the processes that mpirun started. Without MPI in the build: throws Error.
std::unique_ptr<HostWorld> make_mpi_world(const WorldOptions&);
// The same ranks with GPUs: `host` carries what they agree on, NCCL their tensors. Without NCCL in the build: throws
// Error.
std::unique_ptr<World> make_nccl_world(std::unique_ptr<HostWorld> host);

}  // namespace braid
