// Who the other processes are.
#include "comm/mpi_run.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace braid {
namespace {

struct Hello {
  int32_t pid = 0, size = 0;
  uint64_t start_time = 0;
  char host[128] = {};
};

constexpr double kHelloSeconds = 60;  // all processes are up when MPI is; the rest is their program's own start

}  // namespace

void Backoff::pause(bool give_way_only) {
  if (waited_ * 1e9 < static_cast<double>(spin_.count())) {
    std::atomic_signal_fence(std::memory_order_seq_cst);  // poll again at once
  } else if (waited_ < 100e-6 || give_way_only) {
    sched_yield();
  } else {
    const auto pause = std::chrono::microseconds(static_cast<int64_t>(waited_ * 1e6 / 8));
    std::this_thread::sleep_for(std::min(pause, longest_));
  }
  const auto now = Clock::now();
  waited_ += std::min(0.5, std::chrono::duration<double>(now - last_).count());
  last_ = now;
}

std::shared_ptr<Packet> MpiRun::packet(uint64_t channel, size_t payload_bytes) const {
  auto packet = std::make_shared<Packet>(payload_bytes);
  Header header;
  header.channel = channel;
  header.world = world;
  header.process = mailbox.process();
  std::memcpy(packet->data(), &header, sizeof header);
  return packet;
}

ProcessState MpiRun::probe(int process) {
  const Peer& p = peer(process);
  return p.here ? probe_process(p.pid, p.start_time) : ProcessState::kRunning;
}

std::string MpiRun::describe_process(int process) {
  const Peer& p = peer(process);
  return fmt::format("process {} (pid {} on {})", process, p.pid, p.host);
}

std::string MpiRun::explain(int rank) {
  const int process = process_of(rank);
  if (process == mailbox.process()) return "";
  const Peer& p = peer(process);
  const ProcessState seen = probe(process);
  std::string text = "its " + describe_process(process);
  if (p.left) {
    text += " has ended its run";
  } else if (!p.here) {
    const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    text += fmt::format(" was last heard of {:.1f} s ago", static_cast<double>(now - p.last_heard) * 1e-9);
  } else {
    text += seen == ProcessState::kGone ? " is gone" : seen == ProcessState::kStopped ? " is stopped" : " is alive";
  }
  return text;
}

void exchange_hellos(MpiRun& run, const WorldOptions& options) {
  Mailbox& mailbox = run.mailbox;
  Hello own;
  own.pid = getpid();
  own.size = options.size;
  own.start_time = start_time_of(own.pid);
  gethostname(own.host, sizeof own.host - 1);
  auto packet = run.packet(kHello, sizeof own);
  std::memcpy(packet->payload(), &own, sizeof own);
  for (int p = 0; p < mailbox.n_processes(); ++p) {
    if (p != mailbox.process()) mailbox.send(p, packet);
  }
  Backoff backoff(0, std::chrono::microseconds(1000));
  for (int p = 0; p < mailbox.n_processes(); ++p) {
    Hello hello = own;
    if (p != mailbox.process()) {
      std::shared_ptr<Packet> answer;
      while (!(answer = run.take(kHello, p))) {
        if (backoff.waited() > kHelloSeconds) {
          mailbox.keep_unfinalised();
          throw RuntimeFailure(fmt::format("process {} of {} did not start its ranks", p, mailbox.n_processes()));
        }
        mailbox.poll();
        backoff.pause();
      }
      std::memcpy(&hello, answer->payload(), sizeof hello);
    }
    Peer& peer = run.peer(p);
    peer.pid = hello.pid;
    peer.start_time = hello.start_time;
    peer.host = hello.host;
    peer.last_heard = std::chrono::steady_clock::now().time_since_epoch().count();
    peer.here = peer.host == own.host && probe_process(peer.pid, peer.start_time) != ProcessState::kGone;
    if (hello.size != options.size) {
      throw Error("process {} was started with {} ranks, process {} with {}; all need the same", p, hello.size,
                  mailbox.process(), options.size);
    }
  }
}

}  // namespace braid
