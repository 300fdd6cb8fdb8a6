// All MPI calls of a process. Messages are packets that begin with a Header; they go out with Isend and come in with
// Improbe, whoever of the waiting threads polls, into queues by (world, channel, sender). Every call is under one lock
// (MPI_THREAD_SERIALIZED is enough) and none blocks, so that a lost peer never takes a thread with it.
#pragma once
#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "comm/process_link.h"

namespace braid {

// Channels below kFirstGroup are the carrier's own; a group's channel is a hash of its name and ranks.
enum Channel : uint64_t { kHello, kControl, kHeartbeat, kFailure, kGoodbye, kFirstGroup };

struct Header {
  uint64_t channel = 0;
  int32_t world = 0;    // worlds of a process count from 1
  int32_t process = 0;  // sender
  int32_t round = 0;
  Collective kind = Collective::kBarrier;
  int64_t step = -1, sequence = 0, bytes = 0;
  uint64_t detail = 0;
  char name[64] = {};
};
static_assert(sizeof(Header) <= Packet::kHeaderBytes);
Header& header_of(Packet& packet);

class Mailbox {
 public:
  // Initialises MPI at the first call; MPI is finalised when the process exits, unless a world ended in failure (then
  // finalising would wait for lost peers; mpirun ends the others when one exits without it).
  static Mailbox& instance();

  int n_processes() const { return n_processes_; }
  int process() const { return process_; }
  int next_world();  // also drops what is left of older worlds
  void keep_unfinalised();

  struct Sending {
    std::shared_ptr<Packet> packet;
    MPI_Request request = MPI_REQUEST_NULL;
    std::atomic<bool> done{false};
  };
  std::shared_ptr<Sending> send(int process, std::shared_ptr<Packet> packet);
  void poll();  // returns at once where another thread polls already
  // Messages that are neither quite here nor quite gone: large ones move only while both sides poll.
  bool sending() const { return n_sending_.load(std::memory_order_relaxed) > 0; }
  bool receiving() const { return n_receiving_.load(std::memory_order_relaxed) > 0; }
  std::shared_ptr<Packet> take(int world, uint64_t channel, int process);  // empty: nothing there

 private:
  Mailbox();
  ~Mailbox();
  void finish_sends();
  void start_receives();
  void finish_receives();

  struct Receiving {
    std::shared_ptr<Packet> packet;
    MPI_Request request = MPI_REQUEST_NULL;
    int source = 0;
  };
  int n_processes_ = 1, process_ = 0, worlds_ = 0;
  bool finalise_ = true;
  std::mutex mpi_;  // guards MPI and the two lists
  std::list<std::shared_ptr<Sending>> sending_;
  std::list<Receiving> receiving_;
  std::atomic<size_t> n_sending_{0}, n_receiving_{0};  // lengths of the lists
  std::mutex queues_mutex_;
  std::map<std::tuple<int, uint64_t, int>, std::deque<std::shared_ptr<Packet>>> queues_;
};

}  // namespace braid
