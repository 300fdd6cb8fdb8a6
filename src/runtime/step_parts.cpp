#include "runtime/step_parts.h"

#include <algorithm>
#include <utility>

namespace braid {
namespace {

int64_t length_of(const PlannedSequence& s) { return s.start.value + static_cast<int64_t>(s.tokens.size()); }

// Positions [begin, end) of a sequence. `begin` is a whole number of rounds over the ranks, so that it is the same local
// position on every rank.
struct Segment {
  int seq = 0;
  int64_t begin = 0, end = 0;
};

class WindowWriter {
 public:
  WindowWriter(const StepPlan& plan, const RowRule& rule, const SequenceShard& shard, PartStep& step, PartStep::Part& part)
      : plan_(plan), shard_(shard), step_(step), part_(part),
        budget_(std::max(rule.window_tokens / shard.round(), int64_t{1}) * shard.round()) {}

  void write() {
    for (int s = part_.first_seq; s < part_.first_seq + part_.n_seqs; ++s) {
      const int64_t cached = plan_.sequences[static_cast<size_t>(s)].start.value;
      for (int64_t begin = 0; begin < cached;) {
        if (used_ == budget_) close();
        const int64_t n = std::min(cached - begin, budget_ - used_);
        segments_.push_back({s, begin, begin + n});
        used_ += (n + shard_.round() - 1) / shard_.round() * shard_.round();
        begin += n;
      }
    }
    close();
  }

 private:
  const PlannedSequence& sequence(int s) const { return plan_.sequences[static_cast<size_t>(s)]; }
  SequenceShard of_rank(int rank) const {
    SequenceShard s = shard_;
    s.rank = rank;
    return s;
  }
  int64_t rank_rows(const Segment& s) const {  // rank 0 holds the most
    return of_rank(0).local_length(s.end) - of_rank(0).local_length(s.begin);
  }
  int64_t add(int64_t n) {
    const auto at = static_cast<int64_t>(step_.ints.size());
    step_.ints.resize(static_cast<size_t>(at + n), -1);
    return at;
  }

  void close() {
    if (segments_.empty()) return;
    PartStep::Window w;
    for (const Segment& s : segments_) {
      w.n_tokens += static_cast<int>(s.end - s.begin);
      w.rank_rows += static_cast<int>(rank_rows(s));
    }
    write_spans(w);
    w.slots = add(w.rank_rows);
    w.order = add(shard_.n_ranks > 1 ? w.n_tokens : 0);
    int64_t row = 0, token = 0;  // the next of either
    for (const Segment& s : segments_) {
      write_segment(w, s, row, token);
      row += rank_rows(s);
      token += s.end - s.begin;
    }
    part_.windows.push_back(w);
    segments_.clear();
    used_ = 0;
  }

  void write_spans(PartStep::Window& w) {
    const int first = segments_.front().seq;
    w.n_seqs = segments_.back().seq - first + 1;
    for (int s = part_.first_seq; s < first; ++s) w.first_row += static_cast<int>(sequence(s).tokens.size());
    w.q_start = add(w.n_seqs + 1);
    w.kv_start = add(w.n_seqs + 1);
    int32_t keys = 0;
    for (int i = 0; i < w.n_seqs; ++i) {
      step_.ints[static_cast<size_t>(w.q_start + i)] = w.n_rows;
      step_.ints[static_cast<size_t>(w.kv_start + i)] = keys;
      const auto segment = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& s) { return s.seq == first + i; });
      const auto seen = segment == segments_.end() ? 0 : static_cast<int>(segment->end - segment->begin);
      const auto n = static_cast<int>(sequence(first + i).tokens.size());
      w.max_q_len = std::max(w.max_q_len, n);
      w.max_kv_len = std::max(w.max_kv_len, seen);
      w.n_rows += n;
      keys += seen;
    }
    step_.ints[static_cast<size_t>(w.q_start + w.n_seqs)] = w.n_rows;
    step_.ints[static_cast<size_t>(w.kv_start + w.n_seqs)] = keys;
  }

  void write_segment(const PartStep::Window& w, const Segment& s, int64_t row, int64_t token) {
    const std::vector<BlockId>& blocks = sequence(s.seq).blocks;
    const int64_t first = shard_.local_length(s.begin);
    for (int64_t j = first; j < shard_.local_length(s.end); ++j) {
      const BlockId block = blocks[static_cast<size_t>(j / shard_.block_size)];
      step_.ints[static_cast<size_t>(w.slots + row + j - first)] = static_cast<int32_t>(shard_.slot(block, LocalPos(j)).value);
    }
    if (shard_.n_ranks == 1) return;
    for (int64_t g = s.begin; g < s.end; ++g) {
      const TokenPos position(g);
      step_.ints[static_cast<size_t>(w.order + token + g - s.begin)] =
          static_cast<int32_t>(shard_.owner(position) * w.rank_rows + row + shard_.local(position).value - first);
    }
  }

  const StepPlan& plan_;
  const SequenceShard& shard_;
  PartStep& step_;
  PartStep::Part& part_;
  const int64_t budget_;  // tokens
  std::vector<Segment> segments_;
  int64_t used_ = 0;  // whole rounds
};

}  // namespace

bool RowRule::chooses(int64_t n_new, int64_t n_cached) const {
  if (form == Form::kNever || n_new < 2) return false;
  const double pairs = static_cast<double>(n_new) * (static_cast<double>(n_cached) + static_cast<double>(n_new + 1) / 2);
  return form == Form::kAlways || per_cached * static_cast<double>(n_cached) < per_new * static_cast<double>(n_new) + per_pair * pairs;
}

void lower_parts(const StepPlan& plan, const RowRule& rule, const SequenceShard& shard, PartStep& step) {
  step.ints.clear();
  step.parts.clear();
  step.n_windows = step.row_tokens = step.rows_unread = 0;
  auto from_rows = [&](const PlannedSequence& s) { return rule.chooses(static_cast<int64_t>(s.tokens.size()), s.start.value); };
  if (std::none_of(plan.sequences.begin(), plan.sequences.end(), from_rows)) return;
  int row = 0;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& s = plan.sequences[i];
    const bool rows = from_rows(s);
    if (step.parts.empty() || step.parts.back().from_rows != rows) {
      step.parts.push_back({.from_rows = rows, .first_row = row, .first_seq = static_cast<int>(i), .windows = {}});
    }
    PartStep::Part& part = step.parts.back();
    const auto n = static_cast<int>(s.tokens.size());
    ++part.n_seqs;
    part.n_rows += n;
    part.max_q_len = std::max(part.max_q_len, n);
    part.max_kv_len = std::max(part.max_kv_len, static_cast<int>(length_of(s)));
    row += n;
    if (!rows) continue;
    step.row_tokens += n;
    step.rows_unread += shard.local_length(length_of(s)) - shard.local_length(s.start.value);
  }
  for (PartStep::Part& part : step.parts) {
    part.q_start = static_cast<int64_t>(step.ints.size());
    step.ints.push_back(0);
    for (int i = 0; i < part.n_seqs; ++i) {
      step.ints.push_back(step.ints.back() + static_cast<int32_t>(plan.sequences[static_cast<size_t>(part.first_seq + i)].tokens.size()));
    }
    if (part.from_rows) WindowWriter(plan, rule, shard, step, part).write();
    step.n_windows += static_cast<int64_t>(part.windows.size());
  }
}

std::vector<StepPart> parts_of(const PartStep& step, const BatchMeta& all, Tensor ints) {
  auto view = [&](int64_t at, int64_t n) { return ints.rows(at, at + n); };
  std::vector<StepPart> parts;
  for (const PartStep::Part& p : step.parts) {
    StepPart part;
    part.first_row = p.first_row;
    part.from_rows = p.from_rows;
    BatchMeta& b = part.batch;
    b.n_tokens = p.n_rows;
    b.n_seqs = p.n_seqs;
    b.max_q_len = p.max_q_len;
    b.max_kv_len = p.max_kv_len;
    b.positions = all.positions.rows(p.first_row, p.first_row + p.n_rows);
    b.slots = all.slots.rows(p.first_row, p.first_row + p.n_rows);
    b.q_start = view(p.q_start, p.n_seqs + 1);
    b.kv_len = all.kv_len.rows(p.first_seq, p.first_seq + p.n_seqs);
    b.block_table = all.block_table.rows(p.first_seq, p.first_seq + p.n_seqs);
    b.shard = all.shard;
    part.fresh = {p.n_seqs, p.max_q_len, p.max_q_len, b.q_start, b.q_start, true};
    for (const PartStep::Window& w : p.windows) {
      ContextWindow window{w.first_row, w.n_rows, w.n_tokens, w.rank_rows, view(w.slots, w.rank_rows), {}, {}};
      if (all.shard.n_ranks > 1) window.order = view(w.order, w.n_tokens);
      window.spans = {w.n_seqs, w.max_q_len, w.max_kv_len, view(w.q_start, w.n_seqs + 1), view(w.kv_start, w.n_seqs + 1), false};
      part.windows.push_back(std::move(window));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace braid
