#include "comm/nccl_world.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "comm/nccl_comm.h"

namespace braid {

NcclWorld::NcclWorld(std::unique_ptr<HostWorld> host) : host_(std::move(host)), locals_(static_cast<size_t>(n_local())) {
  // NCCL would map the tensors of recorded collectives into its peers. Ours lie in address ranges that grow piece by
  // piece, which cannot be mapped as one.
  setenv("NCCL_GRAPH_REGISTER", "0", 0);
  watch_ = std::thread([this] { watch(); });
}

NcclWorld::~NcclWorld() {
  stop_ = true;
  watch_.join();
  for (LocalRank& l : locals_) {
    if (l.step_done) cudaEventDestroy(l.step_done);
  }
}

void NcclWorld::use_stream(int rank, void* stream) {
  cudaEvent_t event = nullptr;
  cuda_or_fail(*host_->run(), cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  std::lock_guard lock(mutex_);
  LocalRank& l = local(rank);
  if (l.step_done) cudaEventDestroy(l.step_done);
  l.running = false;
  l.stream = static_cast<cudaStream_t>(stream);
  l.step_done = event;
}

std::unique_ptr<Comm> NcclWorld::group(int rank, const std::string& name, std::span<const int> ranks) {
  const cudaStream_t stream = local(rank).stream;
  BRAID_CHECK(local(rank).step_done, "rank {} joins group {} before it has a stream", rank, name);
  HostWorld::Membership membership = host_->join(rank, name, ranks);
  std::unique_ptr<Comm> host = host_->group(rank, name, ranks);
  std::shared_ptr<NcclCommunicator> nccl;
  if (ranks.size() > 1) nccl = communicator(rank, membership.place, ranks, *host);
  return std::make_unique<NcclComm>(std::move(membership), std::move(host), std::move(nccl), stream, host_->run());
}

std::shared_ptr<NcclCommunicator> NcclWorld::communicator(int rank, int place, std::span<const int> ranks, Comm& host) {
  const std::vector<int> members(ranks.begin(), ranks.end());
  {
    std::lock_guard lock(mutex_);
    for (const auto& [who, held] : local(rank).communicators) {
      if (auto made = held.lock(); made && who == members) return made;
    }
  }
  ncclUniqueId id{};
  if (place == 0 && ncclGetUniqueId(&id) != ncclSuccess) {
    fail(fmt::format("ncclGetUniqueId: {}", ncclGetLastError(nullptr)));
  }
  host.broadcast(Tensor(&id, DType::kU8, {static_cast<int64_t>(sizeof id)}), 0, "nccl_id");
  auto made = std::make_shared<NcclCommunicator>(id, place, static_cast<int>(members.size()), local(rank).stream, host_->run());
  made->use_peers(PeerBuffers::make(host, *host_->run()));
  std::lock_guard lock(mutex_);
  local(rank).communicators.emplace_back(members, made);
  return made;
}

void NcclWorld::launched(int rank) {
  cuda_or_fail(*host_->run(), cudaEventRecord(local(rank).step_done, local(rank).stream), "cudaEventRecord");
  std::lock_guard lock(mutex_);
  local(rank).running = true;
  local(rank).since = Clock::now();
}

void NcclWorld::watch() {
  while (!stop_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (host_->run()->failed()) return abort_all();
    check_streams();
  }
}

void NcclWorld::check_streams() {
  const double limit = host_->run()->stall_seconds();
  for (int rank = first_local(); rank < first_local() + n_local(); ++rank) {
    double waited = 0;
    {
      std::lock_guard lock(mutex_);
      LocalRank& l = local(rank);
      if (l.running && cudaEventQuery(l.step_done) != cudaErrorNotReady) l.running = false;
      if (l.running) waited = std::chrono::duration<double>(Clock::now() - l.since).count();
    }
    if (waited < limit) continue;
    fail(fmt::format("step {}: the device of rank {} has been busy for {:.1f} s with what it was asked: a peer's device does not answer, or the "
                     "step is too long for --stall-seconds {}. All ranks: {}",
                     host_->run()->step(rank), rank, waited, limit, host_->run()->all_positions()));
  }
}

void NcclWorld::abort_all() {
  std::vector<std::shared_ptr<NcclCommunicator>> all;
  {
    std::lock_guard lock(mutex_);
    for (LocalRank& l : locals_) {
      for (const auto& [who, held] : l.communicators) {
        if (auto made = held.lock()) all.push_back(std::move(made));
      }
    }
  }
  // At once: an abort waits for its own device's kernels, which may wait for another's.
  std::vector<std::thread> threads;
  for (const auto& c : all) threads.emplace_back([&c] { c->abort(); });
  for (std::thread& t : threads) t.join();
}

std::unique_ptr<World> make_nccl_world(std::unique_ptr<HostWorld> host) { return std::make_unique<NcclWorld>(std::move(host)); }

}  // namespace braid
