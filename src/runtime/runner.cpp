#include "runtime/runner.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/trace.h"

namespace braid {

std::unique_ptr<Backend> make_backend(const RankSetup& setup, int device) {
  if (setup.device == "reference") return make_reference_backend();
  if (setup.on_gpus()) return make_cuda_backend({.device = device, .reproducible = setup.config.reproducible});
  CpuOptions options;
  options.n_threads = setup.threads;
  if (setup.config.cpu_level != "auto") options.level = setup.config.cpu_level;
  return make_cpu_backend(options);
}

namespace {

DeviceUse use_at_start(const Backend& backend) {
  const DeviceMemory m = backend.device_memory();
  DeviceUse use;
  use.total = m.total;
  use.free = m.free;
  use.before = m.total - m.free;
  return use;
}

}  // namespace

Runner::Runner(const RankSetup& setup, int rank, World& world, const WeightSource& source, std::unique_ptr<Backend> backend)
    : setup_(&setup), world_(&world), backend_(std::move(backend)), use_(use_at_start(*backend_)),
      parallel_(setup.config.layout, rank, world, setup.config.reproducible, setup.context.options),
      reader_(source, setup.compute, backend_.get()) {
  note_use(&DeviceUse::communicators);
  shard_ = {setup.config.layout.dcp, setup.context.options.interleave, setup.config.block_size, parallel_.where().dcp};
  const LoadContext context{*backend_, parallel_, reader_, setup.model, setup.compute, setup.weights};
  model_ = make_model(context, setup.max_model_len);
  backend_->sync();
  note_use(&DeviceUse::weights);
}

void Runner::note_use(int64_t DeviceUse::*what) {
  const int64_t free = backend_->device_memory().free;
  use_.*what += use_.free - free;
  use_.free = free;
}

int64_t Runner::block_bytes() const {
  int64_t lanes = 0;
  for (const CacheSpec& spec : model_->caches()) lanes += spec.lanes();
  return lanes * setup_->config.block_size * size_of(setup_->kv_dtype);
}

// A prompt's first chunk, its last behind as much context as a window holds, and a decode step of the most sequences as
// long as they may get. Their cache is one block in scratch, which every column of every block table names.
void Runner::warm_up() {
  const EngineConfig& c = setup_->config;
  const int64_t chunk = std::min<int64_t>(c.max_num_batched_tokens, setup_->max_model_len);
  const int64_t context = std::min(setup_->max_model_len - chunk, setup_->rows.window_tokens);
  struct Step {
    int64_t n_seqs, n_cached, n_tokens, longest;
  };
  for (const Step& step : {Step{1, 0, chunk, chunk}, Step{1, context, chunk, context + chunk}, Step{c.max_num_seqs, 0, 1, setup_->max_model_len}}) {
    PlannedSequence s;
    s.sample = true;
    s.start = TokenPos(step.n_cached);
    s.tokens.assign(static_cast<size_t>(step.n_tokens), 0);
    s.blocks.assign(static_cast<size_t>(shard_.table_columns(step.n_cached + step.n_tokens)), BlockId(0));
    StepPlan plan;
    plan.sequences.assign(static_cast<size_t>(step.n_seqs), s);
    lower(plan, shard_, step_);
    lower_parts(plan, setup_->rows, shard_, part_step_);
    backend_->begin_step();
    const std::vector<KvCache> caches = make_caches(MemoryKind::kScratch, 1);
    BatchMeta batch = upload_step();
    batch.max_kv_len = static_cast<int>(step.longest);
    model_->forward(batch, caches);
    backend_->sync();
  }
  note_use(&DeviceUse::workspace);
}

int64_t Runner::agree_on_blocks(int64_t n) {
  Comm& tp = parallel_.tp().host();
  std::vector<int64_t> all(static_cast<size_t>(tp.size()));
  tp.all_gather(Tensor(all.data(), DType::kI64, {tp.size()}), Tensor(&n, DType::kI64, {1}), "kv_blocks");
  return *std::min_element(all.begin(), all.end());
}

std::vector<KvCache> Runner::make_caches(MemoryKind kind, int64_t n_blocks) {
  const int64_t slots = n_blocks * setup_->config.block_size;
  auto make = [&](int64_t heads, int64_t lanes) {
    Tensor rows = backend_->alloc(kind, setup_->kv_dtype, {slots, heads, lanes});
    // Padding of recorded steps reads rows that nobody wrote. On the host that would commit pages nobody needs.
    if (use_.total > 0) backend_->fill_zero(rows);
    return rows;
  };
  std::vector<KvCache> caches;
  for (const CacheSpec& spec : model_->caches()) {
    KvCache cache;
    cache.k = make(spec.heads, spec.k_dim);
    cache.v = spec.v_in_k ? cache.k.columns(0, spec.v_dim) : make(spec.heads, spec.v_dim);
    caches.push_back(cache);
  }
  return caches;
}

void Runner::allocate_cache(int64_t n_blocks) {
  BRAID_CHECK(caches_.empty(), "the cache is allocated once");
  caches_ = make_caches(MemoryKind::kCache, n_blocks);
  note_use(&DeviceUse::cache);
}

void Runner::fill_cache() {
  if (setup_->kv_dtype == DType::kF8E4M3) return;
  auto fill = [&](const Tensor& rows, uint64_t key) {
    DummyValues v;
    v.out = rows.data;
    v.type = v.precision = rows.dtype;
    v.key = key;
    v.rows = rows.dim(0);
    v.columns = v.row_step = v.out_stride = rows.stride[0];
    backend_->make_dummy(v);
  };
  for (size_t i = 0; i < caches_.size(); ++i) {
    fill(caches_[i].k, 2 * i);
    if (caches_[i].v.data != caches_[i].k.data) fill(caches_[i].v, 2 * i + 1);
  }
}

void Runner::record_decode_steps() {
  if (setup_->graph_sizes.empty()) return;
  BRAID_CHECK(backend_->can_record(), "the {} backend records nothing", backend_->name());
  recordings_ = std::make_unique<DecodeRecordings>(*backend_, shard_, setup_->graph_sizes, setup_->max_model_len);
  recordings_->record([this](const BatchMeta& b) { return model_->forward(b, caches_); }, [this] { return collective_counts(); });
  backend_->sync();
  note_use(&DeviceUse::graphs);
}

Tensor Runner::forward(const StepPlan& plan) {
  using Clock = std::chrono::steady_clock;
  world_->set_step(parallel_.rank(), plan.step);
  const auto start = Clock::now();
  const int size = recordings_ ? recordings_->size_for(plan) : 0;
  {
    const TraceSpan span("lower", plan.step);
    lower(plan, shard_, step_, size);
    lower_parts(plan, setup_->rows, shard_, part_step_);
  }
  rows_written_ += step_.rows_written;
  rows_read_ += step_.rows_read - part_step_.rows_unread;
  row_tokens_ += part_step_.row_tokens;
  context_windows_ += part_step_.n_windows;
  mixed_steps_ += part_step_.parts.size() > 1;
  const auto prepared = Clock::now();
  const TraceSpan span(size > 0 ? "replay" : "forward", plan.step);
  backend_->begin_step();
  Tensor logits;
  if (size > 0) {
    agree_on_replay(size);
    logits = recordings_->replay(size, step_, static_cast<int>(plan.sequences.size()));
  } else {
    logits = model_->forward(upload_step(), caches_);
  }
  world_->launched(parallel_.rank());
  prepare_seconds_ += std::chrono::duration<double>(prepared - start).count();
  launch_seconds_ += std::chrono::duration<double>(Clock::now() - prepared).count();
  return logits;
}

BatchMeta Runner::upload_step() {
  BatchMeta batch = batch_of(step_, shard_, to_device(step_.ints));
  if (part_step_.parts.empty()) return batch;
  parts_ = parts_of(part_step_, batch, to_device(part_step_.ints));
  batch.parts = &parts_;
  return batch;
}

Tensor Runner::to_device(const std::vector<int32_t>& ints) {
  Tensor device = backend_->scratch(DType::kI32, {static_cast<int64_t>(ints.size())});
  backend_->upload(device, ints.data());
  return device;
}

// The collectives of a replay were agreed on when they were recorded. What is left is that all ranks start the same one.
void Runner::agree_on_replay(int size) {
  Comm& tp = parallel_.tp().host();
  if (tp.size() == 1) return;
  std::vector<int32_t> all(static_cast<size_t>(tp.size()));
  int32_t own = size;
  tp.all_gather(Tensor(all.data(), DType::kI32, {tp.size()}), Tensor(&own, DType::kI32, {1}), "replay");
  for (int r = 0; r < tp.size(); ++r) {
    BRAID_CHECK(all[static_cast<size_t>(r)] == size, "rank {} of the group replays {} sequences, rank {} {}", tp.rank(), size, r,
                all[static_cast<size_t>(r)]);
  }
}

CollectiveCounts Runner::collective_counts() const {
  CollectiveCounts counts = parallel_.tp().counts();
  counts.insert(parallel_.dcp().counts().begin(), parallel_.dcp().counts().end());
  return counts;
}

RankCounters Runner::counters() const {
  RankCounters c;
  c.bytes_read = reader_.bytes_read();
  c.widened_weights = reader_.n_widened();
  c.weights_bytes = backend_->bytes(MemoryKind::kWeights);
  c.cache_bytes = backend_->bytes(MemoryKind::kCache);
  c.workspace_bytes = backend_->bytes(MemoryKind::kWorkspace) + backend_->bytes(MemoryKind::kScratch);
  c.kv_rows_written = rows_written_;
  c.kv_rows_read = rows_read_;
  c.row_tokens = row_tokens_;
  c.context_windows = context_windows_;
  c.mixed_steps = mixed_steps_;
  c.collectives = collective_counts();
  if (recordings_) {
    add_counts(c.collectives, recordings_->replayed(), 1);
    c.replays = recordings_->replays();
    c.recorded_nodes = recordings_->n_nodes();
  }
  c.context = model_->context_use();
  c.prepare_seconds = prepare_seconds_;
  c.launch_seconds = launch_seconds_;
  c.device = use_;
  return c;
}

}  // namespace braid
