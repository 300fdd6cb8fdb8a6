// Start, control channel and end of a world over processes.
#include "comm/mpi_world.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "comm/mpi_link.h"

namespace braid {
namespace {

std::string divisors(int n) {  // "1, 2, 4"
  std::string text;
  for (int i = 1; i <= n; ++i) {
    if (n % i == 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", i);
  }
  return text;
}

}  // namespace

std::unique_ptr<HostWorld> make_mpi_world(const WorldOptions& options) {
  Mailbox& mailbox = Mailbox::instance();
  const int n = mailbox.n_processes();
  if (options.size % n != 0) {
    const int below = options.size / n * n;
    throw Error("a world of {} ranks over {} processes: the size must be a multiple of the processes, such as {}; or start {} processes",
                options.size, n, below > 0 ? fmt::format("{} or {}", below, below + n) : fmt::format("{}", n), divisors(options.size));
  }
  auto run = std::make_shared<MpiRun>(mailbox, mailbox.next_world());
  exchange_hellos(*run, options);
  const auto on_host = std::count_if(run->peers.begin(), run->peers.end(), [](const Peer& p) { return p.here; });
  return std::make_unique<MpiWorld>(options, run, static_cast<int>(on_host) * (options.size / n));
}

MpiWorld::MpiWorld(const WorldOptions& options, std::shared_ptr<MpiRun> mpi, int ranks_on_host)
    : HostWorld(options, mpi->mailbox.n_processes(), mpi->mailbox.process(), ranks_on_host), mpi_(std::move(mpi)) {
  mpi_->state = run();
  mpi_->spin_ns = spin_ns();
  run()->explain = [state = std::weak_ptr(mpi_)](int rank) {
    const auto still = state.lock();
    return still ? still->explain(rank) : "";
  };
  start_watch();
}

MpiWorld::~MpiWorld() {
  const bool clean = say_goodbye();
  stop_watch();
  run()->on_fail = nullptr;
  if (!clean) mpi_->mailbox.keep_unfinalised();
}

int MpiWorld::first_on_host() const {
  int ranks = 0;
  for (int p = 0; p < process(); ++p) ranks += mpi_->peer(p).here ? n_local() : 0;
  return ranks;
}

std::shared_ptr<ProcessLink> MpiWorld::link(uint64_t id, const std::string& name, const std::vector<int>& ranks,
                                            const std::vector<HostGroup::Share>& shares) {
  const uint64_t channel = id | (uint64_t{1} << 63);  // apart from the carrier's own channels
  return std::make_shared<MpiLink>(mpi_, channel, name, ranks, shares);
}

std::vector<std::shared_ptr<Mailbox::Sending>> MpiWorld::send_to_others(const std::shared_ptr<Packet>& packet) {
  std::vector<std::shared_ptr<Mailbox::Sending>> sends;
  for (int p = 0; p < n_processes(); ++p) {
    if (p != process()) sends.push_back(mpi_->mailbox.send(p, packet));
  }
  return sends;
}

// All processes end together: nobody finalises MPI, or starts a next world, while another still needs this one. False
// where that did not come about.
bool MpiWorld::say_goodbye() {
  if (run()->failed()) return false;
  const auto sends = send_to_others(mpi_->packet(kGoodbye, 0));
  Backoff backoff(0, std::chrono::microseconds(1000));
  while (!run()->failed()) {
    mpi_->mailbox.poll();
    bool done = std::all_of(sends.begin(), sends.end(), [](const auto& s) { return s->done.load(); });
    for (int p = 0; p < n_processes(); ++p) {
      if (p == process()) continue;
      if (mpi_->take(kGoodbye, p)) mpi_->peer(p).left = true;
      done = done && mpi_->peer(p).left;
    }
    if (done) return true;
    if (backoff.waited() > run()->stall_seconds()) {
      log_warn("process {} ends while other processes still run", process());
      return false;
    }
    backoff.pause();
  }
  return false;
}

void MpiWorld::set_terminate_handler(std::function<void()> handler) {
  std::lock_guard lock(handler_mutex_);
  terminate_handler_ = std::move(handler);
}

// Returns when the message is on its way. A large one needs both sides to poll; it is given two milliseconds here, then
// goes on with the polling of whoever communicates next.
void MpiWorld::control_send(std::span<const std::byte> message) {
  BRAID_CHECK(process() == 0, "process {} sends control messages", process());
  if (run()->failed()) run()->throw_failure();
  auto packet = mpi_->packet(kControl, message.size());
  std::ranges::copy(message, packet->payload());
  const auto sends = send_to_others(packet);
  Backoff backoff(0, std::chrono::microseconds(100));
  while (backoff.waited() < 2e-3 && !std::ranges::all_of(sends, [](const auto& s) { return s->done.load(); })) {
    mpi_->mailbox.poll();
    backoff.pause();
  }
}

std::vector<std::byte> MpiWorld::control_receive() {
  BRAID_CHECK(process() != 0, "process 0 waits for its own control message");
  Backoff backoff(mpi_->spin_ns, std::chrono::microseconds(1000));
  while (true) {
    if (run()->failed()) run()->throw_failure();
    const bool left = mpi_->peer(0).left;  // whatever it sent before is then in its queue
    mpi_->mailbox.poll();
    if (const auto packet = mpi_->take(kControl, 0)) {
      return {packet->payload(), packet->payload() + packet->payload_size()};
    }
    if (left) {
      run()->fail(fmt::format("{} ended its run without telling process {}", mpi_->describe_process(0), process()));
    }
    backoff.pause();
  }
}

}  // namespace braid
