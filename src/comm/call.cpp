// Words for a collective.
#include "comm/call.h"

#include <fmt/core.h>

namespace braid {

const char* name_of(Collective kind) {
  switch (kind) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kAllGatherV:
      return "all_gatherv";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kBarrier:
      return "barrier";
  }
  return "?";
}

std::string describe(const Call& call, const char* group) {
  const std::string step = call.step < 0 ? "outside a step" : fmt::format("step {}", call.step);
  const std::string root = call.kind == Collective::kBroadcast ? fmt::format(" from its rank {}", call.detail) : "";
  return fmt::format("{}, group {}, {} '{}' #{} ({} bytes{})", step, group, name_of(call.kind), call.name,
                     call.sequence, call.bytes, root);
}

}  // namespace braid
