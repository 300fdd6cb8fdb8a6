// A group of ranks with GPUs. What they call is agreed on and watched by the host's carrier, like any collective; the
// tensors move by NCCL, in the order of the rank's stream.
#pragma once
#include "comm/host_comm.h"
#include "comm/nccl_communicator.h"
#include "comm/world.h"

namespace braid {

class NcclComm final : public HostComm {
 public:
  // `host`: the same group for host tensors. `communicator`: empty for a group of one.
  NcclComm(HostWorld::Membership m, std::unique_ptr<Comm> host, std::shared_ptr<NcclCommunicator> communicator,
           cudaStream_t stream, std::shared_ptr<RunState> run)
      : HostComm(std::move(m.group), m.place), host_(std::move(host)), communicator_(std::move(communicator)), stream_(stream),
        run_(std::move(run)) {}

  Comm& host() override { return *host_; }
  bool merge_heads(Tensor y, Tensor values, Tensor lse, const char* name) override;

 protected:
  void carry(const Call& call, const Buffers& buffers) override;
  void copy_own(std::byte* to, const std::byte* from, int64_t bytes) override;

 private:
  void move(const Call& call, const Buffers& buffers);

  std::unique_ptr<Comm> host_;
  std::shared_ptr<NcclCommunicator> communicator_;
  const cudaStream_t stream_;
  const std::shared_ptr<RunState> run_;
};

}  // namespace braid
