// What the ranks of one process know about the run: where every rank is, and whether the run has failed. Waiting ranks
// look here for failure; whoever notices one composes the report from the positions. One object per World, shared with
// its groups, so that a Comm may outlive its World.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/call.h"

namespace braid {

struct Position {
  Call call;  // the collective that the rank is in or was last in; sequence 0: none yet
  const char* group = "";
  bool waiting = false;  // in the collective; else computing since it
  int64_t step = -1;     // the rank's step now
};
std::string describe(const Position& position);

class RunState {
 public:
  RunState(int size, int first_local, int n_local, double stall_seconds);

  int size() const { return static_cast<int>(positions_.size()); }
  int first_local() const { return first_local_; }
  int n_local() const { return n_local_; }
  double stall_seconds() const { return stall_seconds_; }

  // Local ranks: by the rank's own thread (set_step: by any).
  void set_step(int rank, int64_t step) { at(rank).step.store(step, std::memory_order_relaxed); }
  int64_t step(int rank) const { return at(rank).step.load(std::memory_order_relaxed); }
  void enter(int rank, const char* group /*interned*/, const Call& call);
  void leave(int rank) { at(rank).waiting.store(false, std::memory_order_relaxed); }
  // Remote ranks: as their process told.
  void heard(int rank, const Position& position /*strings interned*/);
  Position position(int rank) const;

  // A copy of the text that lives as long as this object. Any thread.
  const char* intern(std::string_view text);

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  std::string failure() const;
  // The first reason wins: it is logged, kept, and given to on_fail. False if the run had failed before.
  bool fail(const std::string& reason);
  [[noreturn]] void throw_failure() const;

  // Set before the ranks start. on_fail: tells other processes. explain: what a carrier knows about a rank's process
  // ("its process 2 (pid 71 on host a) is stopped"), empty if nothing.
  std::function<void(const std::string&)> on_fail;
  std::function<std::string(int rank)> explain;

  // The report of a wait that lasted too long: `missing` did not arrive at `call`, `waiting` did.
  std::string stall_report(const Call& call, const char* group, std::span<const int> missing,
                           std::span<const int> waiting, double seconds) const;
  std::string all_positions() const;  // "rank 0: ...; rank 1: ...", at most 16 ranks

 private:
  // Written by one thread, read by whoever reports: each field is atomic, the row is not. A rank worth reporting
  // stands still.
  struct alignas(64) Row {
    std::atomic<int64_t> step{-1}, call_step{-1}, sequence{0}, bytes{0};
    std::atomic<uint64_t> detail{0};
    std::atomic<const char*> name{""}, group{""};
    std::atomic<Collective> kind{Collective::kBarrier};
    std::atomic<bool> waiting{false};
  };
  Row& at(int rank) { return positions_[static_cast<size_t>(rank)]; }
  const Row& at(int rank) const { return positions_[static_cast<size_t>(rank)]; }

  std::vector<Row> positions_;
  const int first_local_, n_local_;
  const double stall_seconds_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // failure_, names_
  std::string failure_;
  std::deque<std::string> names_;
};

// Ranks by what they called: the largest set of equal calls first, the ranks that differ after it.
std::string mismatch_report(const char* group, std::span<const Call> calls, std::span<const int> ranks);
std::string rank_list(std::span<const int> ranks);  // "rank 3", "ranks 0, 1 and 5"

}  // namespace braid
