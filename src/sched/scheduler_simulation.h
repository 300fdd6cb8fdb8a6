// For tests: a scheduler driven by a model that needs no arithmetic. The model's "KV row" of a token is a hash of the
// whole history up to it, computed from the row before as found *through the block table*; the next token is that hash
// modulo the vocabulary. So a block lost, shared wrongly, overwritten or taken from another history changes the output.
// The rank reads the plan from its wire form. Every violated rule throws with its reason.
#pragma once
#include <fmt/core.h>

#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "sched/scheduler.h"

namespace braid {

inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

class FakeModel {
 public:
  static constexpr int32_t kVocab = 97;

  FakeModel(int64_t n_blocks, int64_t block_tokens)
      : block_tokens_(block_tokens), kv_(static_cast<size_t>(n_blocks * block_tokens)) {}

  static uint64_t append(uint64_t history, int32_t token) {
    uint64_t x = (history ^ static_cast<uint64_t>(token + 1)) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    return x * 0xbf58476d1ce4e5b9u | 1;
  }
  static int32_t next(uint64_t history) { return static_cast<int32_t>((history >> 17) % kVocab); }
  // What a request alone would say.
  static std::vector<int32_t> continuation(const std::vector<int32_t>& prompt, int64_t n) {
    uint64_t h = 0;
    for (const int32_t token : prompt) h = append(h, token);
    std::vector<int32_t> out;
    for (; n > 0; --n) {
      out.push_back(next(h));
      h = append(h, out.back());
    }
    return out;
  }

  StepResult run(const StepPlan& sent, const Scheduler& scheduler) {
    const StepPlan plan = deserialize_plan(serialize(sent));
    require(plan == sent, "the wire form loses something");
    for (const RequestId id : plan.forget) position_.erase(id);
    StepResult result;
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      result.sequences.push_back(row(plan.sequences[i], scheduler.view(i), scheduler.blocks()));
    }
    return result;
  }

 private:
  uint64_t& kv(const PlannedSequence& row, int64_t position) {
    const BlockId block = row.blocks.at(static_cast<size_t>(position / block_tokens_));
    return kv_.at(static_cast<size_t>(block.value * block_tokens_ + position % block_tokens_));
  }

  SequenceResult row(const PlannedSequence& row, const SequenceView& view, const BlockCache& blocks) {
    const int64_t start = row.start.value;
    const auto n = static_cast<int64_t>(row.tokens.size());
    const std::string who = fmt::format("request {} at {}: ", row.id.value, start);
    std::vector<int32_t> history(view.prompt.begin(), view.prompt.end());
    history.insert(history.end(), view.generated.begin(), view.generated.end());
    const auto known = position_.find(row.id);
    if (known == position_.end()) {
      require(start % block_tokens_ == 0, who + "a fresh sequence starts inside a block");
    } else {
      require(start == known->second, who + fmt::format("expected {}", known->second));
    }
    position_[row.id] = start + n;
    uint64_t h = 0;
    for (int64_t i = 0; i < start; ++i) {
      h = append(h, history.at(static_cast<size_t>(i)));
      require(kv(row, i) == h, who + fmt::format("row {} of its cache holds something else", i));
    }
    SequenceResult result;
    for (int64_t i = start; i < start + n; ++i) {
      const int32_t token = row.tokens[static_cast<size_t>(i - start)];
      require(token == history.at(static_cast<size_t>(i)), who + "planned another token than it has");
      const BlockId block = row.blocks.at(static_cast<size_t>(i / block_tokens_));
      require(blocks.pool().refs(block) == 1, who + "writes into a shared block");
      h = append(h, token);
      kv(row, i) = h;
      if (row.prompt_logprobs && i + 1 < static_cast<int64_t>(view.prompt.size())) {
        result.prompt_logprobs.push_back({view.prompt[static_cast<size_t>(i + 1)], static_cast<float>(i + 1), {}});
      }
    }
    if (row.sample) result.token = {next(h), -1.0f, {}};
    if (row.all_logits) result.logits = std::make_shared<const std::vector<float>>(n, 0.5f);
    return result;
  }

  int64_t block_tokens_;
  std::vector<uint64_t> kv_;
  std::map<RequestId, int64_t> position_;  // what a rank knows per request: computed tokens
};

struct Outcome {
  std::vector<int32_t> prompt, tokens;
  std::vector<TokenOutput> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::string message;
  int64_t cached_tokens = -1;
  int64_t n_deltas = 0;
  int64_t first_token_step = -1;
};

class Simulation {
 public:
  explicit Simulation(const SchedulerConfig& config)
      : scheduler(config), model_(config.n_blocks, config.block_tokens), config_(config) {}

  Scheduler scheduler;
  std::map<int64_t, Outcome> outcomes;
  std::function<void(const StepPlan&)> on_plan = [](const StepPlan&) {};  // between plan and run
  std::set<int64_t> poisoned;                                             // requests whose next row is bad

  std::optional<std::string> add(
      int64_t id, std::vector<int32_t> prompt, SamplingParams sampling = {},
      std::function<void(Request&)> change = [](Request&) {}) {
    Request request;
    request.id = RequestId(id);
    request.prompt = prompt;
    request.sampling = std::move(sampling);
    change(request);
    auto reason = scheduler.add(std::move(request));
    if (!reason) outcomes[id].prompt = std::move(prompt);
    return reason;
  }

  // One step; returns the plan that was run.
  StepPlan step() {
    const StepPlan& plan = scheduler.plan();
    const StepPlan copy = plan;
    check_plan(copy);
    on_plan(copy);
    StepResult result = model_.run(plan, scheduler);
    for (size_t i = 0; i < copy.sequences.size(); ++i) {
      result.sequences[i].bad = poisoned.erase(copy.sequences[i].id.value) > 0;
    }
    for (Delta& delta : scheduler.commit(plan, std::move(result))) take(delta, copy.step);
    check_blocks();
    return copy;
  }

  void run(int max_steps = 100000) {
    for (; !scheduler.idle(); --max_steps) {
      require(max_steps > 0, "it does not end");
      step();
    }
    require(scheduler.stats().blocks_used == 0, "blocks are lost");
  }

 private:
  void check_plan(const StepPlan& plan) {
    require(plan.n_tokens() <= config_.max_num_batched_tokens, "the token budget is exceeded");
    require(plan.sequences.size() <= static_cast<size_t>(config_.max_num_seqs), "too many sequences");
    const SchedulerStats stats = scheduler.stats();
    require(!plan.empty() || stats.n_waiting + stats.n_running == 0, "nothing is planned though there is work");
    for (const RequestId id : plan.forget)
      require(tables_.erase(id.value) + ended_.erase(id.value) == 1, "wrongly forgotten");
    std::set<int64_t> ids;
    for (const PlannedSequence& row : plan.sequences) {
      require(ids.insert(row.id.value).second, "planned twice in a step");
      require(!row.tokens.empty() && !outcome_ended(row.id.value), "an ended request is planned");
      const int64_t end = row.start.value + static_cast<int64_t>(row.tokens.size());
      require(static_cast<int64_t>(row.blocks.size()) * config_.block_tokens >= end, "the block table is too short");
      tables_[row.id.value] = row.blocks;
    }
    require(plan.empty() || stats.n_running == static_cast<int64_t>(tables_.size()),
            "a running sequence was never planned");
    require(stats.n_running <= config_.max_num_seqs, "too many run");
  }

  bool outcome_ended(int64_t id) const { return outcomes.at(id).finish != FinishReason::kNone; }

  void take(Delta& delta, int64_t step) {
    Outcome& o = outcomes.at(delta.id.value);
    require(o.finish == FinishReason::kNone, "a delta after the last");
    ++o.n_deltas;
    if (!delta.tokens.empty() && o.tokens.empty()) o.first_token_step = step;
    for (TokenOutput& t : delta.tokens) o.tokens.push_back(t.token);
    for (TokenOutput& t : delta.prompt_logprobs) o.prompt_logprobs.push_back(std::move(t));
    require(o.cached_tokens < 0 || o.cached_tokens == delta.cached_tokens, "cached_tokens changes");
    o.cached_tokens = delta.cached_tokens;
    o.finish = delta.finish;
    o.message = delta.message;
    if (delta.finish != FinishReason::kNone && tables_.erase(delta.id.value) > 0) ended_.insert(delta.id.value);
  }

  // Every block is held by exactly the tables that name it.
  void check_blocks() const {
    std::map<int64_t, int> held;
    for (const auto& [id, table] : tables_) {
      for (const BlockId block : table) ++held[block.value];
    }
    const BlockPool& pool = scheduler.blocks().pool();
    for (int64_t b = 0; b < pool.n_blocks(); ++b) {
      const auto found = held.find(b);
      require(pool.refs(BlockId(b)) == (found == held.end() ? 0 : found->second), "a block's holders are miscounted");
    }
    require(pool.n_free() == pool.n_blocks() - static_cast<int64_t>(held.size()), "the free blocks are miscounted");
  }

  FakeModel model_;
  SchedulerConfig config_;
  std::map<int64_t, std::vector<BlockId>> tables_;  // of running sequences, as the plans showed them
  std::set<int64_t> ended_;                         // had blocks, not yet forgotten
};

}  // namespace braid
