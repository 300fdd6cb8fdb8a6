// Planning and committing; the policy is told in the header.
#include "sched/scheduler.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"

namespace braid {
namespace {

constexpr int64_t kMinUnit = 64;   // chunks end at multiples of max(this, block_tokens)
constexpr size_t kMaxSkipped = 8;  // requests too long to be served beside a long prefill that are looked past
constexpr int64_t kWatermarkShare = 100;

// As new, but for the capacity of its vectors.
void clear(Delta& delta) {
  delta.tokens.clear();
  delta.prompt_logprobs.clear();
  delta.logits.reset();
  delta.message.clear();
  delta.finish = FinishReason::kNone;
  delta.cached_tokens = delta.logits_start = 0;
}

void check(const SchedulerConfig& c) {
  BRAID_CHECK(c.block_tokens > 0 && c.n_blocks > 0 && c.max_model_len > 0, "{} blocks of {} tokens, context {}",
              c.n_blocks, c.block_tokens, c.max_model_len);
  if (c.max_num_seqs < 1) throw Error("--max-num-seqs is {}; it must be at least 1", c.max_num_seqs);
  if (c.max_num_batched_tokens < 1) {
    throw Error("--max-num-batched-tokens is {}; it must be at least 1", c.max_num_batched_tokens);
  }
  if (c.exact_chunk < 0 || c.exact_chunk > c.max_num_batched_tokens) {
    throw Error("--prefill-chunk is {}; it must be from 0 (off) to --max-num-batched-tokens, {}", c.exact_chunk,
                c.max_num_batched_tokens);
  }
  if (c.exact_chunk > 0 && !c.chunked_prefill) {
    throw Error("--prefill-chunk {} needs chunked prefill, which is off; use --prefill-chunk 0", c.exact_chunk);
  }
  if (c.long_prefill_token_threshold < 0) {
    throw Error("--long-prefill-token-threshold is {}; it must be at least 0 (off)", c.long_prefill_token_threshold);
  }
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config)
    : config_((check(config), std::move(config))),
      max_running_(std::min(config_.max_num_seqs, config_.max_num_batched_tokens)),
      watermark_(config_.n_blocks / kWatermarkShare),
      blocks_(config_.n_blocks, config_.block_tokens, config_.prefix_caching, config_.hash_seed) {}

std::optional<std::string> Scheduler::reason_against(const Request& request) const {
  const auto n = static_cast<int64_t>(request.prompt.size());
  if (n == 0) return "the prompt is empty";
  if (n + 1 > config_.max_model_len) {
    return fmt::format("the prompt has {} tokens; the context of {} tokens leaves room for at most {}", n,
                       config_.max_model_len, config_.max_model_len - 1);
  }
  if (const int64_t room = config_.n_blocks * config_.block_tokens; n + 1 > room) {
    return fmt::format(
        "the prompt has {} tokens, {} blocks with the first of the answer; the KV pool has {} ({} tokens)", n,
        blocks_.blocks_for(n + 1), config_.n_blocks, room);
  }
  if (!config_.chunked_prefill && n > config_.max_num_batched_tokens) {
    return fmt::format("the prompt has {} tokens; without chunked prefill a step takes at most {}", n,
                       config_.max_num_batched_tokens);
  }
  if (request.sampling.max_tokens < -1) {
    return fmt::format("max_tokens is {}; it must be at least 0, or -1 for what is left of the context",
                       request.sampling.max_tokens);
  }
  if (config_.vocab_size > 0) {
    const auto in_vocabulary = [&](int32_t token) { return token >= 0 && token < config_.vocab_size; };
    const auto bad = std::find_if_not(request.prompt.begin(), request.prompt.end(), in_vocabulary);
    if (bad != request.prompt.end()) {
      return fmt::format("prompt token {} at position {} is outside the vocabulary of {}", *bad,
                         bad - request.prompt.begin(), config_.vocab_size);
    }
  }
  if (config_.max_waiting > 0 && waiting_.size() >= static_cast<size_t>(config_.max_waiting)) {
    return fmt::format("the queue is full: {} requests wait, {} may", waiting_.size(), config_.max_waiting);
  }
  return std::nullopt;
}

std::optional<std::string> Scheduler::add(Request request) {
  if (auto reason = reason_against(request)) {
    ++counts_.rejected;
    return reason;
  }
  const int64_t id = request.id.value;
  auto s = std::make_unique<Sequence>(std::move(request));
  const int64_t asked = s->request.sampling.max_tokens;
  s->max_tokens = config_.max_model_len;
  if (asked >= 0) s->max_tokens = std::min(s->max_tokens, s->n_prompt + asked);
  waiting_.push_back(s.get());
  const bool fresh = sequences_.emplace(id, std::move(s)).second;
  BRAID_CHECK(fresh, "request id {} is in use", id);
  return std::nullopt;
}

void Scheduler::abort(RequestId id) {
  const auto found = sequences_.find(id.value);
  if (found == sequences_.end()) return;
  Sequence& s = *found->second;
  if (s.in_flight) {
    s.aborted = true;
    return;
  }
  if (s.row.blocks.empty()) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &s));
    head_lacks_blocks_ = false;
  } else {
    running_.erase(std::find(running_.begin(), running_.end(), &s));
  }
  finish(s, FinishReason::kAborted, ended_.emplace_back());
  sequences_.erase(found);
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = counts_;
  stats.steps = plan_.step;
  stats.n_waiting = static_cast<int64_t>(waiting_.size());
  stats.n_running = static_cast<int64_t>(running_.size());
  stats.blocks_total = blocks_.n_blocks();
  stats.blocks_used = blocks_.n_blocks() - blocks_.n_free();
  stats.blocks_cached = blocks_.pool().n_cached();
  return stats;
}

void Scheduler::held_tokens(HeldTokens& held) const {
  BRAID_CHECK(!under_way_, "the block tables are lent to the plan of step {}", plan_.step);
  held.computed.clear();
  held.n_shared = blocks_.n_free() - blocks_.n_blocks();
  for (const Sequence* s : running_) {
    held.computed.push_back(s->computed);
    held.n_shared += static_cast<int64_t>(s->row.blocks.size());
  }
}

bool Scheduler::reset_prefix_cache() {
  if (!running_.empty()) return false;
  blocks_.clear();
  return true;
}

SequenceView Scheduler::view(size_t index) const {
  const Sequence& s = *planned_.at(index);
  const std::span<const int32_t> all = s.tokens;
  const auto n_prompt = static_cast<size_t>(s.n_prompt);
  return {all.first(n_prompt), all.subspan(n_prompt), s.request.sampling, s.request.constraint.get()};
}

// ---- planning

const StepPlan& Scheduler::plan() {
  BRAID_CHECK(!under_way_, "step {} is planned but not committed", plan_.step);
  under_way_ = true;
  ++plan_.step;
  plan_.forget.clear();
  planned_.clear();
  budget_ = config_.max_num_batched_tokens;
  prefill_planned_ = false;
  const bool prefill_only = prefill_needs_whole_step();
  if (prefill_only) plan_prefills();
  prefill_only_ = !plan_.empty();
  if (!prefill_only_) {
    plan_decodes();
    plan_prefills();
  }
  if (!plan_.empty()) plan_.forget.swap(forget_);
  return plan_;
}

// Whether the next prefill, which cannot be cut, finds no room beside the decodes. It then gets a step of its own,
// every other step at most, so that neither starves.
bool Scheduler::prefill_needs_whole_step() const {
  if (prefill_only_ || (config_.chunked_prefill && config_.exact_chunk == 0)) return false;
  const Sequence* next = nullptr;
  int64_t n_decodes = 0;
  for (const Sequence* s : running_) {
    if (s->left() == 1) {
      ++n_decodes;
    } else if (next == nullptr) {
      next = s;
    }
  }
  if (next == nullptr && may_admit()) next = waiting_.front();
  if (next == nullptr || n_decodes == 0) return false;
  const int64_t whole = config_.exact_chunk > 0 ? std::min<int64_t>(config_.exact_chunk, next->left()) : next->left();
  return whole > budget_ - n_decodes && whole <= budget_;
}

void Scheduler::plan_decodes() {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& s = *running_[i];
    if (s.left() != 1) continue;
    if (!make_room(s)) return;  // it was the last one
    plan_row(s, 1);
  }
}

// Blocks for all tokens of a running sequence. Those that give way stand behind it and are not planned yet; false when
// it came to itself.
bool Scheduler::make_room(Sequence& s) {
  while (!blocks_.grow(s.n_tokens(), s.row.blocks)) {
    Sequence& victim = *running_.back();
    running_.pop_back();
    preempt(victim);
    if (&victim == &s) return false;
  }
  return true;
}

void Scheduler::preempt(Sequence& s) {
  give_back(s);
  s.computed = 0;
  waiting_.push_front(&s);
  ++counts_.preemptions;
}

void Scheduler::plan_prefills() {
  const size_t n_running = running_.size();
  size_t next = 0;
  bool made_way = false;
  while (budget_ > 0) {
    while (next < n_running && running_[next]->left() <= 1) ++next;
    const bool fresh = next == n_running;
    if (fresh && !head_may_start()) return;
    Sequence& s = fresh ? *waiting_.front() : *running_[next++];
    const int64_t computed = fresh ? n_hit() : s.computed;
    const bool ragged = !prefill_planned_;
    int64_t n = chunk(s, computed, ragged);
    if (n == 0) return;
    if (fresh) admit(0);
    if (n < s.left() && !made_way) {  // a long one: the short behind it come first
      made_way = true;
      const int64_t rest = budget_;
      budget_ = (rest + 1) / 2;
      const int64_t half = chunk(s, computed, ragged);
      const int64_t reserved = half > 0 ? half : n;
      budget_ = rest - reserved;
      serve_short();
      budget_ += reserved;
      n = chunk(s, computed, ragged);
    }
    plan_row(s, n);
  }
}

// Serves those waiting that fit whole into the budget, past a few that do not, but past none that was preempted: it
// would lose the blocks it waits for.
void Scheduler::serve_short() {
  size_t skipped = 0;
  for (size_t i = 0; i < waiting_.size() && skipped <= kMaxSkipped && budget_ > 0 && may_admit();) {
    Sequence& s = *waiting_[i];
    const bool has_blocks = find_blocks(s);
    if (!fits_whole(s.n_tokens() - n_hit())) {
      if (s.cached_tokens >= 0) return;
      ++skipped, ++i;
      continue;
    }
    if (!has_blocks) return;
    admit(i);
    plan_row(s, s.left());
  }
}

bool Scheduler::may_admit() const { return !waiting_.empty() && static_cast<int64_t>(running_.size()) < max_running_; }

// Finding out that blocks are lacking can mean hashing a long prompt: not again before something changed.
bool Scheduler::head_may_start() {
  if (!may_admit() || head_lacks_blocks_) return false;
  head_lacks_blocks_ = !find_blocks(*waiting_.front());
  return !head_lacks_blocks_;
}

// The prefix hit of a waiting request, in match_, and whether the pool can give the rest of its table.
// Log-probabilities of the prompt that are still to be reported need every row computed, hence no hit.
bool Scheduler::find_blocks(const Sequence& s) {
  const bool skip = s.request.sampling.prompt_logprobs && s.prompt_logprobs_sent < s.n_prompt - 1;
  blocks_.match(skip ? std::span<const int32_t>() : s.tokens, match_);
  const int64_t spare = running_.empty() ? 0 : watermark_;
  return blocks_.demand(match_, s.n_tokens()) + spare <= blocks_.n_free();
}

int64_t Scheduler::n_hit() const { return static_cast<int64_t>(match_.blocks.size()) * config_.block_tokens; }

// Starts the waiting request that match_ belongs to.
void Scheduler::admit(size_t waiting_index) {
  Sequence& s = *waiting_[waiting_index];
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_index));
  running_.push_back(&s);
  blocks_.allocate(match_, s.n_tokens(), s.row.blocks, s.published);
  s.computed = n_hit();
  if (s.cached_tokens >= 0) return;  // it was preempted; the first time counts
  s.cached_tokens = s.computed;
  counts_.cached_tokens += s.computed;
  counts_.prompt_tokens += s.n_prompt;
}

bool Scheduler::fits_whole(int64_t left) const {
  if (config_.exact_chunk > 0 && left > config_.exact_chunk) return false;
  if (config_.long_prefill_token_threshold > 0 && left > config_.long_prefill_token_threshold) return false;
  return left <= budget_;
}

// Tokens that a prefill gets now when `computed` of its tokens are there already. A chunk that is not the last ends at
// a multiple of the unit, so that the next starts on a block; `ragged` lifts that when it would mean no progress, which
// a step's first prefill must make.
int64_t Scheduler::chunk(const Sequence& s, int64_t computed, bool ragged) const {
  const int64_t left = s.n_tokens() - computed;
  if (config_.exact_chunk > 0) {
    const int64_t n = std::min<int64_t>(left, config_.exact_chunk);
    return n <= budget_ ? n : 0;
  }
  if (!config_.chunked_prefill && s.n_tokens() <= config_.max_num_batched_tokens) return left <= budget_ ? left : 0;
  int64_t n = std::min(left, budget_);
  const int64_t threshold = config_.chunked_prefill ? config_.long_prefill_token_threshold : 0;
  if (threshold > 0) n = std::min(n, threshold);
  if (n == left) return n;
  const int64_t unit = std::max(kMinUnit, config_.block_tokens);
  const int64_t aligned = (computed + n) / unit * unit - computed;
  if (aligned > 0) return aligned;
  return ragged || n == threshold ? n : 0;
}

void Scheduler::plan_row(Sequence& s, int64_t n) {
  BRAID_CHECK(n > 0 && n <= budget_ && n <= s.left(), "{} tokens of {}, budget {}", n, s.left(), budget_);
  budget_ -= n;
  prefill_planned_ |= n > 1;
  PlannedSequence& row = s.row;
  const auto first = s.tokens.begin() + s.computed;
  row.start = TokenPos(s.computed);
  row.tokens.assign(first, first + n);
  row.sample = n == s.left() && s.n_tokens() < s.max_tokens;
  row.all_logits = s.request.all_logits;
  row.prompt_logprobs = s.request.sampling.prompt_logprobs && s.computed + 1 < s.n_prompt;
  s.in_flight = true;
  planned_.push_back(&s);
  plan_.sequences.push_back(std::move(row));
}

// ---- committing

std::vector<Delta>& Scheduler::commit(const StepPlan& plan, StepResult&& result) {
  BRAID_CHECK(under_way_ && plan.step == plan_.step, "step {} is committed, step {} is under way", plan.step,
              plan_.step);
  BRAID_CHECK(result.sequences.size() == planned_.size(), "{} results for {} sequences", result.sequences.size(),
              planned_.size());
  under_way_ = false;
  const size_t n = planned_.size();
  deltas_.resize(n + ended_.size());
  std::move(ended_.begin(), ended_.end(), deltas_.begin() + static_cast<std::ptrdiff_t>(n));
  bool any_ended = !ended_.empty();
  ended_.clear();
  for (size_t i = 0; i < n; ++i) {
    Sequence& s = *planned_[i];
    s.row = std::move(plan_.sequences[i]);
    s.in_flight = false;
    clear(deltas_[i]);
    commit_row(s, std::move(result.sequences[i]), deltas_[i]);
    any_ended |= deltas_[i].finish != FinishReason::kNone;
  }
  plan_.sequences.clear();
  if (any_ended) drop_ended();
  return deltas_;
}

void Scheduler::drop_ended() {
  std::erase_if(running_, [](const Sequence* s) { return s->row.blocks.empty(); });
  for (const Delta& delta : deltas_) {
    if (delta.finish != FinishReason::kNone) sequences_.erase(delta.id.value);
  }
}

void Scheduler::commit_row(Sequence& s, SequenceResult&& result, Delta& delta) {
  if (s.aborted) return finish(s, FinishReason::kAborted, delta);
  const auto n = static_cast<int64_t>(s.row.tokens.size());
  if (result.bad) {
    blocks_.retract(s.row.blocks);
    delta.message = fmt::format("the model gave no number for tokens {} to {}", s.computed, s.computed + n - 1);
    return finish(s, FinishReason::kError, delta);
  }
  s.computed += n;
  blocks_.publish(std::span(s.tokens).first(static_cast<size_t>(s.computed)), s.row.blocks, s.published);
  if (n > 1) head_lacks_blocks_ = false;  // its prefix may have been published
  delta.logits_start = s.row.start.value;
  delta.logits = std::move(result.logits);
  if (s.row.prompt_logprobs) report_prompt_logprobs(s, std::move(result), delta);
  delta.id = s.request.id;
  delta.cached_tokens = s.cached_tokens;
  if (s.row.sample) {
    accept(s, std::move(result.token), delta);
  } else if (s.left() == 0) {
    finish(s, FinishReason::kLength, delta);  // no token was asked for
  }
}

// Positions that were computed again after a preemption are left out, unless logits say where the rows start.
void Scheduler::report_prompt_logprobs(Sequence& s, SequenceResult&& result, Delta& delta) {
  delta.prompt_logprobs = std::move(result.prompt_logprobs);
  const int64_t start = s.row.start.value;
  const auto n = static_cast<int64_t>(delta.prompt_logprobs.size());
  const int64_t again = s.request.all_logits ? 0 : std::clamp<int64_t>(s.prompt_logprobs_sent - start, 0, n);
  delta.prompt_logprobs.erase(delta.prompt_logprobs.begin(), delta.prompt_logprobs.begin() + again);
  delta.logits_start = start + again;
  s.prompt_logprobs_sent = std::max(s.prompt_logprobs_sent, start + n);
}

void Scheduler::accept(Sequence& s, TokenOutput&& output, Delta& delta) {
  const int32_t token = output.token;
  s.tokens.push_back(token);
  ++counts_.generated_tokens;
  delta.tokens.push_back(std::move(output));
  if (is_stop(s, token)) return finish(s, FinishReason::kStop, delta);
  if (s.n_tokens() >= s.max_tokens) return finish(s, FinishReason::kLength, delta);
  if (const int64_t room = config_.n_blocks * config_.block_tokens; s.n_tokens() > room) {
    delta.message = fmt::format("the KV pool holds no more than {} tokens", room);
    return finish(s, FinishReason::kLength, delta);
  }
  if (s.request.constraint) s.request.constraint->advance(token);
}

bool Scheduler::is_stop(const Sequence& s, int32_t token) const {
  const SamplingParams& sampling = s.request.sampling;
  if (s.n_generated() < sampling.min_tokens) return false;
  const auto among = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return (!sampling.ignore_eos && among(config_.eos_token_ids)) || among(sampling.stop_token_ids);
}

void Scheduler::finish(Sequence& s, FinishReason reason, Delta& delta) {
  delta.id = s.request.id;
  delta.finish = reason;
  delta.cached_tokens = std::max<int64_t>(s.cached_tokens, 0);
  give_back(s);
  if (reason == FinishReason::kAborted) ++counts_.aborted;
  if (reason == FinishReason::kStop || reason == FinishReason::kLength) ++counts_.finished;
}

void Scheduler::give_back(Sequence& s) {
  if (s.row.blocks.empty()) return;  // it waits
  blocks_.release(s.row.blocks);
  s.published = {};
  head_lacks_blocks_ = false;
  forget_.push_back(s.request.id);
}

}  // namespace braid
