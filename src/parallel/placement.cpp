#include "parallel/placement.h"

namespace braid {

Placement place(Role role, const Layout& l, int tp_rank, int64_t kv_heads) {
  switch (role) {
    case Role::kReplicated: return {};
    case Role::kEmbed: return {Split::kRows, tp_rank, l.tp, After::kAllReduce};
    case Role::kHeads:
    case Role::kGateUp: return {Split::kRows, tp_rank, l.tp, After::kNothing};
    case Role::kGroupHeads: return {Split::kRows, tp_rank / l.dcp, l.tp / l.dcp, After::kNothing};
    case Role::kKvHeads: {
      // With more ranks than heads, tp / kv_heads neighbouring ranks hold the same head.
      const int parts = kv_heads < l.tp ? static_cast<int>(kv_heads) : l.tp;
      return {Split::kRows, tp_rank / (l.tp / parts), parts, After::kNothing};
    }
    case Role::kAttnOut:
    case Role::kDown: return {Split::kColumns, tp_rank, l.tp, After::kAllReduce};
    case Role::kLmHead: return {Split::kRows, tp_rank, l.tp, After::kAllGather};
  }
  return {};
}

Parallel::Parallel(const Layout& layout, int rank, World& world, bool reproducible, const ContextOptions& context)
    : layout_(layout), rank_(rank), where_(place_of(layout, rank)), reproducible_(reproducible), context_(context),
      tp_(world.group(rank, "tp", tp_group(layout, rank))), dcp_(world.group(rank, "dcp", dcp_group(layout, rank))) {}

}  // namespace braid
