// One rank's end of a HostGroup: checks tensors, counts, numbers the collectives.
#pragma once
#include <memory>

#include "comm/comm.h"
#include "comm/host_group.h"

namespace braid {

class HostComm : public Comm {
 public:
  HostComm(std::shared_ptr<HostGroup> group, int place)
      : Comm(group->name(), place, group->size()), group_(std::move(group)) {}

  void all_reduce(Tensor x, const char* name) override;
  void all_gather(Tensor out, Tensor in, const char* name) override;
  void all_gatherv(Tensor out, Tensor in, std::span<const int64_t> counts, const char* name) override;
  void reduce_scatter(Tensor out, Tensor in, const char* name) override;
  void all_to_all(Tensor out, Tensor in, const char* name) override;
  void broadcast(Tensor x, int root, const char* name) override;
  void barrier(const char* name) override;

 protected:
  // The collective itself, of a group of more than one; and what a group of one does instead.
  virtual void carry(const Call& call, const Buffers& buffers) { group_->run(rank(), call, buffers); }
  virtual void copy_own(std::byte* to, const std::byte* from, int64_t bytes);
  HostGroup& group_state() { return *group_; }
  // Counts a collective and makes sure that all members call it; its data are the caller's business.
  void agree_on(Collective kind, const char* name, int64_t bytes);

 private:
  // `contributed`: bytes to count; a group of one moves nothing, so its out is filled here and 0 bytes are counted.
  void run(Collective kind, const char* name, int64_t agreed_bytes, int64_t contributed, const Buffers& buffers,
           uint64_t detail = 0);

  std::shared_ptr<HostGroup> group_;
  int64_t sequence_ = 0;
};

}  // namespace braid
