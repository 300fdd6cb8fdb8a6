#include "runtime/memory_budget.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "base/log.h"

namespace braid {

int64_t machine_memory_bytes() {
  int64_t total = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    int64_t limit = 0;
    if (std::ifstream(path) >> limit && limit > 0) total = std::min(total, limit);
  }
  return total;
}

int64_t kv_budget(const RankSetup& s, int n_local, const DeviceMemory& device) {
  if (!s.config.kv_cache_memory.empty()) return parse_bytes(s.config.kv_cache_memory);
  if (device.total > 0) {
    return static_cast<int64_t>(s.config.memory_utilization * static_cast<double>(device.total)) - (device.total - device.free);
  }
  // CPU ranks share the machine with everything else on it, hence half; pages are committed as they are first written.
  return static_cast<int64_t>(s.config.memory_utilization * 0.5 * static_cast<double>(machine_memory_bytes())) / n_local;
}

int64_t blocks_for(const RankSetup& s, int64_t block_bytes, int64_t kv_bytes) {
  const EngineConfig& c = s.config;
  if (c.num_kv_blocks > 0) return c.num_kv_blocks;
  const int64_t per_sequence = (s.max_model_len + s.virtual_block() - 1) / s.virtual_block();
  const int64_t useful = per_sequence * c.max_num_seqs;
  const int64_t blocks = std::min(useful, kv_bytes / block_bytes);
  if (blocks < 1) {
    throw Error("a rank's KV budget of {} bytes does not hold one block of {} bytes; raise --gpu-memory-utilization or lower --block-size",
                kv_bytes, block_bytes);
  }
  if (s.max_model_len_asked && blocks < per_sequence) {
    throw Error("--max-model-len {} needs {} KV blocks of {} bytes a rank, but only {} fit; lower it to {} or raise --gpu-memory-utilization",
                s.max_model_len, per_sequence, block_bytes, blocks, blocks * s.virtual_block());
  }
  return blocks;
}

}  // namespace braid
