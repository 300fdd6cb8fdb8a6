// How many KV blocks fit.
#pragma once
#include <cstdint>

#include "runtime/setup.h"

namespace braid {

// Blocks per rank: what was asked, or what this process's share of memory holds, never more than max_num_seqs sequences of
// full length can use. Throws Error when not even one sequence of one block fits.
int64_t blocks_for(const RankSetup&, int64_t block_bytes, int64_t kv_bytes);

// Bytes of one rank's cache. `device`: a GPU's memory when all but the cache is allocated; zeros: ranks share the host's.
int64_t kv_budget(const RankSetup&, int n_local, const DeviceMemory& device = {});

int64_t machine_memory_bytes();  // physical memory, or the container's limit where that is lower

}  // namespace braid
