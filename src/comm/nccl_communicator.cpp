#include "comm/nccl_communicator.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace braid {

void cuda_or_fail(RunState& run, cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  run.fail(fmt::format("{}: {}", what, cudaGetErrorString(status)));
  run.throw_failure();
}

NcclCommunicator::Lock::Lock(NcclCommunicator& c) : lock_(c.mutex_) {
  if (c.run_->failed() || !c.comm_) c.run_->throw_failure();
}

NcclCommunicator::NcclCommunicator(const ncclUniqueId& id, int place, int size, cudaStream_t stream, std::shared_ptr<RunState> run)
    : place_(place), size_(size), stream_(stream), run_(std::move(run)) {
  ncclComm_t comm = nullptr;
  check(ncclCommInitRank(&comm, size, id, place), "ncclCommInitRank");
  comm_ = comm;
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_) ncclCommDestroy(comm_);
  if (workspace_) cudaFree(workspace_);
}

void NcclCommunicator::abort() {
  if (peers_) peers_->abort();
  std::unique_lock lock(mutex_, std::defer_lock);
  (void)lock.try_lock_for(std::chrono::seconds(1));
  const ncclComm_t comm = comm_;
  comm_ = nullptr;
  if (comm) ncclCommAbort(comm);
}

void NcclCommunicator::check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  run_->fail(fmt::format("{} of member {} of {}: {}: {}", what, place_, size_, ncclGetErrorString(result), ncclGetLastError(comm_)));
  run_->throw_failure();
}

void NcclCommunicator::copy(Piece to, Piece from) {
  if (to.data == from.data || to.bytes == 0) return;
  cuda_or_fail(*run_, cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.bytes), cudaMemcpyDeviceToDevice, stream_), "cudaMemcpyAsync");
}

void NcclCommunicator::all_gather(std::byte* out, const std::byte* in, int64_t bytes) {
  if (bytes == 0) return;
  const Lock lock(*this);
  if (small(bytes)) return peers_->gather(out, in, bytes, stream_);
  check(ncclAllGather(in, out, static_cast<size_t>(bytes), ncclUint8, comm_, stream_), "ncclAllGather");
}

void NcclCommunicator::broadcast(std::byte* x, int64_t bytes, int root) {
  if (bytes == 0) return;
  const Lock lock(*this);
  check(ncclBroadcast(x, x, static_cast<size_t>(bytes), ncclUint8, root, comm_, stream_), "ncclBroadcast");
}

void NcclCommunicator::all_to_all(std::byte* out, const std::byte* in, int64_t bytes) {
  if (bytes == 0) return;
  if (small(bytes)) {
    const Lock lock(*this);
    return peers_->all_to_all(out, in, bytes, stream_);
  }
  exchange([&](int r) { return Piece{const_cast<std::byte*>(in) + r * bytes, bytes}; }, [&](int r) { return Piece{out + r * bytes, bytes}; });
}

void NcclCommunicator::merge_heads(Tensor y, Tensor values, Tensor lse) {
  if (y.n_elements() == 0) return;
  const Lock lock(*this);
  peers_->merge_heads(y, values, lse, stream_);
}

// Grows outside of recordings only: a recorded step has run before.
float* NcclCommunicator::workspace(int64_t n) {
  if (n > workspace_size_) {
    cuda_or_fail(*run_, cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    if (workspace_) cuda_or_fail(*run_, cudaFree(workspace_), "cudaFree");
    workspace_size_ = std::max(n, 2 * workspace_size_);
    cuda_or_fail(*run_, cudaMalloc(&workspace_, static_cast<size_t>(workspace_size_) * sizeof(float)), "cudaMalloc");
  }
  return workspace_;
}

void NcclCommunicator::all_reduce(float* x, int64_t n) {
  if (n == 0) return;
  if (small(n * static_cast<int64_t>(sizeof(float)))) {
    const Lock lock(*this);
    return peers_->all_reduce(x, n, stream_);
  }
  if (size_ == 2) {
    const Lock lock(*this);
    return check(ncclAllReduce(x, x, static_cast<size_t>(n), ncclFloat32, ncclSum, comm_, stream_), "ncclAllReduce");
  }
  // Each member adds up one segment, then all collect the segments.
  const int64_t each = ((n + size_ - 1) / size_ + 3) / 4 * 4;
  const auto segment = [&](int r) {
    const int64_t begin = std::min(n, each * r), end = std::min(n, each * (r + 1));
    return Piece{reinterpret_cast<std::byte*>(x + begin), (end - begin) * static_cast<int64_t>(sizeof(float))};
  };
  float* parts = workspace(each * size_);
  const Piece own = segment(place_);
  exchange(segment, [&](int r) { return Piece{reinterpret_cast<std::byte*>(parts + r * each), own.bytes}; });
  tree_sum_on_device(reinterpret_cast<float*>(own.data), parts, each, size_, own.bytes / static_cast<int64_t>(sizeof(float)), stream_);
  cuda_or_fail(*run_, cudaGetLastError(), "tree_sum_on_device");
  exchange([&](int) { return own; }, segment);
}

void NcclCommunicator::reduce_scatter(float* out, const float* in, int64_t n) {
  if (n == 0) return;
  if (small(n * static_cast<int64_t>(sizeof(float)))) {
    const Lock lock(*this);
    return peers_->reduce_scatter(out, in, n, stream_);
  }
  if (size_ == 2) {
    const Lock lock(*this);
    return check(ncclReduceScatter(in, out, static_cast<size_t>(n), ncclFloat32, ncclSum, comm_, stream_), "ncclReduceScatter");
  }
  float* parts = workspace(n * size_);
  const int64_t bytes = n * static_cast<int64_t>(sizeof(float));
  auto* from = reinterpret_cast<std::byte*>(const_cast<float*>(in));
  exchange([&](int r) { return Piece{from + r * bytes, bytes}; },
           [&](int r) { return Piece{reinterpret_cast<std::byte*>(parts + r * n), bytes}; });
  tree_sum_on_device(out, parts, n, size_, n, stream_);
  cuda_or_fail(*run_, cudaGetLastError(), "tree_sum_on_device");
}

}  // namespace braid
