// Groups of a world, the world of one process, and the choice between carriers.
#include "comm/world.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "comm/host_comm.h"

namespace braid {
namespace {

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Spinning saves a sleep of some tens of microseconds where every rank has a core of its own; not for long, since the
// system may still have put two ranks on one core. Where ranks share cores it only delays the rank that is waited for.
// Ranks on GPUs leave their cores idle, and a device waits with them.
int64_t spin_time_ns(const WorldOptions& options, int ranks_on_host) {
  if (ranks_on_host > available_cores()) return 1'000;
  return options.gpus ? 1'000'000 : 10'000;
}

uint64_t hash_of(const std::string& name, std::span<const int> ranks, int instance) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a; the same in every process
  const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
  for (char c : name) mix(static_cast<unsigned char>(c));
  for (int r : ranks) mix(static_cast<uint64_t>(r) + 256);
  mix(static_cast<uint64_t>(instance) + (1u << 20));
  return hash;
}

class ThreadWorld final : public HostWorld {
 public:
  explicit ThreadWorld(const WorldOptions& options) : HostWorld(options, 1, 0, options.size) {}
  void control_send(std::span<const std::byte>) override {}
  std::vector<std::byte> control_receive() override { return {}; }
  void set_terminate_handler(std::function<void()>) override {}

 protected:
  std::shared_ptr<ProcessLink> link(uint64_t, const std::string&, const std::vector<int>&,
                                    const std::vector<HostGroup::Share>&) override {
    return nullptr;
  }
};

// mpirun tells its children how many they are. Nothing but these two variables is read from the environment here.
int processes_of_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (const char* text = std::getenv(name)) return std::max(1, std::atoi(text));
  }
  return 1;
}

}  // namespace

HostWorld::HostWorld(const WorldOptions& options, int n_processes, int process, int ranks_on_host)
    : run_(std::make_shared<RunState>(options.size, process * (options.size / n_processes), options.size / n_processes,
                                      options.stall_seconds)),
      n_processes_(n_processes),
      process_(process),
      spin_ns_(spin_time_ns(options, ranks_on_host)) {}

void HostWorld::set_step(int rank, int64_t step) {
  BRAID_CHECK(first_local() <= rank && rank < first_local() + n_local(), "rank {} is not of this process", rank);
  run_->set_step(rank, step);
}

std::unique_ptr<Comm> HostWorld::group(int rank, const std::string& name, std::span<const int> ranks) {
  Membership m = join(rank, name, ranks);
  return std::make_unique<HostComm>(std::move(m.group), m.place);
}

HostWorld::Membership HostWorld::join(int rank, const std::string& name, std::span<const int> ranks) {
  const std::vector<int> members(ranks.begin(), ranks.end());
  const auto place = std::find(members.begin(), members.end(), rank);
  BRAID_CHECK(place != members.end() &&
                  std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end(),
              "group {}: ranks must ascend and contain rank {}", name, rank);
  BRAID_CHECK(members.front() >= 0 && members.back() < size(), "group {}: ranks beyond the world of {}", name, size());

  std::lock_guard lock(mutex_);
  const int instance = calls_[{rank, name, members}]++;
  std::shared_ptr<HostGroup>& group = groups_[{name, members, instance}];
  if (!group) {
    std::vector<HostGroup::Share> shares;
    int own = -1;
    for (int i = 0; i < static_cast<int>(members.size()); ++i) {
      const int holder = members[static_cast<size_t>(i)] / n_local();
      if (shares.empty() || shares.back().process != holder) shares.push_back({holder, i, i});
      shares.back().end = i + 1;
      if (holder == process_) own = static_cast<int>(shares.size()) - 1;
    }
    auto to_others = shares.size() > 1 ? link(hash_of(name, ranks, instance), name, members, shares) : nullptr;
    group = std::make_shared<HostGroup>(run_, name, members, std::move(shares), own, spin_ns_, std::move(to_others));
  }
  return {group, static_cast<int>(place - members.begin())};
}

std::unique_ptr<HostWorld> make_thread_world(const WorldOptions& options) { return std::make_unique<ThreadWorld>(options); }

std::unique_ptr<World> make_world(const WorldOptions& options) {
  if (options.size < 1) throw Error("a world of {} ranks: at least 1 is needed", options.size);
  auto host = processes_of_launcher() > 1 ? make_mpi_world(options) : make_thread_world(options);
  if (!options.gpus || options.size == 1) return host;  // a rank alone meets nobody and moves nothing
  return make_nccl_world(std::move(host));
}

}  // namespace braid
