// Collectives between ranks. A rank is a thread with a device; ranks meet only here. One Comm per rank and named group,
// used by that rank's thread alone. Carriers: shared memory between threads, MPI between processes (a group may
// span both), NCCL between GPUs. All ranks of a group must call the same collectives in the same order with the same
// sizes; a mismatch, a stall or a dead rank is reported in words (step, group, collective, who differs) by an exception
// on the ranks that wait, never as a hang.
//
// Sums are float32 and are added in a balanced binary tree over ranks, ((0+1)+(2+3))+((4+5)+(6+7)), so that every rank
// gets the same bits, on every carrier (docs/architecture.md section 8). Group sizes need not be powers of two.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace braid {

struct CollectiveCount {
  int64_t calls = 0;
  int64_t bytes = 0;  // payload that this rank contributed
};

class Comm {
 public:
  virtual ~Comm() = default;
  int rank() const { return rank_; }  // place in the group
  int size() const { return size_; }
  const std::string& group() const { return group_; }

  // `name` says which collective of the model this is ("attn_out", "moe_out"); it must be a literal.
  virtual void all_reduce(Tensor x /*float32, dense, summed in place*/, const char* name) = 0;
  virtual void all_gather(Tensor out /*[size, ...in], dense*/, Tensor in, const char* name) = 0;
  // Rank r contributes counts[r] rows of `in`'s width; out holds all rows in rank order.
  virtual void all_gatherv(Tensor out, Tensor in, std::span<const int64_t> counts, const char* name) = 0;
  virtual void reduce_scatter(Tensor out /*float32*/, Tensor in /*float32 [size, ...out]*/, const char* name) = 0;
  virtual void all_to_all(Tensor out /*[size, ...]*/, Tensor in /*[size, ...]*/, const char* name) = 0;
  virtual void broadcast(Tensor x, int root, const char* name) = 0;
  // Every rank has attention results of all heads over rows of its own; head h belongs to rank h / N, which gets them
  // merged as Backend::merge_results() does. False where the carrier has no operation of its own for that: nothing has
  // happened then, on any rank.
  virtual bool merge_heads(Tensor y /*[T, N, D]*/, Tensor values /*[T, size N, D]*/,
                           Tensor lse /*float32 [T, size N]*/, const char* name) {
    return false;
  }
  virtual void barrier(const char* name) = 0;

  // The same group for tensors in host memory: this very object where ranks compute on the host.
  virtual Comm& host() { return *this; }

  // By collective name. Counting is this class's, so that a carrier cannot forget it.
  const std::map<std::string, CollectiveCount>& counts() const { return counts_; }

 protected:
  Comm(std::string group, int rank, int size) : group_(std::move(group)), rank_(rank), size_(size) {}
  void count(const char* name, int64_t bytes) {
    CollectiveCount& c = counts_[name];
    ++c.calls;
    c.bytes += bytes;
  }

 private:
  std::string group_;
  int rank_, size_;
  std::map<std::string, CollectiveCount> counts_;
};

struct WorldOptions {
  int size = 1;                // ranks in all processes together
  double stall_seconds = 8.0;  // a wait longer than this is reported and ends the run
  bool gpus = false;           // ranks compute on GPUs: collectives move device tensors, in the order of the rank's stream
};

// All ranks of a run, as one process sees them: ranks [first_local, first_local + n_local) are threads of this process.
// Without mpirun that is every rank. `size` must be a multiple of the number of processes.
class World {
 public:
  virtual ~World() = default;
  virtual int size() const = 0;
  virtual int n_processes() const = 0;
  virtual int process() const = 0;
  int n_local() const { return size() / n_processes(); }
  int first_local() const { return process() * n_local(); }
  virtual int first_on_host() const = 0;  // how many ranks of this host come before this process's

  // Ranks on GPUs, by the rank's thread with its device current, before it joins groups: the stream (a cudaStream_t) that
  // the collectives of groups joined from then on are put on. They may be recorded as part of a graph; each is then checked once, when it is recorded.
  virtual void use_stream(int rank, void* stream) = 0;
  // All of a step's work has been put on the rank's stream. It is watched until it is done: a device that waits longer
  // than a stall for its peers is reported and set free. For ranks on the host there is nothing to watch.
  virtual void launched(int rank) = 0;

  // Called by the thread of global rank `rank`; collective over `ranks` (ascending, containing `rank`).
  virtual std::unique_ptr<Comm> group(int rank, const std::string& name, std::span<const int> ranks) = 0;

  // The step that a local rank's next collectives belong to: part of what the ranks of a group must agree on.
  virtual void set_step(int rank, int64_t step) = 0;

  // From process 0 to all others, for step plans: process 0 sends, the others wait for as long as it takes without
  // burning a core (but notice a lost process). With one process both return at once.
  virtual void control_send(std::span<const std::byte> message) = 0;  // process 0 only
  virtual std::vector<std::byte> control_receive() = 0;               // other processes only

  // Something that ended the run, reported once per process in words; empty while all is well. Any thread.
  virtual std::string failure() const = 0;
  // Marks the run as failed so that every local rank's wait ends with RuntimeFailure.
  virtual void fail(const std::string& reason) = 0;

  // What SIGTERM does while no peer is lost, instead of ending the process: called once, on a thread of the world's, it
  // must return soon. Where ranks are spread over processes SIGTERM belongs to the world, which reports a lost peer
  // before it ends; a program must not take the signal over. With one process this does nothing and the signal is the
  // program's own.
  virtual void set_terminate_handler(std::function<void()> handler) = 0;
};

// Under mpirun with more than one process the ranks are spread over them; otherwise all are threads of this process.
std::unique_ptr<World> make_world(const WorldOptions&);

}  // namespace braid
