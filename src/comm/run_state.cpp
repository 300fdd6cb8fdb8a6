// Positions, the one failure of a run, and the words for it.
#include "comm/run_state.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace braid {

std::string rank_list(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  }
  return text;
}

std::string mismatch_report(const char* group, std::span<const Call> calls, std::span<const int> ranks) {
  struct Set {
    const Call* call;
    std::vector<int> ranks;
  };
  std::vector<Set> sets;
  for (size_t i = 0; i < calls.size(); ++i) {
    auto it = std::find_if(sets.begin(), sets.end(), [&](const Set& s) { return agree(*s.call, calls[i]); });
    if (it == sets.end()) it = sets.insert(sets.end(), Set{&calls[i], {}});
    it->ranks.push_back(ranks[i]);
  }
  std::stable_sort(sets.begin(), sets.end(),
                   [](const Set& a, const Set& b) { return a.ranks.size() > b.ranks.size(); });
  std::string text = "ranks of a group called different collectives: ";
  for (size_t i = 0; i < sets.size(); ++i) {
    text += fmt::format("{}{} called {}", i == 0 ? "" : "; ", rank_list(sets[i].ranks), describe(*sets[i].call, group));
  }
  return text;
}

std::string describe(const Position& p) {
  const std::string step = p.step < 0 ? "outside a step" : fmt::format("in step {}", p.step);
  if (p.call.sequence == 0) return fmt::format("computing {}, no collective yet", step);
  if (p.waiting) return (p.call.step < 0 ? "waiting " : "waiting in ") + describe(p.call, p.group);
  return fmt::format("computing {} since {}", step, describe(p.call, p.group));
}

RunState::RunState(int size, int first_local, int n_local, double stall_seconds)
    : positions_(static_cast<size_t>(size)),
      first_local_(first_local),
      n_local_(n_local),
      stall_seconds_(stall_seconds) {}

void RunState::enter(int rank, const char* group, const Call& call) {
  Row& row = at(rank);
  constexpr auto kRelaxed = std::memory_order_relaxed;
  row.call_step.store(call.step, kRelaxed);
  row.sequence.store(call.sequence, kRelaxed);
  row.bytes.store(call.bytes, kRelaxed);
  row.detail.store(call.detail, kRelaxed);
  row.name.store(call.name, kRelaxed);
  row.kind.store(call.kind, kRelaxed);
  row.group.store(group, std::memory_order_release);  // the text behind the pointer
  row.waiting.store(true, kRelaxed);
}

void RunState::heard(int rank, const Position& position) {
  enter(rank, position.group, position.call);
  at(rank).waiting.store(position.waiting, std::memory_order_relaxed);
  at(rank).step.store(position.step, std::memory_order_relaxed);
}

Position RunState::position(int rank) const {
  const Row& row = at(rank);
  constexpr auto kRelaxed = std::memory_order_relaxed;
  Position p;
  p.group = row.group.load(std::memory_order_acquire);
  p.call.kind = row.kind.load(kRelaxed);
  p.call.name = row.name.load(std::memory_order_acquire);
  p.call.step = row.call_step.load(kRelaxed);
  p.call.sequence = row.sequence.load(kRelaxed);
  p.call.bytes = row.bytes.load(kRelaxed);
  p.call.detail = row.detail.load(kRelaxed);
  p.waiting = row.waiting.load(kRelaxed);
  p.step = row.step.load(kRelaxed);
  return p;
}

const char* RunState::intern(std::string_view text) {
  std::lock_guard lock(mutex_);
  for (const std::string& name : names_) {
    if (name == text) return name.c_str();
  }
  return names_.emplace_back(text).c_str();
}

std::string RunState::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

bool RunState::fail(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (failed()) return false;
    failure_ = reason.empty() ? "the run was ended" : reason;
    failed_.store(true, std::memory_order_release);
  }
  log_error("{}", reason);
  if (on_fail) on_fail(reason);
  return true;
}

void RunState::throw_failure() const { throw RuntimeFailure(failure()); }

std::string RunState::stall_report(const Call& call, const char* group, std::span<const int> missing,
                                   std::span<const int> waiting, double seconds) const {
  std::string text = fmt::format("{}: {} did not arrive, {} waited {:.1f} s", describe(call, group), rank_list(missing),
                                 rank_list(waiting), seconds);
  for (int rank : missing) {
    text += fmt::format("; rank {} is {}", rank, describe(position(rank)));
    if (const std::string more = explain ? explain(rank) : ""; !more.empty()) text += ", and " + more;
  }
  return text + ". All ranks: " + all_positions();
}

std::string RunState::all_positions() const {
  std::string text;
  for (int rank = 0; rank < std::min(size(), 16); ++rank) {
    text += fmt::format("{}rank {}: {}", rank == 0 ? "" : "; ", rank, describe(position(rank)));
  }
  return text;
}

}  // namespace braid
