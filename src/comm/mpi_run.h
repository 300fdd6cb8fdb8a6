// What the parts of the MPI carrier share: the mailbox, who the other processes are, and how to wait for them.
#pragma once
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "comm/mpi_mailbox.h"
#include "comm/process_probe.h"
#include "comm/run_state.h"

namespace braid {

struct Peer {
  int pid = 0;
  uint64_t start_time = 0;
  std::string host;
  bool here = false;                   // on this host and visible in /proc
  std::atomic<bool> left{false};       // said goodbye
  std::atomic<int64_t> last_heard{0};  // steady clock, ns; 0: only its hello so far
};

// Grows from busy polling over giving way to sleeps of up to `longest`.
class Backoff {
 public:
  Backoff(int64_t spin_ns, std::chrono::microseconds longest) : spin_(spin_ns), longest_(longest) {}
  void pause(bool give_way_only = false /*no sleep*/);
  // Seconds since the start, in which a pause of more than half a second (a suspended machine) counts as half.
  double waited() const { return waited_; }

 private:
  using Clock = std::chrono::steady_clock;
  std::chrono::nanoseconds spin_;
  std::chrono::microseconds longest_;
  Clock::time_point last_ = Clock::now();
  double waited_ = 0;
};

struct MpiRun {
  Mailbox& mailbox;
  const int world;          // the number of this world in the process
  std::vector<Peer> peers;  // by process; the own entry too
  std::shared_ptr<RunState> state;
  int64_t spin_ns = 0;

  MpiRun(Mailbox& m, int world_number) : mailbox(m), world(world_number), peers(static_cast<size_t>(m.n_processes())) {}
  Peer& peer(int process) { return peers[static_cast<size_t>(process)]; }
  int process_of(int rank) const { return rank / state->n_local(); }

  std::shared_ptr<Packet> packet(uint64_t channel, size_t payload_bytes) const;
  std::shared_ptr<Packet> take(uint64_t channel, int process) { return mailbox.take(world, channel, process); }

  ProcessState probe(int process);
  std::string describe_process(int process);  // "process 2 (pid 71 on host a)"
  // In the middle of a transfer that sleeping would slow down (for long only one that comes in: it has its sender).
  bool transferring(double waited) const {
    return waited < 1.0 && (mailbox.receiving() || (waited < 0.02 && mailbox.sending()));
  }
  std::string explain(int rank);  // "its process 2 (pid 71 on host a) is stopped"
};

// Tells every process of the others; after it `peers` is filled. Throws Error where the processes were started with
// different sizes, RuntimeFailure where one does not answer in time.
void exchange_hellos(MpiRun& run, const WorldOptions& options);

}  // namespace braid
