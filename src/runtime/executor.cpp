#include "runtime/executor.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/trace.h"
#include "runtime/context_measure.h"
#include "runtime/memory_budget.h"

namespace braid {
namespace {

enum class Message : uint8_t { kPlan = 1, kStop = 2 };

std::vector<std::byte> control_message(Message kind, std::span<const std::byte> body = {}) {
  std::vector<std::byte> bytes(1 + body.size());
  bytes[0] = static_cast<std::byte>(kind);
  std::copy(body.begin(), body.end(), bytes.begin() + 1);
  return bytes;
}

// A peer's cry (RuntimeFailure) is the echo of what went wrong elsewhere; the rank that failed for a reason of its own
// is the one to report.
void rethrow_first(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr first;
  for (const std::exception_ptr& e : errors) {
    if (!e) continue;
    try {
      std::rethrow_exception(e);
    } catch (const RuntimeFailure&) {
      if (!first) first = e;
    } catch (...) {
      std::rethrow_exception(e);
    }
  }
  if (first) std::rethrow_exception(first);
}

std::string memory_table(int rank, const DeviceUse& u) {
  auto line = [](const char* what, int64_t bytes) { return fmt::format("\n  {:<28} {:>9.3f} GiB", what, static_cast<double>(bytes) / (1 << 30)); };
  return fmt::format("device memory of rank {}, as measured:", rank) + line("in use before", u.before) + line("communicators", u.communicators) +
         line("weights", u.weights) + line("workspace", u.workspace) + line("KV cache", u.cache) + line("graphs", u.graphs) +
         line("free", u.free) + line("total", u.total);
}

}  // namespace

Executor::Executor(RankSetup setup, std::unique_ptr<World> world) : setup_(std::move(setup)), world_(std::move(world)) {
  auto files = setup_.config.load_format == "dummy"
                   ? make_dummy_source(setup_.config.seed, setup_.model.dtype)
                   : open_checkpoint(setup_.config.model, setup_.model.fp8_block_rows, setup_.model.fp8_block_columns);
  set_trace_process(world_->process());
  source_ = std::make_unique<LoadingProgress>(std::move(files), skipped_tensors(setup_.model), world_->n_local());
  const int ranks_here = world_->first_on_host() + world_->n_local(), gpus = setup_.on_gpus() ? cuda_device_count() : ranks_here;
  if (ranks_here > gpus) {
    throw Error("{} ranks on this host need a GPU each, and {} {} visible; use a smaller layout, more hosts, or --device cpu", ranks_here, gpus,
                gpus == 1 ? "is" : "are");
  }
  runners_.resize(static_cast<size_t>(world_->n_local()));
  errors_.resize(runners_.size());
  for (int i = 1; i < world_->n_local(); ++i) threads_.emplace_back([this, i] { rank_loop(i); });
  try {
    start_ranks();
  } catch (...) {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    start_.notify_all();
    for (std::thread& t : threads_) t.join();
    throw;
  }
}

Executor::~Executor() {
  if (is_driver() && world_->failure().empty()) {
    try {
      world_->control_send(control_message(Message::kStop));
    } catch (const RuntimeFailure& e) {
      log_warn("while stopping: {}", e.what());
    }
  }
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  start_.notify_all();
  for (std::thread& t : threads_) t.join();
}

std::unique_ptr<Backend> Executor::make_rank_backend(int local) {
  auto backend = make_backend(setup_, world_->first_on_host() + local);
  world_->use_stream(world_->first_local() + local, backend->stream().handle);
  return backend;
}

void Executor::measure_context() {
  ContextCosts costs;
  on_all_ranks([&](int local) {
    const std::unique_ptr<Backend> backend = make_rank_backend(local);
    const ContextCosts mine = braid::measure_context(setup_, world_->first_local() + local, *world_, *backend);
    if (local == 0) costs = mine;
  });
  settle_context(setup_, costs);
  for (const ContextChoice& c : setup_.context.choices) {
    if (is_driver() && c.asked == "auto" && c.option != "attn-prefill-form") log_info("{} auto is {}; {}", c.option, c.active, c.reason);
  }
}

void Executor::start_ranks() {
  if (setup_.context.to_measure) measure_context();
  on_all_ranks([this](int local) {
    const int rank = world_->first_local() + local;
    runners_[static_cast<size_t>(local)] = std::make_unique<Runner>(setup_, rank, *world_, *source_, make_rank_backend(local));
  });
  source_->done();
  check_coverage();
  phase("weights");
  if (setup_.on_gpus()) on_all_ranks([this](int local) { runners_[static_cast<size_t>(local)]->warm_up(); });
  phase("warm-up");
  size_cache();
  phase("cache");
  on_all_ranks([this](int local) { runners_[static_cast<size_t>(local)]->record_decode_steps(); });
  phase("graphs");
  for (int local = 0; local < world_->n_local(); ++local) {
    const RankCounters c = runners_[static_cast<size_t>(local)]->counters();
    if (c.widened_weights > 0) {
      log_warn("rank {}: {} float8 weights are kept as {}, since the ranks' slices of them cut the checkpoint's blocks",
               world_->first_local() + local, c.widened_weights, name_of(setup_.compute));
    }
    if (c.device.total > 0) log_info("{}", memory_table(world_->first_local() + local, c.device));
  }
}

void Executor::phase(const char* name) {
  const auto now = std::chrono::steady_clock::now();
  phases_.emplace_back(name, std::chrono::duration<double>(now - phase_start_).count());
  phase_start_ = now;
}

void Executor::check_coverage() {
  std::vector<const CheckpointReader*> readers;
  for (const auto& r : runners_) readers.push_back(&r->reader());
  const std::vector<SkipRule> rules = skipped_tensors(setup_.model);
  std::map<std::string, int> skipped;
  for (const SkippedTensor& t : finish_loading(*source_, readers, rules)) ++skipped[t.reason];
  for (const auto& [reason, n] : skipped) log_info("{} tensors left unread: {}", n, reason);
}

void Executor::size_cache() {
  on_all_ranks([&](int local) {
    Runner& runner = *runners_[static_cast<size_t>(local)];
    const int64_t wanted = blocks_for(setup_, runner.block_bytes(), kv_budget(setup_, world_->n_local(), runner.device_memory()));
    const int64_t n = runner.agree_on_blocks(wanted);
    if (local == 0) n_blocks_ = n;
    runner.allocate_cache(n);
  });
}

void Executor::rank_loop(int local) {
  name_trace_thread("rank " + std::to_string(world_->first_local() + local));
  int64_t seen = 0;
  while (true) {
    const std::function<void(int)>* job;
    spin_until([&] { return generation_.load(std::memory_order_acquire) != seen; });
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
      job = job_;
    }
    try {
      (*job)(local);
    } catch (...) {
      errors_[static_cast<size_t>(local)] = std::current_exception();
      world_->fail("a rank failed");
    }
    std::lock_guard lock(mutex_);
    if (--unfinished_ == 0) done_.notify_one();
  }
}

// Waking a thread takes a hundred microseconds. Ranks on GPUs leave their cores free, so they look out for work for as
// long as a step may last, and sleep when nothing is to be done.
template <typename F>
void Executor::spin_until(F done) const {
  if (!setup_.on_gpus()) return;
  constexpr auto kSpin = std::chrono::milliseconds(50);
  const auto start = std::chrono::steady_clock::now();
  while (!done() && std::chrono::steady_clock::now() - start < kSpin) __builtin_ia32_pause();
}

void Executor::on_all_ranks(const std::function<void(int)>& work) {
  if (!threads_.empty()) {
    std::lock_guard lock(mutex_);
    job_ = &work;
    unfinished_ = static_cast<int>(threads_.size());
    ++generation_;
  }
  start_.notify_all();
  try {
    work(0);
  } catch (...) {
    errors_[0] = std::current_exception();
    world_->fail("a rank failed");
  }
  if (!threads_.empty()) {
    spin_until([&] { return unfinished_.load(std::memory_order_acquire) == 0; });
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return unfinished_ == 0; });
  }
  rethrow_first(errors_);
}

StepResult Executor::run(const StepPlan& plan, std::span<const SamplingRow> sampling) {
  if (world_->n_processes() > 1) world_->control_send(control_message(Message::kPlan, serialize(plan)));
  StepResult result;
  plan_ = &plan;
  on_all_ranks([&](int local) {
    Tensor logits = runners_[static_cast<size_t>(local)]->forward(plan);
    if (local > 0) return;
    const TraceSpan span("sample", plan.step);
    result = read_result(plan, sampling, logits);
  });
  // A device that was set free from a wait for a lost peer has computed nothing of worth.
  if (const std::string why = world_->failure(); !why.empty()) throw RuntimeFailure(why);
  return result;
}

void Executor::follow() {
  while (true) {
    const std::vector<std::byte> message = world_->control_receive();
    if (message.empty() || message[0] == static_cast<std::byte>(Message::kStop)) return;
    const StepPlan plan = deserialize_plan(std::span(message).subspan(1));
    on_all_ranks([&](int local) { runners_[static_cast<size_t>(local)]->forward(plan); });
  }
}

void Executor::observe(Observer see) {
  runners_[0]->backend().observer = [this, see = std::move(see)](const char* what, Tensor value) {
    std::vector<std::byte> bytes(static_cast<size_t>(value.n_bytes()));
    runners_[0]->backend().download(bytes.data(), value);
    value.data = bytes.data();
    see(*plan_, what, value);
  };
}

std::vector<RankCounters> Executor::counters() const {
  std::vector<RankCounters> all;
  for (const auto& r : runners_) all.push_back(r->counters());
  return all;
}

}  // namespace braid
