// Isend, Improbe, Imrecv and Test; no other MPI traffic exists in the process, so MPI_COMM_WORLD needs no copy.
#include "comm/mpi_mailbox.h"

#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"

namespace braid {
namespace {

constexpr int kTag = 1;

void check_mpi(int code, const char* what) {
  if (code != MPI_SUCCESS) throw RuntimeFailure(fmt::format("{} failed with MPI error {}", what, code));
}

bool test(MPI_Request& request) {
  int done = 0;
  check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done != 0;
}

}  // namespace

Header& header_of(Packet& packet) { return *reinterpret_cast<Header*>(packet.data()); }

Mailbox& Mailbox::instance() {
  static Mailbox mailbox;
  return mailbox;
}

// Packets of megabytes come and go with every collective: returned to the system each time, their page faults take as
// long as the messages.
Mailbox::Mailbox() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED) throw Error("this MPI library allows no calls from several threads");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_size(MPI_COMM_WORLD, &n_processes_);
  MPI_Comm_rank(MPI_COMM_WORLD, &process_);
}

Mailbox::~Mailbox() {
  if (finalise_) MPI_Finalize();
}

int Mailbox::next_world() {
  std::lock_guard lock(queues_mutex_);
  ++worlds_;
  std::erase_if(queues_, [&](const auto& entry) { return std::get<0>(entry.first) < worlds_; });
  return worlds_;
}

void Mailbox::keep_unfinalised() { finalise_ = false; }

std::shared_ptr<Mailbox::Sending> Mailbox::send(int process, std::shared_ptr<Packet> packet) {
  if (packet->size() > static_cast<size_t>(INT32_MAX)) {
    throw RuntimeFailure(
        fmt::format("a message of {} bytes to process {}; MPI takes 2147483647", packet->size(), process));
  }
  auto sending = std::make_shared<Sending>();
  sending->packet = std::move(packet);
  std::lock_guard lock(mpi_);
  check_mpi(MPI_Isend(sending->packet->data(), static_cast<int>(sending->packet->size()), MPI_BYTE, process, kTag,
                      MPI_COMM_WORLD, &sending->request),
            "MPI_Isend");
  sending->done = test(sending->request);
  if (!sending->done) sending_.push_back(sending);
  return sending;
}

void Mailbox::poll() {
  std::unique_lock lock(mpi_, std::try_to_lock);
  if (!lock) return;
  finish_sends();
  start_receives();
  finish_receives();
  n_sending_.store(sending_.size(), std::memory_order_relaxed);
  n_receiving_.store(receiving_.size(), std::memory_order_relaxed);
}

void Mailbox::finish_sends() {
  for (auto it = sending_.begin(); it != sending_.end();) {
    if (test((*it)->request)) {
      (*it)->done = true;
      it = sending_.erase(it);
    } else {
      ++it;
    }
  }
}

void Mailbox::start_receives() {
  while (true) {
    int found = 0;
    MPI_Message message;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, kTag, MPI_COMM_WORLD, &found, &message, &status), "MPI_Improbe");
    if (!found) return;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    BRAID_CHECK(bytes >= static_cast<int>(Packet::kHeaderBytes), "a message of {} bytes", bytes);
    Receiving r{std::make_shared<Packet>(static_cast<size_t>(bytes) - Packet::kHeaderBytes), {}, status.MPI_SOURCE};
    check_mpi(MPI_Imrecv(r.packet->data(), bytes, MPI_BYTE, &message, &r.request), "MPI_Imrecv");
    receiving_.push_back(std::move(r));
  }
}

// In the order in which a sender sent: a small message must not overtake a large one.
void Mailbox::finish_receives() {
  std::set<int> unfinished;
  for (auto it = receiving_.begin(); it != receiving_.end();) {
    if (unfinished.contains(it->source) || !test(it->request)) {
      unfinished.insert(it->source);
      ++it;
      continue;
    }
    const Header& header = header_of(*it->packet);
    std::lock_guard lock(queues_mutex_);
    if (header.world >= worlds_) queues_[{header.world, header.channel, it->source}].push_back(std::move(it->packet));
    it = receiving_.erase(it);
  }
}

std::shared_ptr<Packet> Mailbox::take(int world, uint64_t channel, int process) {
  std::lock_guard lock(queues_mutex_);
  const auto it = queues_.find({world, channel, process});
  if (it == queues_.end() || it->second.empty()) return nullptr;
  std::shared_ptr<Packet> packet = std::move(it->second.front());
  it->second.pop_front();
  return packet;
}

}  // namespace braid
