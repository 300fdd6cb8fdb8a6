// A group of ranks on CPUs: the state that its members in this process share. Every collective is one meeting. The
// members post what they call and where their data lies; the last to arrive checks that all called the same, does the
// whole work where it is small, and releases the others. Large work is split instead: released members each do their
// own part and meet once more, so that nobody reuses a buffer that another still reads. Where the group spans
// processes, the last to arrive also exchanges messages with the other processes through a ProcessLink.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/call.h"
#include "comm/meeting.h"
#include "comm/process_link.h"
#include "comm/run_state.h"

namespace braid {

// Where a rank's data lies. `bytes`: all_reduce, broadcast: of x; all_gather: of in; reduce_scatter, all_to_all: of one
// rank's share of in.
struct Buffers {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t bytes = 0;
  std::span<const int64_t> counts;  // all_gatherv: rows per rank
  int64_t row_bytes = 0;            // all_gatherv
  bool elsewhere = false;           // on devices: members agree on the call here, and move their data themselves
};

class HostGroup {
 public:
  // The group's ranks in one process: places [begin, end) of the group.
  struct Share {
    int process = 0, begin = 0, end = 0;
  };

  HostGroup(std::shared_ptr<RunState> run, std::string name, std::vector<int> ranks, std::vector<Share> shares,
            int own_share, int64_t spin_ns, std::shared_ptr<ProcessLink> link);

  const std::string& name() const { return name_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int rank_at(int place) const { return ranks_[static_cast<size_t>(place)]; }
  const std::vector<Share>& shares() const { return shares_; }
  int own_share() const { return own_share_; }
  const Share& own() const { return shares_[static_cast<size_t>(own_share_)]; }
  int64_t step_of(int place) const { return run_->step(rank_at(place)); }

  // A collective of the member at `place`, which must be in this process, on its own thread.
  void run(int place, const Call& call, const Buffers& buffers);

 private:
  struct alignas(64) Member {
    Call call;
    Buffers buffers;
    uint64_t meetings = 0;
    std::atomic<int64_t> posted{0};  // sequence of `call`
  };
  Member& member(int place) { return members_[static_cast<size_t>(place - own().begin)]; }
  bool split(const Call& call, const Buffers& buffers) const;
  void serve(Member& me, bool split);
  bool members_agree();
  void await(Member& me, int place, uint64_t number);
  bool tick(Member& me, uint64_t number, double waited);
  void meet_again(Member& me);
  void share_of_work(Collective kind, int place);
  void reduce_segment(int64_t begin, int64_t end);

  // Between processes: host_group_across.cpp. All members' buffers are at the caller's disposal.
  void serve_across(const Call& call);
  void reduce_across(const Call& call);
  std::shared_ptr<Packet> own_sums(int64_t begin, int64_t end);
  void add_segment(const std::vector<std::shared_ptr<Packet>>& in, int64_t begin, int64_t end, float* copy);
  void reduce_scatter_across(const Call& call);
  void gather_across(const Call& call);
  void all_to_all_across(const Call& call);
  void broadcast_across(const Call& call);
  std::vector<std::shared_ptr<Packet>> exchange(const Call& call, int round, std::vector<std::shared_ptr<Packet>> out);

  const std::shared_ptr<RunState> run_;
  const std::string name_;
  const std::vector<int> ranks_;
  const std::vector<Share> shares_;
  const int own_share_;
  const std::shared_ptr<ProcessLink> link_;  // empty where the group lies in one process
  std::vector<Member> members_;              // of this process, by place - own().begin
  Meeting meeting_;
  bool verdict_ = false;  // of the meeting: written before its release, read after
};

}  // namespace braid
