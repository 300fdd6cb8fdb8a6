// Stands in for the NCCL carrier in builds without NCCL.
#include "base/error.h"
#include "comm/world.h"

namespace braid {

std::unique_ptr<World> make_nccl_world(std::unique_ptr<HostWorld> host) {
  throw Error("{} ranks on GPUs need NCCL, and this braid was built without it; use one rank, --device cpu, or build where nccl.h is",
              host->size());
}

}  // namespace braid
