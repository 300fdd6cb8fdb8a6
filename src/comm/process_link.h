// How the parts of a group that lie in different processes reach each other: one message to and from each other
// process per round of a collective. The carrier behind it (MPI) adds who sends what and in which collective, and
// reports peers that differ, are late or are gone.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "comm/call.h"

namespace braid {

// A message: room for the carrier's header, then the payload, in one allocation (not zeroed). Payloads are aligned for
// any element type.
class Packet {
 public:
  static constexpr size_t kHeaderBytes = 192;
  explicit Packet(size_t payload_bytes)
      : bytes_(new std::byte[kHeaderBytes + payload_bytes]), size_(kHeaderBytes + payload_bytes) {}
  std::byte* data() { return bytes_.get(); }
  size_t size() const { return size_; }
  std::byte* payload() { return bytes_.get() + kHeaderBytes; }
  size_t payload_size() const { return size_ - kHeaderBytes; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  size_t size_;
};

class ProcessLink {
 public:
  virtual ~ProcessLink() = default;
  // Share by share of the group, own entry empty; entries may point to one packet (its header is the same for all).
  // Returns when all sends and receives are done. On any failure the run is marked as failed and RuntimeFailure thrown.
  virtual std::vector<std::shared_ptr<Packet>> exchange(const Call& call, int round,
                                                        std::vector<std::shared_ptr<Packet>> out) = 0;
};

}  // namespace braid
