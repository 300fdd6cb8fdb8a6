// How members reach each other's memory: directly in one process, by a handle between processes of a host.
#include "comm/nccl_peers.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "comm/nccl_communicator.h"

namespace braid {
namespace {

// What a member tells the others.
struct PeerInfo {
  char host[64] = {};
  int pid = 0, device = 0;
  void* buffer = nullptr;
  cudaIpcMemHandle_t handle{};
};

template <typename T>
std::vector<T> gather_from_all(Comm& host, T own, const char* name) {
  std::vector<T> all(static_cast<size_t>(host.size()));
  const auto bytes = static_cast<int64_t>(sizeof(T));
  host.all_gather(Tensor(all.data(), DType::kU8, {host.size(), bytes}), Tensor(&own, DType::kU8, {bytes}), name);
  return all;
}

// A refusal is an answer here, not an error for the next check to find.
bool worked(cudaError_t status) {
  if (status != cudaSuccess) cudaGetLastError();
  return status == cudaSuccess;
}

}  // namespace

PeerBuffers::PeerBuffers(int place, int size, RunState& run) : run_(run) {
  constexpr int64_t kLineBytes = 16, kData = 8;
  base_.place = place;
  base_.size = size;
  base_.lines_per_slot = kMostBytes / kData;
  const auto bytes = static_cast<size_t>(2 * size * base_.lines_per_slot * kLineBytes);
  cuda_or_fail(run_, cudaMalloc(&own_, bytes), "cudaMalloc");
  cuda_or_fail(run_, cudaMemset(own_, 0, bytes), "cudaMemset");
  cuda_or_fail(run_, cudaMalloc(&base_.state, 2 * sizeof(uint32_t)), "cudaMalloc");
  cuda_or_fail(run_, cudaMemset(base_.state, 0, 2 * sizeof(uint32_t)), "cudaMemset");
  cuda_or_fail(run_, cudaHostAlloc(reinterpret_cast<void**>(&aborted_), sizeof(int), cudaHostAllocPortable), "cudaHostAlloc");
  *aborted_ = 0;
  base_.aborted = aborted_;
  cuda_or_fail(run_, cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

PeerBuffers::~PeerBuffers() {
  for (void* p : opened_) cudaIpcCloseMemHandle(p);
  cudaFree(own_);
  cudaFree(base_.state);
  cudaFreeHost(aborted_);
}

std::unique_ptr<PeerBuffers> PeerBuffers::make(Comm& host, RunState& run) {
  if (host.size() > kMostPeers) return nullptr;
  std::unique_ptr<PeerBuffers> made(new PeerBuffers(host.rank(), host.size(), run));
  const bool own = made->open_peers(host);
  const std::vector<int> all = gather_from_all<int>(host, own, "peers_open");
  if (std::find(all.begin(), all.end(), 0) == all.end()) return made;
  if (host.rank() == 0) log_info("group {}: its GPUs cannot write into each other's memory; all messages go through NCCL", host.group());
  return nullptr;
}

bool PeerBuffers::open_peers(Comm& host) {
  PeerInfo own;
  gethostname(own.host, sizeof own.host - 1);
  own.pid = getpid();
  own.buffer = own_;
  cuda_or_fail(run_, cudaGetDevice(&own.device), "cudaGetDevice");
  const bool has_handle = worked(cudaIpcGetMemHandle(&own.handle, own_));
  const std::vector<PeerInfo> all = gather_from_all(host, own, "peers");
  for (int r = 0; r < host.size(); ++r) {
    const PeerInfo& peer = all[static_cast<size_t>(r)];
    void* buffer = peer.buffer;
    if (r != host.rank()) {
      if (std::strcmp(peer.host, own.host) != 0) return false;
      if (peer.pid == own.pid) {
        int can = 0;
        if (!worked(cudaDeviceCanAccessPeer(&can, own.device, peer.device)) || !can) return false;
        const cudaError_t status = cudaDeviceEnablePeerAccess(peer.device, 0);
        if (!worked(status) && status != cudaErrorPeerAccessAlreadyEnabled) return false;
      } else {
        if (!has_handle || !worked(cudaIpcOpenMemHandle(&buffer, peer.handle, cudaIpcMemLazyEnablePeerAccess))) return false;
        opened_.push_back(buffer);
      }
    }
    base_.buffers[r] = static_cast<uint4*>(buffer);
  }
  return true;
}

void PeerBuffers::launch(PeerTask task, const void* in, void* out, int64_t bytes, cudaStream_t stream) {
  BRAID_CHECK(reinterpret_cast<uintptr_t>(in) % 4 == 0 && reinterpret_cast<uintptr_t>(out) % 4 == 0, "a message at an odd address");
  task.in = static_cast<const uint32_t*>(in);
  task.out = static_cast<uint32_t*>(out);
  task.words = bytes / 4;
  cuda_or_fail(run_, launch_peer_task(task, stream), "launch_peer_task");
}

void PeerBuffers::all_reduce(float* x, int64_t n, cudaStream_t stream) {
  PeerTask task = base_;
  task.sum = true;
  launch(task, x, x, n * static_cast<int64_t>(sizeof(float)), stream);
}

void PeerBuffers::reduce_scatter(float* out, const float* in, int64_t n, cudaStream_t stream) {
  PeerTask task = base_;
  task.sum = true;
  task.in_step = n;
  launch(task, in, out, n * static_cast<int64_t>(sizeof(float)), stream);
}

void PeerBuffers::gather(std::byte* out, const std::byte* in, int64_t bytes, cudaStream_t stream) {
  PeerTask task = base_;
  task.out_step = bytes / 4;
  launch(task, in, out, bytes, stream);
}

void PeerBuffers::all_to_all(std::byte* out, const std::byte* in, int64_t bytes, cudaStream_t stream) {
  PeerTask task = base_;
  task.in_step = task.out_step = bytes / 4;
  launch(task, in, out, bytes, stream);
}

void PeerBuffers::merge_heads(Tensor y, Tensor values, Tensor lse, cudaStream_t stream) {
  MergeTask task;
  task.peers = base_;
  task.peers.in = static_cast<const uint32_t*>(values.data);
  task.peers.out = static_cast<uint32_t*>(y.data);
  task.lse = lse.as<float>();
  task.tokens = y.dim(0);
  task.heads = y.dim(1);
  task.pieces = y.dim(2) * size_of(y.dtype) / 8;
  task.bfloat16 = y.dtype == DType::kBF16;
  BRAID_CHECK((reinterpret_cast<uintptr_t>(values.data) | reinterpret_cast<uintptr_t>(y.data)) % 8 == 0, "values at an odd address");
  cuda_or_fail(run_, launch_merge_task(task, stream), "launch_merge_task");
}

}  // namespace braid
