#include "runtime/engine_loop.h"

#include <fmt/format.h>

#include <chrono>
#include <random>

#include "base/error.h"
#include "base/log.h"
#include "base/sequence_shard.h"
#include "base/trace.h"

namespace braid {
namespace {
constexpr size_t kRecentSteps = 128;  // what a live view draws
}  // namespace

SchedulerConfig scheduler_config(const RankSetup& s, int64_t n_blocks, std::vector<int32_t> eos_token_ids) {
  SchedulerConfig c;
  c.block_tokens = s.virtual_block();
  c.n_blocks = n_blocks;
  c.max_num_seqs = s.config.max_num_seqs;
  c.max_num_batched_tokens = s.config.max_num_batched_tokens;
  c.max_model_len = std::min(s.max_model_len, n_blocks * c.block_tokens);
  c.prefix_caching = s.config.prefix_caching;
  c.chunked_prefill = s.config.chunked_prefill;
  c.exact_chunk = s.config.prefill_chunk;
  c.long_prefill_token_threshold = s.config.long_prefill_token_threshold;
  c.eos_token_ids = std::move(eos_token_ids);
  c.vocab_size = s.model.vocab;
  c.hash_seed = std::random_device{}();  // prefix hashes must not be predictable from outside
  return c;
}

EngineLoop::EngineLoop(std::unique_ptr<Executor> executor, std::vector<int32_t> eos_token_ids)
    : executor_(std::move(executor)),
      scheduler_(scheduler_config(executor_->setup(), executor_->n_blocks(), std::move(eos_token_ids))),
      max_model_len_(scheduler_.config().max_model_len), vocab_(static_cast<int>(executor_->setup().model.vocab)) {
  publish_stats();
  thread_ = std::thread([this] { loop(); });
}

EngineLoop::~EngineLoop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void EngineLoop::post(Command command) {
  {
    std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(command));
  }
  wake_.notify_one();
}

void EngineLoop::submit(Request request, Sink sink) { post(Submission{std::move(request), std::move(sink)}); }
void EngineLoop::submit_together(std::vector<Submission> submissions) {
  {
    std::lock_guard lock(mutex_);
    for (Submission& s : submissions) inbox_.push_back(std::move(s));
  }
  wake_.notify_one();
}

void EngineLoop::abort(RequestId id) { post(Abortion{id}); }

EngineStats EngineLoop::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

EngineActivity EngineLoop::activity() const {
  const RankSetup& setup = executor_->setup();
  const Layout& layout = setup.config.layout;
  EngineActivity a{.tp = layout.tp, .dcp = layout.dcp, .pcp = layout.pcp, .dp = layout.dp,
                   .interleave = setup.context.options.interleave, .ranks = {}, .steps = {}};
  HeldTokens held;
  EngineStats stats;
  {
    std::lock_guard lock(mutex_);
    held = held_;
    stats = stats_;
    a.steps.assign(recent_steps_.begin(), recent_steps_.end());
  }
  const int64_t block_rows = setup.config.block_size;
  std::vector<int64_t> rows_of(static_cast<size_t>(layout.dcp));
  for (int owner = 0; owner < layout.dcp; ++owner) {
    const SequenceShard shard{layout.dcp, a.interleave, setup.config.block_size, owner};
    for (const int64_t n : held.computed) rows_of[static_cast<size_t>(owner)] += shard.local_length(n);
  }
  for (int rank = 0; rank < layout.world(); ++rank) {
    const int owner = place_of(layout, rank).dcp;
    a.ranks.push_back({.rank = rank, .owner = owner,
                       .rows_used = rows_of[static_cast<size_t>(owner)] - held.n_shared * block_rows,
                       .rows_cached = stats.blocks_cached * block_rows, .rows_total = stats.blocks_total * block_rows});
  }
  return a;
}

// A rank or peer that is lost while no step runs is known to the world alone.
std::string EngineLoop::failure() const {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return failure_;
  }
  return executor_->world_failure();
}

bool EngineLoop::reset_prefix_cache() {
  std::promise<bool> done;
  std::future<bool> answer = done.get_future();
  post(CacheReset{std::move(done)});
  return answer.get();
}

bool EngineLoop::take_commands() {
  std::vector<Command> commands;
  {
    std::unique_lock lock(mutex_);
    if (scheduler_.idle()) wake_.wait(lock, [&] { return stopping_ || !inbox_.empty(); });
    if (stopping_) return false;
    commands.swap(inbox_);
  }
  for (Command& command : commands) {
    std::visit([this](auto& c) { apply(std::move(c)); }, command);
  }
  return true;
}

void EngineLoop::apply(Submission&& s) {
  const RequestId id = s.request.id;
  Delta end{.id = id, .tokens = {}, .finish = FinishReason::kRejected, .message = {}, .cached_tokens = 0, .logits_start = 0,
            .logits = nullptr, .prompt_logprobs = {}};
  if (const std::string why = failure(); !why.empty()) {
    end.finish = FinishReason::kError;
    end.message = why;
    return s.sink(std::move(end));
  }
  if (auto reason = scheduler_.add(std::move(s.request))) {
    end.message = *reason;
    return s.sink(std::move(end));
  }
  sinks_.emplace(id.value, std::move(s.sink));
}

void EngineLoop::apply(Abortion&& a) { scheduler_.abort(a.id); }
void EngineLoop::apply(CacheReset&& r) { r.done.set_value(scheduler_.reset_prefix_cache()); }

void EngineLoop::loop() {
  name_trace_thread("engine, rank 0");
  while (take_commands()) {
    publish_stats();  // what waits is seen at once, not a step later
    if (!scheduler_.idle()) step();
  }
  end_all(FinishReason::kAborted, "the engine is stopping");
  std::lock_guard lock(mutex_);
  for (Command& command : inbox_) {
    if (auto* reset = std::get_if<CacheReset>(&command)) reset->done.set_value(false);
  }
}

void EngineLoop::step() {
  const StepPlan& plan = [&]() -> const StepPlan& {
    const TraceSpan span("schedule");
    return scheduler_.plan();
  }();
  StepResult result;
  if (!plan.empty()) {
    sampling_.clear();
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      sampling_.push_back(sampling_row(scheduler_.view(i), plan.sequences[i]));
    }
    const auto start = std::chrono::steady_clock::now();
    try {
      result = executor_->run(plan, sampling_);
    } catch (const std::exception& e) {
      return fail(e.what());
    }
    last_step_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    multi_sequence_steps_ += plan.sequences.size() > 1;
    record_step(plan);
  }
  const TraceSpan span("commit", plan.step);
  std::vector<Delta>& deltas = scheduler_.commit(plan, std::move(result));
  publish_stats();  // first: whoever hears that a request has ended finds it counted
  deliver(deltas);
}

SamplingRow EngineLoop::sampling_row(const SequenceView& v, const PlannedSequence& s) const {
  const SamplingParams& p = v.sampling;
  SamplingRow row;
  row.temperature = p.temperature;
  row.top_p = p.top_p;
  row.min_p = p.min_p;
  row.top_k = p.top_k;
  row.seed = p.seed;
  row.position = s.start.value + static_cast<int64_t>(s.tokens.size());
  row.presence_penalty = p.presence_penalty;
  row.frequency_penalty = p.frequency_penalty;
  row.repetition_penalty = p.repetition_penalty;
  row.prompt = v.prompt;
  row.generated = v.generated;
  row.logit_bias = p.logit_bias;
  if (static_cast<int>(v.generated.size()) < p.min_tokens) row.banned = scheduler_.config().eos_token_ids;
  if (v.constraint) row.allowed = v.constraint->mask();
  row.n_top_logprobs = p.n_top_logprobs;
  return row;
}

void EngineLoop::deliver(std::vector<Delta>& deltas) {
  for (Delta& d : deltas) {
    const auto it = sinks_.find(d.id.value);
    if (it == sinks_.end()) continue;
    const bool last = d.finish != FinishReason::kNone;
    it->second(std::move(d));
    if (last) sinks_.erase(it);
  }
}

void EngineLoop::fail(const std::string& reason) {
  log_error("the engine stops: {}", reason);
  {
    std::lock_guard lock(mutex_);
    failure_ = reason;
  }
  end_all(FinishReason::kError, reason);
  std::unique_lock lock(mutex_);
  while (!stopping_) {  // every later request ends at once with the reason
    wake_.wait(lock, [&] { return stopping_ || !inbox_.empty(); });
    std::vector<Command> commands;
    commands.swap(inbox_);
    lock.unlock();
    for (Command& command : commands) {
      if (auto* s = std::get_if<Submission>(&command)) apply(std::move(*s));
      if (auto* r = std::get_if<CacheReset>(&command)) r->done.set_value(false);
    }
    lock.lock();
  }
}

void EngineLoop::end_all(FinishReason reason, const std::string& message) {
  for (auto& [id, sink] : sinks_) {
    Delta d;
    d.id = RequestId(id);
    d.finish = reason;
    d.message = message;
    sink(std::move(d));
  }
  sinks_.clear();
}

void EngineLoop::record_step(const StepPlan& plan) {
  EngineActivity::Step step{.number = plan.step, .seconds = last_step_seconds_, .prefill_tokens = 0, .decode_tokens = 0};
  for (const PlannedSequence& s : plan.sequences) {
    const auto n = static_cast<int64_t>(s.tokens.size());
    (n > 1 ? step.prefill_tokens : step.decode_tokens) += n;
  }
  std::lock_guard lock(mutex_);
  recent_steps_.push_back(step);
  if (recent_steps_.size() > kRecentSteps) recent_steps_.pop_front();
}

void EngineLoop::publish_stats() {
  const SchedulerStats s = scheduler_.stats();
  scheduler_.held_tokens(held_now_);
  std::lock_guard lock(mutex_);
  std::swap(held_, held_now_);
  stats_ = {.steps = s.steps, .multi_sequence_steps = multi_sequence_steps_, .n_waiting = s.n_waiting, .n_running = s.n_running,
            .blocks_total = s.blocks_total, .blocks_used = s.blocks_used, .blocks_cached = s.blocks_cached, .prompt_tokens = s.prompt_tokens,
            .generated_tokens = s.generated_tokens, .cached_tokens = s.cached_tokens, .preemptions = s.preemptions,
            .aborted = s.aborted, .rejected = s.rejected, .finished = s.finished, .last_step_seconds = last_step_seconds_};
}

std::vector<Engine::OptionState> EngineLoop::options() const {
  const RankSetup& s = executor_->setup();
  std::vector<OptionState> all;
  auto say = [&](const char* option, const std::string& asked, const std::string& active, const std::string& reason = "") {
    all.push_back({option, asked, active, reason});
  };
  say("dtype", s.config.dtype, name_of(s.compute), s.config.dtype == "auto" ? "the checkpoint's" : "");
  say("quantization", s.config.quantization, s.weights_active, s.weights_reason);
  say("kv-cache-dtype", s.config.kv_cache_dtype, name_of(s.kv_dtype), s.config.kv_cache_dtype == "auto" ? "the activation type" : "");
  say("max-model-len", s.config.max_model_len, std::to_string(max_model_len_),
      max_model_len_ < s.max_model_len ? "what the KV cache holds" : "");
  say("num-kv-blocks", s.config.num_kv_blocks ? std::to_string(s.config.num_kv_blocks) : "auto", std::to_string(executor_->n_blocks()),
      s.config.num_kv_blocks ? "" : "from the memory budget");
  say("layout", s.config.layout.to_string(), s.config.layout.to_string());
  say("block-size", std::to_string(s.config.block_size), std::to_string(s.virtual_block()),
      s.config.layout.dcp > 1 ? "tokens of a block over all ranks of a group: the unit of prefix matches" : "");
  for (const ContextChoice& choice : s.context.choices) say(choice.option.c_str(), choice.asked, choice.active, choice.reason);
  say("device", s.config.device, s.device, s.config.device == "auto" && s.device == "cpu" ? "no GPU is usable here" : "");
  say("cuda-graph-sizes", s.config.graph_sizes.empty() ? "auto" : s.config.graph_sizes,
      s.graph_sizes.empty() ? "off" : fmt::format("{} sizes up to {}", s.graph_sizes.size(), s.graph_sizes.back()), s.graph_reason);
  say("threads", std::to_string(s.config.threads), std::to_string(s.threads));
  say("enable-prefix-caching", s.config.prefix_caching ? "on" : "off", s.config.prefix_caching ? "on" : "off");
  say("reproducible", s.config.reproducible ? "on" : "off", s.config.reproducible ? "on" : "off");
  return all;
}

}  // namespace braid
