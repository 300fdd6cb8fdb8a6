// One round: send to all, take from all, with the reports of peers that differ, are late or have left.
#include "comm/mpi_link.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/error.h"

namespace braid {
namespace {

Call call_of(const Header& header) {
  return {header.kind, header.name, header.step, header.sequence, header.bytes, header.detail};
}

// Names longer than the header's room are compared as far as they fit.
bool agree_on_wire(const Call& call, const Header& header) {
  Call sent = call_of(header);
  const bool name = std::strncmp(call.name, header.name, sizeof header.name - 1) == 0;
  sent.name = call.name;
  return name && agree(call, sent);
}

}  // namespace

std::vector<int> MpiLink::ranks_of(const HostGroup::Share& share) const {
  return {ranks_.begin() + share.begin, ranks_.begin() + share.end};
}

MpiLink::Sends MpiLink::send_all(const Call& call, int round, std::vector<std::shared_ptr<Packet>>& out) {
  Header header;
  header.channel = channel_;
  header.world = run_->world;
  header.process = run_->mailbox.process();
  header.round = round;
  header.kind = call.kind;
  header.step = call.step;
  header.sequence = call.sequence;
  header.bytes = call.bytes;
  header.detail = call.detail;
  std::strncpy(header.name, call.name, sizeof header.name - 1);
  for (auto& packet : out) {  // all headers before the first send: shares may have one packet
    if (packet) std::memcpy(packet->data(), &header, sizeof header);
  }
  Sends sends(shares_.size());
  for (size_t s = 0; s < shares_.size(); ++s) {
    if (!own(shares_[s])) sends[s] = run_->mailbox.send(shares_[s].process, std::move(out[s]));
  }
  return sends;
}

std::vector<std::shared_ptr<Packet>> MpiLink::exchange(const Call& call, int round,
                                                       std::vector<std::shared_ptr<Packet>> out) {
  if (run_->state->failed()) run_->state->throw_failure();
  const Sends sends = send_all(call, round, out);
  std::vector<std::shared_ptr<Packet>> in(shares_.size());
  Backoff backoff(run_->spin_ns, std::chrono::microseconds(200));
  while (true) {
    run_->mailbox.poll();
    bool done = true;
    for (size_t s = 0; s < shares_.size(); ++s) {
      if (own(shares_[s])) continue;
      const bool left = run_->peer(shares_[s].process).left;  // whatever it sent before is then in its queue
      if (!in[s] && (in[s] = run_->take(channel_, shares_[s].process))) {
        check(call, round, shares_[s], header_of(*in[s]));
      }
      if (!in[s] && left) {
        end(fmt::format("{}: {} will not come: {} has ended its run", describe(call, name_.c_str()),
                        rank_list(ranks_of(shares_[s])), run_->describe_process(shares_[s].process)));
      }
      done = done && in[s] && sends[s]->done;  // an unfinished send needs our polling to get through
    }
    if (done) return in;
    if (run_->state->failed()) run_->state->throw_failure();
    if (backoff.waited() > run_->state->stall_seconds()) report_stall(call, in, sends, backoff.waited());
    backoff.pause(run_->transferring(backoff.waited()));
  }
}

void MpiLink::check(const Call& call, int round, const HostGroup::Share& share, const Header& header) {
  if (agree_on_wire(call, header) && round == header.round) return;
  std::vector<int> here;
  for (const HostGroup::Share& s : shares_) {
    if (own(s)) here = ranks_of(s);
  }
  const std::vector<int> there = ranks_of(share);
  std::vector<Call> calls(here.size(), call);
  calls.insert(calls.end(), there.size(), call_of(header));
  std::vector<int> ranks = here;
  ranks.insert(ranks.end(), there.begin(), there.end());
  end(mismatch_report(name_.c_str(), calls, ranks));
}

void MpiLink::end(const std::string& reason) {
  run_->state->fail(reason);
  run_->state->throw_failure();
}

void MpiLink::report_stall(const Call& call, const std::vector<std::shared_ptr<Packet>>& in, const Sends& sends,
                           double waited) {
  std::vector<int> missing, waiting;
  for (size_t s = 0; s < shares_.size(); ++s) {
    if (own(shares_[s])) {
      waiting = ranks_of(shares_[s]);
    } else if (!in[s] || !sends[s]->done) {
      std::ranges::copy(late_ranks(call, shares_[s]), std::back_inserter(missing));
    }
  }
  end(run_->state->stall_report(call, name_.c_str(), missing, waiting, waited));
}

// Ranks of a process whose message is missing that wait in this very collective are not to blame, unless all of them
// do or the process does not run: then it is the process.
std::vector<int> MpiLink::late_ranks(const Call& call, const HostGroup::Share& share) const {
  std::vector<int> late;
  for (int rank : ranks_of(share)) {
    const Position p = run_->state->position(rank);
    if (!p.waiting || name_ != p.group || p.call.sequence != call.sequence) late.push_back(rank);
  }
  const bool runs = run_->probe(share.process) == ProcessState::kRunning;
  return late.empty() || !runs ? ranks_of(share) : late;
}

}  // namespace braid
