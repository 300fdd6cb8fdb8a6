// One collective as a rank calls it: what all ranks of the group must agree on, and what a report says about it.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>

namespace braid {

enum class Collective : uint8_t {
  kAllReduce,
  kAllGather,
  kAllGatherV,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kBarrier
};
const char* name_of(Collective kind);  // "all_reduce", ...

struct Call {
  Collective kind = Collective::kBarrier;
  const char* name = "";  // a literal
  int64_t step = -1;      // -1: outside of any step
  int64_t sequence = 0;   // counts the collectives of a group, from 1
  int64_t bytes = 0;      // per rank; all_gatherv: of all ranks together
  uint64_t detail = 0;    // broadcast: the root; all_gatherv: a hash of the counts
};

// The same collective with the same sizes: ranks that meet with anything else have taken different paths.
inline bool agree(const Call& a, const Call& b) {
  return a.kind == b.kind && a.step == b.step && a.sequence == b.sequence && a.bytes == b.bytes &&
         a.detail == b.detail && (a.name == b.name || std::strcmp(a.name, b.name) == 0);
}

// "step 12, group tp, all_reduce 'attn_out' #37 (4096 bytes)"; "outside a step, ..." where step is -1.
std::string describe(const Call& call, const char* group);

}  // namespace braid
