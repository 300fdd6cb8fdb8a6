// Collectives of a group that spans processes. One thread per process, the last member to arrive, works for all members
// of its process: it reads and writes their buffers and exchanges one message per round with every other process. Sums
// travel as sums of whole tree nodes, so that the bits are those of ranks in one process.
#include <algorithm>
#include <cstring>

#include "comm/host_group.h"
#include "comm/tree_sum.h"

namespace braid {
namespace {

// Up to here an all_reduce sends whole vectors in one round; beyond, a segment per process in two.
constexpr int64_t kOneRoundBytes = 32 << 10;

constexpr int64_t kFloat = sizeof(float);

std::byte* put(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
  return to + bytes;
}

std::shared_ptr<Packet> packet_of(int64_t payload_bytes) {
  return std::make_shared<Packet>(static_cast<size_t>(payload_bytes));
}

std::vector<TreeNode> nodes_of(const HostGroup& group, const HostGroup::Share& share) {
  return tree_cover(group.size(), share.begin, share.end);
}

const float* floats(const std::byte* p) { return reinterpret_cast<const float*>(p); }
float* floats(std::byte* p) { return reinterpret_cast<float*>(p); }

}  // namespace

void HostGroup::serve_across(const Call& call) {
  switch (call.kind) {
    case Collective::kAllReduce:
      return reduce_across(call);
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      return gather_across(call);
    case Collective::kReduceScatter:
      return reduce_scatter_across(call);
    case Collective::kAllToAll:
      return all_to_all_across(call);
    case Collective::kBroadcast:
      return broadcast_across(call);
    case Collective::kBarrier:
      exchange(call, 0, {shares_.size(), packet_of(0)});
      return;
  }
}

std::vector<std::shared_ptr<Packet>> HostGroup::exchange(const Call& call, int round,
                                                         std::vector<std::shared_ptr<Packet>> out) {
  out[static_cast<size_t>(own_share_)] = nullptr;
  return link_->exchange(call, round, std::move(out));
}

// Round 0: to each process our nodes' sums of its segment. Round 1: to each process the total of our segment. Small
// vectors have one segment, which every process adds up for itself.
void HostGroup::reduce_across(const Call& call) {
  const int64_t n = call.bytes / kFloat;
  if (call.bytes <= kOneRoundBytes) {
    add_segment(exchange(call, 0, {shares_.size(), own_sums(0, n)}), 0, n, nullptr);
    return;
  }
  const auto n_shares = static_cast<int64_t>(shares_.size());
  const int64_t each = ((n + n_shares - 1) / n_shares + 15) / 16 * 16;  // whole cache lines
  const auto begin_of = [&](int64_t share) { return std::min(n, each * share); };

  std::vector<std::shared_ptr<Packet>> out(shares_.size());
  for (int64_t s = 0; s < n_shares; ++s) {
    if (s != own_share_) out[static_cast<size_t>(s)] = own_sums(begin_of(s), begin_of(s + 1));
  }
  const int64_t begin = begin_of(own_share_), end = begin_of(own_share_ + 1);
  std::shared_ptr<Packet> result = packet_of((end - begin) * kFloat);
  add_segment(exchange(call, 0, std::move(out)), begin, end, floats(result->payload()));

  const auto segments = exchange(call, 1, {shares_.size(), result});
  for (int64_t s = 0; s < n_shares; ++s) {
    if (s == own_share_) continue;
    for (int i = own().begin; i < own().end; ++i) {
      put(member(i).buffers.out + begin_of(s) * kFloat, segments[static_cast<size_t>(s)]->payload(),
          (begin_of(s + 1) - begin_of(s)) * kFloat);
    }
  }
}

// Elements [begin, end) summed over each of our nodes, one after the other.
std::shared_ptr<Packet> HostGroup::own_sums(int64_t begin, int64_t end) {
  const std::vector<TreeNode> nodes = nodes_of(*this, own());
  TreeSum sum(size());
  for (int i = own().begin; i < own().end; ++i) sum.set({i, i + 1}, floats(member(i).buffers.out) + begin);
  std::shared_ptr<Packet> packet = packet_of(static_cast<int64_t>(nodes.size()) * (end - begin) * kFloat);
  float* to = floats(packet->payload());
  for (const TreeNode& node : nodes) {
    sum.add(node, end - begin, std::span<float* const>(&to, 1));
    to += end - begin;
  }
  return packet;
}

// Elements [begin, end) of all our members become the total of ours and of the others' sums; also written to `copy`.
void HostGroup::add_segment(const std::vector<std::shared_ptr<Packet>>& in, int64_t begin, int64_t end, float* copy) {
  TreeSum total(size());
  std::vector<float*> outs;
  for (int i = own().begin; i < own().end; ++i) {
    outs.push_back(floats(member(i).buffers.out) + begin);
    total.set({i, i + 1}, outs.back());
  }
  for (size_t s = 0; s < shares_.size(); ++s) {
    if (static_cast<int>(s) == own_share_) continue;
    const float* from = floats(in[s]->payload());
    for (const TreeNode& node : nodes_of(*this, shares_[s])) {
      total.set(node, from);
      from += end - begin;
    }
  }
  if (copy) outs.push_back(copy);
  total.add({0, size()}, end - begin, outs);
}

// To each process: for each of its places, our nodes' sums.
void HostGroup::reduce_scatter_across(const Call& call) {
  const int64_t bytes = member(own().begin).buffers.bytes, n = bytes / kFloat;
  const std::vector<TreeNode> own_nodes = nodes_of(*this, own());
  const auto own_leaves = [&](int place) {
    TreeSum sum(size());
    for (int i = own().begin; i < own().end; ++i) sum.set({i, i + 1}, floats(member(i).buffers.in + place * bytes));
    return sum;
  };
  std::vector<std::shared_ptr<Packet>> out(shares_.size());
  for (size_t s = 0; s < shares_.size(); ++s) {
    if (static_cast<int>(s) == own_share_) continue;
    const Share& share = shares_[s];
    out[s] = packet_of((share.end - share.begin) * static_cast<int64_t>(own_nodes.size()) * bytes);
    float* to = floats(out[s]->payload());
    for (int place = share.begin; place < share.end; ++place) {
      const TreeSum sum = own_leaves(place);
      for (const TreeNode& node : own_nodes) {
        sum.add(node, n, std::span<float* const>(&to, 1));
        to += n;
      }
    }
  }
  const auto in = exchange(call, 0, std::move(out));
  for (int place = own().begin; place < own().end; ++place) {
    TreeSum total = own_leaves(place);
    for (size_t s = 0; s < shares_.size(); ++s) {
      if (static_cast<int>(s) == own_share_) continue;
      const std::vector<TreeNode> nodes = nodes_of(*this, shares_[s]);
      const float* from = floats(in[s]->payload()) + (place - own().begin) * static_cast<int64_t>(nodes.size()) * n;
      for (const TreeNode& node : nodes) {
        total.set(node, from);
        from += n;
      }
    }
    total.add(n, floats(member(place).buffers.out));
  }
}

// To each process: our members' parts, one after the other.
void HostGroup::gather_across(const Call& call) {
  const Buffers& any = member(own().begin).buffers;
  const auto bytes_at = [&](int place) {
    return call.kind == Collective::kAllGather ? any.bytes : any.counts[static_cast<size_t>(place)] * any.row_bytes;
  };
  int64_t own_bytes = 0;
  for (int i = own().begin; i < own().end; ++i) own_bytes += bytes_at(i);
  std::shared_ptr<Packet> packet = packet_of(own_bytes);
  std::byte* to = packet->payload();
  for (int i = own().begin; i < own().end; ++i) to = put(to, member(i).buffers.in, bytes_at(i));
  const auto in = exchange(call, 0, {shares_.size(), packet});
  for (int place = own().begin; place < own().end; ++place) {
    std::byte* at = member(place).buffers.out;
    for (size_t s = 0; s < shares_.size(); ++s) {
      Packet& from = static_cast<int>(s) == own_share_ ? *packet : *in[s];
      at = put(at, from.payload(), static_cast<int64_t>(from.payload_size()));
    }
  }
}

// To each process: from each of our members, a part for each of its places.
void HostGroup::all_to_all_across(const Call& call) {
  const int64_t bytes = member(own().begin).buffers.bytes;
  std::vector<std::shared_ptr<Packet>> out(shares_.size());
  for (size_t s = 0; s < shares_.size(); ++s) {
    if (static_cast<int>(s) == own_share_) continue;
    const int64_t places = shares_[s].end - shares_[s].begin;
    out[s] = packet_of((own().end - own().begin) * places * bytes);
    std::byte* to = out[s]->payload();
    for (int i = own().begin; i < own().end; ++i) {
      to = put(to, member(i).buffers.in + shares_[s].begin * bytes, places * bytes);
    }
  }
  const auto in = exchange(call, 0, std::move(out));
  for (size_t s = 0; s < shares_.size(); ++s) {
    for (int i = shares_[s].begin; i < shares_[s].end; ++i) {
      for (int place = own().begin; place < own().end; ++place) {
        const int64_t row = (i - shares_[s].begin) * (own().end - own().begin) + (place - own().begin);
        const std::byte* from =
            static_cast<int>(s) == own_share_ ? member(i).buffers.in + place * bytes : in[s]->payload() + row * bytes;
        put(member(place).buffers.out + i * bytes, from, bytes);
      }
    }
  }
}

// The root's process sends x, the others send nothing: all meet, as in every collective.
void HostGroup::broadcast_across(const Call& call) {
  const int root = static_cast<int>(call.detail);
  const bool from_here = own().begin <= root && root < own().end;
  std::shared_ptr<Packet> packet = packet_of(from_here ? call.bytes : 0);
  if (from_here) put(packet->payload(), member(root).buffers.in, call.bytes);
  const auto in = exchange(call, 0, {shares_.size(), packet});
  for (size_t s = 0; s < shares_.size(); ++s) {
    if (shares_[s].begin <= root && root < shares_[s].end && !from_here) packet = in[s];
  }
  for (int i = own().begin; i < own().end; ++i) put(member(i).buffers.out, packet->payload(), call.bytes);
}

}  // namespace braid
