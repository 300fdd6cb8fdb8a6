// Whether another process of this host runs, is stopped, or is gone, as /proc tells.
#pragma once
#include <cstdint>

namespace braid {

enum class ProcessState { kRunning, kStopped, kGone };

uint64_t start_time_of(
    int pid);  // in kernel ticks since boot; tells a process from a later one with its number; 0: none
ProcessState probe_process(int pid, uint64_t start_time);

}  // namespace braid
