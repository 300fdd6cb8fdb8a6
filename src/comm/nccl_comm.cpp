#include "comm/nccl_comm.h"

#include <numeric>

#include "base/error.h"

namespace braid {

void NcclComm::carry(const Call& call, const Buffers& buffers) {
  Buffers on_devices = buffers;
  on_devices.elsewhere = true;
  HostComm::carry(call, on_devices);
  move(call, buffers);
}

void NcclComm::copy_own(std::byte* to, const std::byte* from, int64_t bytes) {
  cuda_or_fail(*run_, cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_), "cudaMemcpyAsync");
}

void NcclComm::move(const Call& call, const Buffers& b) {
  using Piece = NcclCommunicator::Piece;
  NcclCommunicator& nccl = *communicator_;
  std::byte* in = const_cast<std::byte*>(b.in);
  const int64_t n = b.bytes / static_cast<int64_t>(sizeof(float));
  switch (call.kind) {
    case Collective::kAllReduce:
      return nccl.all_reduce(reinterpret_cast<float*>(b.out), n);
    case Collective::kReduceScatter:
      return nccl.reduce_scatter(reinterpret_cast<float*>(b.out), reinterpret_cast<const float*>(b.in), n);
    case Collective::kAllGather:
      return nccl.all_gather(b.out, b.in, b.bytes);
    case Collective::kAllGatherV: {
      const bool even = std::adjacent_find(b.counts.begin(), b.counts.end(), std::not_equal_to<>()) == b.counts.end();
      if (even) return nccl.all_gather(b.out, b.in, b.bytes);
      const auto part = [&](int r) {
        const int64_t before = std::accumulate(b.counts.begin(), b.counts.begin() + r, int64_t{0});
        return Piece{b.out + before * b.row_bytes, b.counts[static_cast<size_t>(r)] * b.row_bytes};
      };
      return nccl.exchange([&](int) { return Piece{in, b.bytes}; }, part);
    }
    case Collective::kAllToAll:
      return nccl.all_to_all(b.out, b.in, b.bytes);
    case Collective::kBroadcast:
      return nccl.broadcast(b.out, b.bytes, static_cast<int>(call.detail));
    case Collective::kBarrier:
      return;  // the ranks met; their streams go on
  }
}

bool NcclComm::merge_heads(Tensor y, Tensor values, Tensor lse, const char* name) {
  const bool known = y.dtype == values.dtype && (y.dtype == DType::kBF16 || y.dtype == DType::kF32);
  if (!communicator_ || !known || !y.dense() || !values.dense() || !lse.dense() || !communicator_->merge_heads_fits(y)) return false;
  BRAID_CHECK(values.dim(1) == size() * y.dim(1) && lse.dim(1) == values.dim(1), "{}: {} heads of {}", name, y.dim(1), values.dim(1));
  agree_on(Collective::kAllToAll, name, values.n_bytes() + lse.n_bytes());
  communicator_->merge_heads(y, values, lse);
  return true;
}

}  // namespace braid
