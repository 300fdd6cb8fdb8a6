// Decode steps recorded for replay. A step in which every sequence has one new token is padded to the next size that was
// recorded; then one launch, behind the upload of the step's integers, does what the eager pass would do operation by
// operation. Padding rows are sequences of one token that write no row of the cache; rows never depend on each other.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "ops/backend.h"
#include "runtime/lowering.h"

namespace braid {

using CollectiveCounts = std::map<std::string, CollectiveCount>;

class DecodeRecordings {
 public:
  // `sizes`: sequences of a step, ascending. `max_len`: the longest sequence.
  DecodeRecordings(Backend& backend, const SequenceShard& shard, std::vector<int> sizes, int64_t max_len);

  // Records every size; `counts` are those of the collectives that `forward` calls. All ranks of a group call this
  // together.
  void record(const std::function<Tensor(const BatchMeta&)>& forward, const std::function<CollectiveCounts()>& counts);

  // The size that a plan is padded to; 0: it is to run eagerly. The same on every rank.
  int size_for(const StepPlan&) const;
  // `step` is lowered to `size` sequences. The logits of its true sequences, valid until the next step.
  Tensor replay(int size, const RankStep& step, int n_true);

  int64_t replays() const { return replays_; }
  int64_t n_nodes() const { return recorded_.empty() ? 0 : recorded_.begin()->second.recording->n_nodes(); }  // of the smallest
  // What the collectives of this rank's replays add up to; what was merely recorded is taken off again.
  const CollectiveCounts& replayed() const { return replayed_; }

 private:
  struct Recorded {
    std::unique_ptr<Recording> recording;
    Tensor logits;  // float32 [size, V], where the recording leaves them
    CollectiveCounts collectives;
  };
  BatchMeta batch(int size) const;
  void upload(const RankStep&);
  void upload_tables(const RankStep&);

  Backend* backend_;
  SequenceShard shard_;
  std::vector<int> sizes_;
  int64_t max_len_;
  Tensor ints_;   // int32, all but the block tables; where a step of any size finds them
  Tensor table_;  // int32 [largest size, columns of the longest sequence]
  std::vector<int32_t> sent_;  // what table_ holds; -1 where nothing was sent yet
  std::map<int, Recorded> recorded_;
  int64_t replays_ = 0;
  CollectiveCounts replayed_;
};

void add_counts(CollectiveCounts& to, const CollectiveCounts& counts, int64_t times);

}  // namespace braid
