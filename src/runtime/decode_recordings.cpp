#include "runtime/decode_recordings.h"

#include <algorithm>

#include "base/error.h"

namespace braid {
namespace {

constexpr size_t kRowCopies = 8;  // up to here rows of the table are sent one by one
constexpr int kIntsPerSequence = 6;  // token, position, slot, q_start, length, logit row

}  // namespace

void add_counts(CollectiveCounts& to, const CollectiveCounts& counts, int64_t times) {
  for (const auto& [name, c] : counts) {
    CollectiveCount& sum = to[name];
    sum.calls += times * c.calls;
    sum.bytes += times * c.bytes;
  }
}

DecodeRecordings::DecodeRecordings(Backend& backend, const SequenceShard& shard, std::vector<int> sizes, int64_t max_len)
    : backend_(&backend), shard_(shard), sizes_(std::move(sizes)), max_len_(max_len) {
  BRAID_CHECK(!sizes_.empty() && std::is_sorted(sizes_.begin(), sizes_.end()), "sizes to record must ascend");
  ints_ = backend.alloc(MemoryKind::kWorkspace, DType::kI32, {kIntsPerSequence * sizes_.back() + 1});
  table_ = backend.alloc(MemoryKind::kWorkspace, DType::kI32, {sizes_.back(), shard.table_columns(max_len)});
  sent_.assign(static_cast<size_t>(table_.n_elements()), -1);
}

void DecodeRecordings::record(const std::function<Tensor(const BatchMeta&)>& forward, const std::function<CollectiveCounts()>& counts) {
  RankStep padding;
  for (auto size = sizes_.rbegin(); size != sizes_.rend(); ++size) {  // the largest first: it needs the most scratch
    lower(StepPlan{}, shard_, padding, *size);
    const BatchMeta b = batch(*size);
    backend_->begin_step();
    upload(padding);
    forward(b);
    backend_->sync();
    backend_->begin_step();
    Recorded& r = recorded_[*size];
    add_counts(r.collectives, counts(), -1);
    backend_->begin_recording();
    r.logits = forward(b);
    r.recording = backend_->end_recording();
    add_counts(r.collectives, counts(), 1);
    add_counts(replayed_, r.collectives, -1);
  }
}

int DecodeRecordings::size_for(const StepPlan& plan) const {
  const bool decodes = std::all_of(plan.sequences.begin(), plan.sequences.end(), [](const PlannedSequence& s) {
    return s.tokens.size() == 1 && s.sample && !s.every_row();
  });
  const auto size = std::lower_bound(sizes_.begin(), sizes_.end(), static_cast<int>(plan.sequences.size()));
  return decodes && !plan.empty() && size != sizes_.end() ? *size : 0;
}

BatchMeta DecodeRecordings::batch(int size) const {
  RankStep step;
  lower(StepPlan{}, shard_, step, size);
  BatchMeta b = batch_of(step, shard_, ints_, table_.rows(0, size));
  b.max_kv_len = static_cast<int>(max_len_);
  return b;
}

void DecodeRecordings::upload(const RankStep& step) {
  backend_->upload(ints_.rows(0, step.block_table), step.ints.data());
  upload_tables(step);
}

// A table grows by one column every block of tokens and is the same otherwise: only what differs is sent.
void DecodeRecordings::upload_tables(const RankStep& step) {
  struct Change {
    int64_t row, first, end;
  };
  std::vector<Change> changes;
  const int64_t stride = table_.dim(1);
  for (int64_t s = 0; s < step.n_seqs; ++s) {
    const int32_t* row = step.ints.data() + step.block_table + s * step.table_columns;
    const int64_t end = shard_.table_columns(step.ints[static_cast<size_t>(step.kv_len + s)]);
    const auto [differs, old] = std::mismatch(row, row + end, sent_.begin() + static_cast<std::ptrdiff_t>(s * stride));
    if (differs == row + end) continue;
    std::copy(differs, row + end, old);
    changes.push_back({s, differs - row, end});
  }
  if (changes.size() > kRowCopies) {  // row by row would take longer to ask for; this sends the columns behind a row's end too
    for (int64_t s = 0; s < step.n_seqs; ++s) {
      const int32_t* row = step.ints.data() + step.block_table + s * step.table_columns;
      std::copy(row, row + step.table_columns, sent_.begin() + static_cast<std::ptrdiff_t>(s * stride));
    }
    backend_->upload(table_.rows(0, step.n_seqs).columns(0, step.table_columns), step.ints.data() + step.block_table);
    return;
  }
  for (const Change& c : changes) {
    int32_t* to = table_.as<int32_t>() + c.row * stride + c.first;
    backend_->upload(Tensor(to, DType::kI32, {c.end - c.first}), sent_.data() + c.row * stride + c.first);
  }
}

Tensor DecodeRecordings::replay(int size, const RankStep& step, int n_true) {
  const Recorded& r = recorded_.at(size);
  upload(step);
  backend_->replay(*r.recording);
  ++replays_;
  add_counts(replayed_, r.collectives, 1);
  return r.logits.rows(0, n_true);
}

}  // namespace braid
