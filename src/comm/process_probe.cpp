// Reads /proc/PID/stat: "pid (name) state ppid ...", start time in field 22. The name may contain anything.
#include "comm/process_probe.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace braid {
namespace {

struct Stat {
  char state = 0;  // 0: no such process
  uint64_t start_time = 0;
};

Stat read_stat(int pid) {
  const int file = open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  char text[1024];
  const ssize_t n = read(file, text, sizeof text - 1);
  close(file);
  if (n <= 0) return {};
  const std::string line(text, static_cast<size_t>(n));
  size_t at = line.rfind(')');
  if (at == std::string::npos || at + 2 >= line.size()) return {};
  Stat stat;
  stat.state = line[at + 2];
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = line.find(' ', at + 1);
  if (at != std::string::npos) stat.start_time = std::stoull(line.substr(at + 1));
  return stat;
}

}  // namespace

uint64_t start_time_of(int pid) { return read_stat(pid).start_time; }

ProcessState probe_process(int pid, uint64_t start_time) {
  const Stat stat = read_stat(pid);
  if (stat.state == 0 || stat.state == 'Z' || stat.state == 'X' || stat.start_time != start_time) {
    return ProcessState::kGone;
  }
  return stat.state == 'T' ? ProcessState::kStopped : ProcessState::kRunning;  // 't' is a debugger's stop
}

}  // namespace braid
