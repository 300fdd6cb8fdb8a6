// A group's messages between processes over the mailbox.
#pragma once
#include "comm/host_group.h"
#include "comm/mpi_run.h"

namespace braid {

class MpiLink final : public ProcessLink {
 public:
  MpiLink(std::shared_ptr<MpiRun> run, uint64_t channel, std::string name, std::vector<int> ranks,
          std::vector<HostGroup::Share> shares)
      : run_(std::move(run)),
        channel_(channel),
        name_(std::move(name)),
        ranks_(std::move(ranks)),
        shares_(std::move(shares)) {}

  std::vector<std::shared_ptr<Packet>> exchange(const Call& call, int round,
                                                std::vector<std::shared_ptr<Packet>> out) override;

 private:
  using Sends = std::vector<std::shared_ptr<Mailbox::Sending>>;
  bool own(const HostGroup::Share& share) const { return share.process == run_->mailbox.process(); }
  std::vector<int> ranks_of(const HostGroup::Share& share) const;
  Sends send_all(const Call& call, int round, std::vector<std::shared_ptr<Packet>>& out);
  void check(const Call& call, int round, const HostGroup::Share& share, const Header& header);
  // Marks the run as failed and throws.
  [[noreturn]] void end(const std::string& reason);
  [[noreturn]] void report_stall(const Call& call, const std::vector<std::shared_ptr<Packet>>& in, const Sends& sends,
                                 double waited);
  std::vector<int> late_ranks(const Call& call, const HostGroup::Share& share) const;

  const std::shared_ptr<MpiRun> run_;
  const uint64_t channel_;
  const std::string name_;
  const std::vector<int> ranks_;
  const std::vector<HostGroup::Share> shares_;
};

}  // namespace braid
