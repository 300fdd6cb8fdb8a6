// The scheduler under random loads and configurations, with the simulation's fake model: every request ends, says what
// it would say alone, and every rule that the simulation checks holds in every step.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <random>

#include "sched/scheduler_simulation.h"

namespace braid {
namespace {

struct Load {
  SchedulerConfig config;
  uint64_t seed = 0;
  int n_requests = 0;
  bool accidents = false;  // aborts and bad rows
};

std::ostream& operator<<(std::ostream& out, const Load& load) {
  const SchedulerConfig& c = load.config;
  return out << fmt::format(
             "block {} x {}, seqs {}, budget {}, context {}, prefix {}, chunked {}, exact {}, threshold {}, seed {}, "
             "{} requests, accidents {}",
             c.block_tokens, c.n_blocks, c.max_num_seqs, c.max_num_batched_tokens, c.max_model_len, c.prefix_caching,
             c.chunked_prefill, c.exact_chunk, c.long_prefill_token_threshold, load.seed, load.n_requests,
             load.accidents);
}

rc::Gen<Load> loads() {
  return rc::gen::exec([] {
    Load load;
    SchedulerConfig& c = load.config;
    c.block_tokens = *rc::gen::element<int64_t>(1, 2, 4, 16, 48, 64, 128);
    // Pools from a single prompt's worth to several: the tight ones preempt.
    c.n_blocks = std::max<int64_t>(2, *rc::gen::inRange<int64_t>(40, 800) / c.block_tokens);
    c.max_num_seqs = *rc::gen::inRange(1, 9);
    c.max_num_batched_tokens = *rc::gen::element(1, 2, 7, 32, 64, 100, 200, 512);
    c.max_model_len = *rc::gen::inRange<int64_t>(20, 600);
    c.prefix_caching = *rc::gen::weightedElement<bool>({{3, true}, {1, false}});
    c.chunked_prefill = *rc::gen::weightedElement<bool>({{3, true}, {1, false}});
    if (c.chunked_prefill && *rc::gen::arbitrary<bool>()) {
      c.exact_chunk = *rc::gen::inRange(0, c.max_num_batched_tokens + 1);
    }
    c.long_prefill_token_threshold = *rc::gen::element(0, 0, 5, 64);
    c.eos_token_ids = {11};
    c.vocab_size = FakeModel::kVocab;
    load.seed = *rc::gen::arbitrary<uint64_t>();
    load.n_requests = *rc::gen::inRange(1, 40);
    load.accidents = *rc::gen::arbitrary<bool>();
    return load;
  });
}

// Prompts share prefixes with earlier prompts and answers, as conversations do.
std::vector<int32_t> make_prompt(std::mt19937_64& random, const Simulation& sim, int64_t max_tokens) {
  std::vector<int32_t> prompt;
  if (!sim.outcomes.empty() && random() % 3 != 0) {
    const auto& other = std::next(sim.outcomes.begin(), random() % sim.outcomes.size())->second;
    prompt = other.prompt;
    prompt.insert(prompt.end(), other.tokens.begin(), other.tokens.end());
    prompt.resize(random() % (prompt.size() + 1));
  }
  const auto n = static_cast<int64_t>(random() % (random() % 4 == 0 ? max_tokens : 40)) + 1;
  for (int64_t i = 0; i < n; ++i) prompt.push_back(static_cast<int32_t>(random() % FakeModel::kVocab));
  return prompt;
}

// Generated tokens up to and including the end that the rules demand.
std::vector<int32_t> expected_tokens(const Outcome& o, const SamplingParams& sampling, const SchedulerConfig& config,
                                     FinishReason& reason) {
  const auto n_prompt = static_cast<int64_t>(o.prompt.size());
  int64_t n = config.max_model_len - n_prompt;
  if (sampling.max_tokens >= 0) n = std::min<int64_t>(n, sampling.max_tokens);
  n = std::min(n, config.n_blocks * config.block_tokens + 1 - n_prompt);
  std::vector<int32_t> tokens = FakeModel::continuation(o.prompt, n);
  reason = FinishReason::kLength;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (static_cast<int>(i) + 1 < sampling.min_tokens) continue;
    if (tokens[i] != 23 && (sampling.ignore_eos || tokens[i] != 11)) continue;
    tokens.resize(i + 1);
    reason = FinishReason::kStop;
  }
  return tokens;
}

bool starts_with(const std::vector<int32_t>& whole, const std::vector<int32_t>& part) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

void check_exact_chunks(const StepPlan& plan, const SchedulerConfig& config, const Simulation& sim) {
  for (const PlannedSequence& row : plan.sequences) {
    const Outcome& o = sim.outcomes.at(row.id.value);
    const auto end = row.start.value + static_cast<int64_t>(row.tokens.size());
    const bool last = end == static_cast<int64_t>(o.prompt.size() + o.tokens.size());
    if (!last) require(static_cast<int>(row.tokens.size()) == config.exact_chunk, "a chunk is not exact");
    require(static_cast<int>(row.tokens.size()) <= config.exact_chunk, "a chunk is too large");
  }
}

// Plays the load; returns every plan's bytes.
std::vector<std::vector<std::byte>> play(const Load& load, Simulation& sim) {
  std::mt19937_64 random(load.seed);
  std::vector<std::vector<std::byte>> plans;
  std::map<int64_t, SamplingParams> sampling;
  std::set<int64_t> disturbed;
  if (load.config.exact_chunk > 0) {
    sim.on_plan = [&](const StepPlan& plan) { check_exact_chunks(plan, load.config, sim); };
  }
  int64_t n_added = 0, n_rejected = 0;
  for (int64_t id = 1; id <= load.n_requests || !sim.scheduler.idle();) {
    while (id <= load.n_requests && (random() % 3 == 0 || sim.scheduler.idle())) {
      SamplingParams s;
      s.max_tokens = static_cast<int>(random() % 90) - 1;
      s.min_tokens = static_cast<int>(random() % 4);
      s.ignore_eos = random() % 2 == 0;
      s.stop_token_ids = {23};
      s.prompt_logprobs = random() % 5 == 0;
      const bool all_logits = random() % 5 == 0;
      sampling[id] = s;
      auto prompt = make_prompt(random, sim, load.config.max_model_len);
      sim.add(id++, std::move(prompt), s, [&](Request& r) { r.all_logits = all_logits; }) ? ++n_rejected : ++n_added;
    }
    if (load.accidents && random() % 8 == 0) {
      const auto victim = static_cast<int64_t>(random() % static_cast<uint64_t>(id));
      disturbed.insert(victim);
      if (random() % 3 != 0) {
        sim.scheduler.abort(RequestId(victim));
      } else if (sim.outcomes.contains(victim) && sim.outcomes[victim].finish == FinishReason::kNone) {
        sim.poisoned.insert(victim);
      }
    }
    require(plans.size() < 100000, "it does not end");
    if (!sim.scheduler.idle()) plans.push_back(serialize(sim.step()));
  }
  const SchedulerStats stats = sim.scheduler.stats();
  require(stats.blocks_used == 0 && stats.n_running == 0 && stats.n_waiting == 0, "something is left");
  require(stats.rejected == n_rejected && static_cast<int64_t>(sim.outcomes.size()) == n_added,
          "requests are miscounted");
  for (const auto& [id, o] : sim.outcomes) {
    FinishReason reason = FinishReason::kNone;
    const auto expected = expected_tokens(o, sampling[id], load.config, reason);
    if (o.finish == reason && o.tokens == expected) {
      if (!sampling[id].prompt_logprobs) continue;
      require(o.prompt_logprobs.size() >= o.prompt.size() - 1, "prompt log-probabilities are missing");
      continue;
    }
    require(disturbed.contains(id), fmt::format("request {} ended with {} after {} tokens, not {} after {}", id,
                                                name_of(o.finish), o.tokens.size(), name_of(reason), expected.size()));
    require(o.finish == FinishReason::kAborted || o.finish == FinishReason::kError,
            "a disturbed request did not end so");
    require(starts_with(expected, o.tokens), "a disturbed request said something else");
  }
  return plans;
}

RC_GTEST_PROP(SchedulerProperty, EveryRequestEndsAndSaysWhatItWouldSayAlone, ()) {
  const Load load = *loads();
  Simulation sim(load.config);
  play(load, sim);
  RC_TAG(sim.scheduler.stats().preemptions > 0 ? "preempted" : "not preempted");
  RC_CLASSIFY(sim.scheduler.stats().cached_tokens > 0, "prefix hits");
  RC_CLASSIFY(sim.scheduler.stats().aborted > 0, "aborted");
}

RC_GTEST_PROP(SchedulerProperty, TheSameCallsGiveTheSamePlansWhateverTheHashSeed, ()) {
  Load load = *loads();
  Simulation one(load.config);
  load.config.hash_seed = *rc::gen::arbitrary<uint64_t>();
  Simulation two(load.config);
  RC_ASSERT(play(load, one) == play(load, two));
}

// With a pool that never evicts, a sequence starts behind the longest prefix that any sequence had computed in a step
// before.
RC_GTEST_PROP(SchedulerProperty, PrefixHitsAreTheLongestThereAre, ()) {
  Load load = *loads();
  SchedulerConfig& c = load.config;
  c.n_blocks = 40 * (600 / c.block_tokens + 2);
  c.prefix_caching = true;
  load.accidents = false;
  std::set<std::vector<int32_t>> computed;  // prefixes that end with a block
  std::map<int64_t, std::vector<int32_t>> content;
  std::set<int64_t> without_hits;
  Simulation sim(c);
  std::mt19937_64 random(load.seed);
  const auto longest = [&](const std::vector<int32_t>& tokens) {
    int64_t n = 0;
    const auto max = (static_cast<int64_t>(tokens.size()) - 1) / c.block_tokens * c.block_tokens;
    while (n < max && computed.contains({tokens.begin(), tokens.begin() + n + c.block_tokens})) n += c.block_tokens;
    return n;
  };
  for (int64_t id = 1; id <= load.n_requests || !sim.scheduler.idle();) {
    if (id <= load.n_requests && (random() % 2 == 0 || sim.scheduler.idle())) {
      SamplingParams s;
      s.max_tokens = static_cast<int>(random() % 20);
      s.prompt_logprobs = random() % 6 == 0;
      if (s.prompt_logprobs) without_hits.insert(id);
      sim.add(id++, make_prompt(random, sim, c.max_model_len), s);
      continue;
    }
    const StepPlan plan = sim.step();
    for (const PlannedSequence& row : plan.sequences) {
      std::vector<int32_t>& tokens = content[row.id.value];
      const Outcome& o = sim.outcomes[row.id.value];
      if (tokens.empty()) {
        const bool skips = without_hits.contains(row.id.value) && o.prompt.size() > 1;
        RC_ASSERT(row.start.value == (skips ? 0 : longest(o.prompt)));
        RC_ASSERT(o.cached_tokens == row.start.value);
        tokens.assign(o.prompt.begin(), o.prompt.begin() + row.start.value);
      }
      tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.end());
    }
    for (const PlannedSequence& row : plan.sequences) {
      const auto& tokens = content[row.id.value];
      for (size_t n = c.block_tokens; n <= tokens.size(); n += c.block_tokens) {
        computed.emplace(tokens.begin(), tokens.begin() + n);
      }
    }
  }
  RC_ASSERT(sim.scheduler.stats().preemptions == 0);
  RC_CLASSIFY(sim.scheduler.stats().cached_tokens > 0, "prefix hits");
}

}  // namespace
}  // namespace braid
