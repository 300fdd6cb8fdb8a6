// A small set of token ids with a constant-time question.
#pragma once
#include <cstdint>
#include <vector>

namespace braid {

class TokenIdSet {
 public:
  void add(int32_t id) {  // id >= 0
    if (contains(id)) return;
    if (static_cast<size_t>(id) >= flags_.size()) flags_.resize(static_cast<size_t>(id) + 1);
    flags_[static_cast<size_t>(id)] = true;
    ids_.push_back(id);
  }
  bool contains(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < flags_.size() && flags_[static_cast<size_t>(id)];
  }
  const std::vector<int32_t>& ids() const { return ids_; }

 private:
  std::vector<bool> flags_;
  std::vector<int32_t> ids_;  // in the order of add
};

}  // namespace braid
