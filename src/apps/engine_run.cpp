#include "apps/engine_run.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "runtime/planning.h"
#include "server/server.h"

namespace braid {

std::unique_ptr<EngineLoop> start_engine(const RankSetup& setup, const Executor::Observer& observer) {
  auto world = make_world({.size = setup.config.layout.world(), .stall_seconds = setup.config.stall_seconds, .gpus = setup.on_gpus()});
  check_weights_fit(setup, world->first_local(), world->n_local());
  auto executor = std::make_unique<Executor>(setup, std::move(world));
  if (!executor->is_driver()) {
    executor->follow();
    return nullptr;
  }
  if (observer) executor->observe(observer);
  const GenerationConfig generation = load_generation_config(setup.config.model, setup.model);
  return std::make_unique<EngineLoop>(std::move(executor), generation.eos_ids);
}

size_t Completions::submit(Request request) {
  const size_t index = shared_->add(request.id = engine_->next_id());
  engine_->submit(std::move(request), sink(index));
  return index;
}

void Completions::submit_together(std::vector<Request> requests) {
  std::vector<EngineLoop::Submission> submissions;
  for (Request& request : requests) {
    const size_t index = shared_->add(request.id = engine_->next_id());
    submissions.push_back({std::move(request), sink(index)});
  }
  engine_->submit_together(std::move(submissions));
}

size_t Completions::Shared::add(RequestId id) {
  std::lock_guard lock(mutex);
  completions.push_back(std::make_unique<Completion>());
  completions.back()->id = id;
  return completions.size() - 1;
}

Engine::Sink Completions::sink(size_t index) const {
  return [shared = shared_, index, vocab = static_cast<size_t>(engine_->vocab_size())](Delta&& d) {
    std::lock_guard lock(shared->mutex);
    Completion& c = *shared->completions[index];
    for (TokenOutput& t : d.tokens) c.tokens.push_back(std::move(t));
    c.cached_tokens = std::max(c.cached_tokens, d.cached_tokens);
    if (d.logits) {
      for (size_t row = 0; row * vocab < d.logits->size(); ++row) {
        const auto first = d.logits->begin() + static_cast<std::ptrdiff_t>(row * vocab);
        c.logits.emplace_back(d.logits_start + static_cast<int64_t>(row), std::vector<float>(first, first + static_cast<std::ptrdiff_t>(vocab)));
      }
    }
    if (d.finish == FinishReason::kNone) return;
    c.finish = d.finish;
    c.message = std::move(d.message);
    shared->ended.notify_all();
  };
}

Completion& Completions::wait(size_t index) {
  std::unique_lock lock(shared_->mutex);
  shared_->ended.wait(lock, [&] { return shared_->completions[index]->finish != FinishReason::kNone; });
  return *shared_->completions[index];
}

const std::string& tokenizer_folder(const EngineConfig& c) { return c.tokenizer.empty() ? c.model : c.tokenizer; }

void default_to_dummy_weights(OptionTable& table, EngineConfig& c) {
  if (!table.asked("load-format") && c.model.ends_with(".json")) c.load_format = "dummy";
}

SamplingParams model_sampling_defaults(const std::string& model_dir) {
  const std::string file = model_dir + "/generation_config.json";
  struct stat s {};
  return ::stat(file.c_str(), &s) == 0 ? sampling_defaults(read_json_file(file)) : sampling_defaults();
}

std::string layout_text(const RankSetup& s) {
  std::string text = s.config.layout.to_string() + " " + name_of(s.compute);
  if (s.weights_active != "none") text += " weights " + s.weights_active;
  if (s.kv_dtype != s.compute) text += std::string(" kv ") + name_of(s.kv_dtype);
  if (s.config.reproducible) text += " reproducible";
  return text;
}

void print_counters(const EngineLoop& engine) {
  const std::vector<RankCounters> ranks = engine.executor().counters();
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankCounters& c = ranks[i];
    log_info("rank {}: read {} B, holds weights {} B, cache {} B, workspace {} B; KV rows written {}, read {}; {} new tokens attended "
             "to rows, {} context windows", i, c.bytes_read, c.weights_bytes, c.cache_bytes, c.workspace_bytes, c.kv_rows_written,
             c.kv_rows_read, c.row_tokens, c.context_windows);
  }
  const EngineStats stats = engine.stats();
  log_info("{} steps, {} of several sequences; {} tokens generated, {} prompt tokens found in the cache, {} preemptions", stats.steps,
           stats.multi_sequence_steps, stats.generated_tokens, stats.cached_tokens, stats.preemptions);
  const ContextUse& use = ranks[0].context;
  if (use.layers > 0) {
    log_info("decode context parallel: {} layers, of these {} with replicated queries, {} with float8 queries and {} projected "
             "before the merge", use.layers, use.replicated_queries, use.fp8_queries, use.projected_before_merge);
    for (const ContextChoice& choice : engine.executor().setup().context.choices) {
      if (!choice.reason.empty()) log_info("{} {}, asked {}: {}", choice.option, choice.active, choice.asked, choice.reason);
    }
  }
  for (const auto& [name, count] : ranks[0].collectives) {
    log_info("rank 0 collective {}: {} calls, {} B", name, count.calls, count.bytes);
  }
}

Json collectives_json(const std::map<std::string, CollectiveCount>& counts) {
  Json collectives = Json::object();
  for (const auto& [name, c] : counts) collectives[name] = {{"calls", c.calls}, {"bytes", c.bytes}};
  return collectives;
}

namespace {

Json counters_of(int rank, const RankCounters& c) {
  return {{"rank", rank},
          {"bytes_read", c.bytes_read},
          {"weights_bytes", c.weights_bytes},
          {"widened_weights", c.widened_weights},
          {"cache_bytes", c.cache_bytes},
          {"workspace_bytes", c.workspace_bytes},
          {"kv_rows_written", c.kv_rows_written},
          {"kv_rows_read", c.kv_rows_read},
          {"row_tokens", c.row_tokens},
          {"context_windows", c.context_windows},
          {"mixed_steps", c.mixed_steps},
          {"context_layers", c.context.layers},
          {"replicated_query_layers", c.context.replicated_queries},
          {"fp8_query_layers", c.context.fp8_queries},
          {"projected_before_merge_layers", c.context.projected_before_merge},
          {"collectives", collectives_json(c.collectives)}};
}

}  // namespace

Json counters_json(int first_rank, const std::vector<RankCounters>& ranks) {
  Json list = Json::array();
  for (size_t i = 0; i < ranks.size(); ++i) list.push_back(counters_of(first_rank + static_cast<int>(i), ranks[i]));
  return list;
}

}  // namespace braid
