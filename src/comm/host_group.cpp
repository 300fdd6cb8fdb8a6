// Meetings, checks and the work within one process.
#include "comm/host_group.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/tree_sum.h"

namespace braid {
namespace {

// Work that touches fewer bytes than this is done by the last to arrive; more is split, which costs another meeting.
constexpr int64_t kSplitBytes = 256 << 10;

// A meeting whose server does not come back (it is itself stuck) is left after this much more than a stall.
constexpr double kServerGraceSeconds = 10;

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

HostGroup::HostGroup(std::shared_ptr<RunState> run, std::string name, std::vector<int> ranks, std::vector<Share> shares,
                     int own_share, int64_t spin_ns, std::shared_ptr<ProcessLink> link)
    : run_(std::move(run)),
      name_(run_->intern(name)),
      ranks_(std::move(ranks)),
      shares_(std::move(shares)),
      own_share_(own_share),
      link_(std::move(link)),
      members_(static_cast<size_t>(own().end - own().begin)),
      meeting_(own().end - own().begin, spin_ns) {}

void HostGroup::run(int place, const Call& call, const Buffers& buffers) {
  if (run_->failed()) run_->throw_failure();
  Member& me = member(place);
  me.call = call;
  me.buffers = buffers;
  run_->enter(rank_at(place), name_.c_str(), call);
  me.posted.store(call.sequence, std::memory_order_release);

  const bool in_parts = split(call, buffers);
  const uint64_t number = ++me.meetings;
  if (meeting_.arrive(number)) {
    serve(me, in_parts);
    meeting_.release(number);
  } else {
    await(me, place, number);
  }
  if (!verdict_) run_->throw_failure();
  if (in_parts) {
    share_of_work(call.kind, place);
    meet_again(me);
  }
  run_->leave(rank_at(place));
}

bool HostGroup::split(const Call& call, const Buffers& b) const {
  if (link_ || members_.size() == 1 || b.elsewhere) return false;
  const int64_t n = size();
  switch (call.kind) {
    case Collective::kAllReduce:
      return 2 * n * b.bytes > kSplitBytes;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return n * n * b.bytes > kSplitBytes;
    case Collective::kAllGatherV:
      return n * call.bytes > kSplitBytes;
    case Collective::kBroadcast:
      return n * b.bytes > kSplitBytes;
    case Collective::kBarrier:
      return false;
  }
  return false;
}

// By the last to arrive, before it releases the others.
void HostGroup::serve(Member& me, bool in_parts) {
  verdict_ = false;
  if (!members_agree()) return;
  if (link_) {
    try {
      if (me.buffers.elsewhere) {
        exchange(me.call, 0, {shares_.size(), std::make_shared<Packet>(0)});
      } else {
        serve_across(me.call);
      }
    } catch (const RuntimeFailure&) {  // on record already; the verdict tells the others
      return;
    }
  } else if (!in_parts && !me.buffers.elsewhere) {
    if (me.call.kind == Collective::kAllReduce) {
      reduce_segment(0, me.buffers.bytes / static_cast<int64_t>(sizeof(float)));
    } else {
      for (int place = own().begin; place < own().end; ++place) share_of_work(me.call.kind, place);
    }
  }
  verdict_ = true;
}

bool HostGroup::members_agree() {
  const bool same = std::all_of(members_.begin(), members_.end(),
                                [&](const Member& m) { return agree(m.call, members_.front().call); });
  if (same) return true;
  std::vector<Call> calls;
  for (const Member& m : members_) calls.push_back(m.call);
  run_->fail(mismatch_report(name_.c_str(), calls, std::span(ranks_).subspan(static_cast<size_t>(own().begin))));
  return false;
}

void HostGroup::await(Member& me, int place, uint64_t number) {
  if (meeting_.wait(number, [&](double waited) { return tick(me, number, waited); })) return;
  run_->throw_failure();
}

// False once this rank has left the meeting. A meeting that is complete cannot be left: its server uses our buffers.
bool HostGroup::tick(Member& me, uint64_t number, double waited) {
  const double limit = run_->stall_seconds();
  if (run_->failed()) return !meeting_.withdraw(number) && waited < limit + kServerGraceSeconds;
  if (waited < limit || meeting_.complete(number)) return waited < limit + kServerGraceSeconds;
  std::vector<int> missing, waiting;
  for (int place = own().begin; place < own().end; ++place) {
    const bool here = member(place).posted.load(std::memory_order_acquire) >= me.call.sequence;
    (here ? waiting : missing).push_back(rank_at(place));
  }
  if (!missing.empty()) run_->fail(run_->stall_report(me.call, name_.c_str(), missing, waiting, waited));
  return true;
}

// After split work. Nobody may leave before all are done reading; whoever was released by the first meeting comes.
void HostGroup::meet_again(Member& me) {
  const uint64_t number = ++me.meetings;
  if (meeting_.arrive(number)) {
    meeting_.release(number);
  } else if (!meeting_.wait(number, [](double waited) { return waited < 60; })) {
    run_->fail(fmt::format("{}: its copies took more than 60 s", describe(me.call, name_.c_str())));
    run_->throw_failure();
  }
}

// What the member at `place` has to do once all have posted. Its writes go to its own out, but for all_reduce.
void HostGroup::share_of_work(Collective kind, int place) {
  const Buffers& own_buffers = member(place).buffers;
  std::byte* out = own_buffers.out;
  const int64_t bytes = own_buffers.bytes;
  switch (kind) {
    case Collective::kAllReduce: {
      const int64_t n = bytes / static_cast<int64_t>(sizeof(float));
      const int64_t each = ((n + size() - 1) / size() + 15) / 16 * 16;  // whole cache lines
      reduce_segment(std::min(n, each * place), std::min(n, each * (place + 1)));
      break;
    }
    case Collective::kAllGather:
      for (int i = 0; i < size(); ++i) copy_bytes(out + i * bytes, member(i).buffers.in, bytes);
      break;
    case Collective::kAllGatherV:
      for (int i = 0; i < size(); ++i) {
        const int64_t part = own_buffers.counts[static_cast<size_t>(i)] * own_buffers.row_bytes;
        copy_bytes(out, member(i).buffers.in, part);
        out += part;
      }
      break;
    case Collective::kReduceScatter: {
      TreeSum sum(size());
      for (int i = 0; i < size(); ++i) {
        sum.set({i, i + 1}, reinterpret_cast<const float*>(member(i).buffers.in + place * bytes));
      }
      sum.add(bytes / static_cast<int64_t>(sizeof(float)), reinterpret_cast<float*>(out));
      break;
    }
    case Collective::kAllToAll:
      for (int i = 0; i < size(); ++i) copy_bytes(out + i * bytes, member(i).buffers.in + place * bytes, bytes);
      break;
    case Collective::kBroadcast:
      copy_bytes(out, member(static_cast<int>(member(place).call.detail)).buffers.out, bytes);
      break;
    case Collective::kBarrier:
      break;
  }
}

// Elements [begin, end) of every member's x become their sum. Only the caller touches these elements.
void HostGroup::reduce_segment(int64_t begin, int64_t end) {
  TreeSum sum(size());
  std::vector<float*> outs;
  for (int i = 0; i < size(); ++i) {
    float* x = reinterpret_cast<float*>(member(i).buffers.out) + begin;
    sum.set({i, i + 1}, x);
    outs.push_back(x);
  }
  sum.add({0, size()}, end - begin, outs);
}

}  // namespace braid
