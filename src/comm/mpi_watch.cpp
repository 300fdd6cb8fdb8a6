// The watch thread of a process under mpirun. Every quarter of a second it tells the other processes where our ranks
// are, hears where theirs are, and looks whether they and mpirun are alive; a lost process is reported even when no
// rank waits for it. mpirun ends the survivors of a lost process with SIGTERM, and a second later with SIGKILL: the
// report must be out by then, so the signal is this thread's.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "comm/mpi_world.h"

namespace braid {
namespace {

using namespace std::chrono_literals;

constexpr auto kTick = 250ms;
constexpr double kTicksPerSecond = 4;

// Signal handlers reach nothing but static objects. The descriptor wakes the watch thread.
std::atomic<int> wake_fd{-1};
std::atomic<bool> terminate_asked{false};
struct sigaction previous_action;

void wake() {
  const uint64_t one = 1;
  if (const int fd = wake_fd.load(); fd >= 0) (void)!write(fd, &one, sizeof one);
}

void on_sigterm(int) {
  const int saved = errno;
  terminate_asked.store(true);
  wake();
  errno = saved;
}

struct WirePosition {
  int64_t step = 0, call_step = 0, sequence = 0, bytes = 0;
  uint64_t detail = 0;
  Collective kind = Collective::kBarrier;
  bool waiting = false;
  char name[64] = {}, group[64] = {};
};

WirePosition to_wire(const Position& p) {
  WirePosition w{p.step, p.call.step, p.call.sequence, p.call.bytes, p.call.detail, p.call.kind, p.waiting};
  std::strncpy(w.name, p.call.name, sizeof w.name - 1);
  std::strncpy(w.group, p.group, sizeof w.group - 1);
  return w;
}

Position from_wire(const WirePosition& w, RunState& run) {
  Position p;
  p.call = {w.kind, run.intern(w.name), w.call_step, w.sequence, w.bytes, w.detail};
  p.group = run.intern(w.group);
  p.waiting = w.waiting;
  p.step = w.step;
  return p;
}

}  // namespace

void MpiWorld::start_watch() {
  heartbeats_.resize(static_cast<size_t>(n_processes()));
  stopped_ticks_.assign(static_cast<size_t>(n_processes()), 0);
  silent_ticks_.assign(static_cast<size_t>(n_processes()), 0);
  parent_ = getppid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // whatever becomes of mpirun, nobody outlives it
  wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  run()->on_fail = [](const std::string&) { wake(); };
  watch_ = std::thread([this] { watch(); });
  struct sigaction action = {};
  action.sa_handler = on_sigterm;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &previous_action);
}

void MpiWorld::stop_watch() {
  stop_ = true;
  wake();
  watch_.join();
  sigaction(SIGTERM, &previous_action, nullptr);
  close(wake_fd.exchange(-1));
}

void MpiWorld::watch() {
  while (!stop_) {
    pollfd fd{wake_fd, POLLIN, 0};
    ::poll(&fd, 1, static_cast<int>(kTick.count()));
    uint64_t ignored = 0;
    (void)!read(wake_fd, &ignored, sizeof ignored);
    if (terminate_asked.exchange(false)) end_by_signal();
    tick();
  }
  if (run()->failed()) tick();  // tells the others, if it has not
}

void MpiWorld::tick() {
  take_news();
  if (run()->failed() && !told_failure_) {
    told_failure_ = true;
    const std::string text = run()->failure();
    auto packet = mpi_->packet(kFailure, text.size());
    std::memcpy(packet->payload(), text.data(), text.size());
    send_to_others(packet);
  }
  send_heartbeats();
  if (!run()->failed()) check_processes();
}

void MpiWorld::take_news() {
  mpi_->mailbox.poll();
  for (int p = 0; p < n_processes(); ++p) {
    if (p == process()) continue;
    ++silent_ticks_[static_cast<size_t>(p)];
    while (const auto packet = mpi_->take(kHeartbeat, p)) {
      silent_ticks_[static_cast<size_t>(p)] = 0;
      mpi_->peer(p).last_heard = std::chrono::steady_clock::now().time_since_epoch().count();
      for (int i = 0; i < n_local(); ++i) {
        WirePosition w;
        std::memcpy(&w, packet->payload() + static_cast<size_t>(i) * sizeof w, sizeof w);
        run()->heard(p * n_local() + i, from_wire(w, *run()));
      }
    }
    if (mpi_->take(kGoodbye, p)) mpi_->peer(p).left = true;
    if (const auto packet = mpi_->take(kFailure, p)) {
      const std::string text(reinterpret_cast<const char*>(packet->payload()), packet->payload_size());
      if (run()->fail(fmt::format("process {} reported: {}", p, text))) told_failure_ = true;  // it told all
    }
  }
}

void MpiWorld::send_heartbeats() {
  std::shared_ptr<Packet> packet = mpi_->packet(kHeartbeat, static_cast<size_t>(n_local()) * sizeof(WirePosition));
  for (int i = 0; i < n_local(); ++i) {
    const WirePosition w = to_wire(run()->position(first_local() + i));
    std::memcpy(packet->payload() + static_cast<size_t>(i) * sizeof w, &w, sizeof w);
  }
  for (int p = 0; p < n_processes(); ++p) {
    auto& last = heartbeats_[static_cast<size_t>(p)];
    if (p == process() || mpi_->peer(p).left || (last && !last->done)) continue;  // not piled up before a stopped one
    last = mpi_->mailbox.send(p, packet);
  }
}

void MpiWorld::check_processes() {
  if (getppid() != parent_) {
    run()->fail(fmt::format("mpirun (pid {}) is gone", parent_));
    return;
  }
  const double limit = run()->stall_seconds() * kTicksPerSecond;
  for (int p = 0; p < n_processes() && !run()->failed(); ++p) {
    if (p == process() || mpi_->peer(p).left) continue;
    const ProcessState state = mpi_->probe(p);
    int& stopped = stopped_ticks_[static_cast<size_t>(p)];
    stopped = state == ProcessState::kStopped ? stopped + 1 : 0;
    if (state == ProcessState::kGone) report_lost(p, "gone");
    if (stopped > limit) report_lost(p, "stopped");
    if (!mpi_->peer(p).here && silent_ticks_[static_cast<size_t>(p)] > limit) report_lost(p, "silent");
  }
}

// A rank that will wait for the lost one is about to: the report is worth a moment's patience.
void MpiWorld::report_lost(int lost, const char* what) {
  std::vector<int> waiting, ranks;
  for (int i = 0; i < n_local(); ++i) ranks.push_back(lost * n_local() + i);
  for (int turn = 0; turn < 30 && waiting.empty(); ++turn) {
    if (turn > 0) std::this_thread::sleep_for(10ms);
    for (int i = 0; i < n_local(); ++i) {
      if (run()->position(first_local() + i).waiting) waiting.push_back(first_local() + i);
    }
  }
  take_news();  // a goodbye that was under way, or another process's report
  if (mpi_->peer(lost).left || run()->failed()) return;
  std::string text = fmt::format("{}: lost, {} is {}", rank_list(ranks), mpi_->describe_process(lost), what);
  for (int rank : waiting) text += fmt::format("; rank {} is {}", rank, describe(run()->position(rank)));
  run()->fail(text + ". All ranks, the lost ones as last heard of: " + run()->all_positions());
}

// mpirun ends everybody with SIGTERM, be it because one process was lost, or because it was itself told to end.
void MpiWorld::end_by_signal() {
  const auto until = std::chrono::steady_clock::now() + 200ms;
  while (!run()->failed() && std::chrono::steady_clock::now() < until) {
    tick();
    std::this_thread::sleep_for(10ms);
  }
  if (run()->failed()) {
    tick();
    std::this_thread::sleep_for(500ms);  // the ranks have their failure; the program may end in its own way
    _exit(1);
  }
  std::function<void()> handler;
  {
    std::lock_guard lock(handler_mutex_);
    handler = terminate_handler_;
  }
  if (handler) return handler();
  signal(SIGTERM, SIG_DFL);
  kill(getpid(), SIGTERM);
}

}  // namespace braid
