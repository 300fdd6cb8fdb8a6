#include "runtime/runner.h"

#include <algorithm>

#include "base/error.h"

namespace braid {

std::unique_ptr<Backend> make_backend(const RankSetup& setup) {
  if (setup.config.device == "reference") return make_reference_backend();
  CpuOptions options;
  options.n_threads = setup.threads;
  if (setup.config.cpu_level != "auto") options.level = setup.config.cpu_level;
  return make_cpu_backend(options);
}

Runner::Runner(const RankSetup& setup, int rank, World& world, const WeightSource& source, std::unique_ptr<Backend> backend)
    : setup_(&setup), world_(&world), backend_(std::move(backend)), parallel_(setup.config.layout, rank, world, setup.config.reproducible, setup.context.options),
      reader_(source, setup.compute) {
  shard_ = {setup.config.layout.dcp, setup.context.options.interleave, setup.config.block_size, parallel_.where().dcp};
  const LoadContext context{*backend_, parallel_, reader_, setup.model, setup.compute};
  model_ = make_model(context, setup.max_model_len);
}

int64_t Runner::block_bytes() const {
  int64_t lanes = 0;
  for (const CacheSpec& spec : model_->caches()) lanes += spec.lanes();
  return lanes * setup_->config.block_size * size_of(setup_->kv_dtype);
}

int64_t Runner::agree_on_blocks(int64_t n) {
  Comm& tp = parallel_.tp();
  std::vector<int64_t> all(static_cast<size_t>(tp.size()));
  tp.all_gather(Tensor(all.data(), DType::kI64, {tp.size()}), Tensor(&n, DType::kI64, {1}), "kv_blocks");
  return *std::min_element(all.begin(), all.end());
}

void Runner::allocate_cache(int64_t n_blocks) {
  BRAID_CHECK(caches_.empty(), "the cache is allocated once");
  const int64_t slots = n_blocks * setup_->config.block_size;
  for (const CacheSpec& spec : model_->caches()) {
    KvCache cache;
    cache.k = backend_->alloc(MemoryKind::kCache, setup_->kv_dtype, {slots, spec.heads, spec.k_dim});
    cache.v = spec.v_in_k ? cache.k.columns(0, spec.v_dim)
                          : backend_->alloc(MemoryKind::kCache, setup_->kv_dtype, {slots, spec.heads, spec.v_dim});
    caches_.push_back(cache);
  }
}

Tensor Runner::forward(const StepPlan& plan) {
  world_->set_step(parallel_.rank(), plan.step);
  lower(plan, shard_, step_);
  lower_parts(plan, setup_->rows, shard_, part_step_);
  rows_written_ += step_.rows_written;
  rows_read_ += step_.rows_read - part_step_.rows_unread;
  row_tokens_ += part_step_.row_tokens;
  context_windows_ += part_step_.n_windows;
  backend_->begin_step();
  BatchMeta batch = batch_of(step_, shard_, to_device(step_.ints));
  if (!part_step_.parts.empty()) {
    parts_ = parts_of(part_step_, batch, to_device(part_step_.ints));
    batch.parts = &parts_;
  }
  return model_->forward(batch, caches_);
}

Tensor Runner::to_device(const std::vector<int32_t>& ints) {
  Tensor device = backend_->scratch(DType::kI32, {static_cast<int64_t>(ints.size())});
  backend_->upload(device, ints.data());
  return device;
}

RankCounters Runner::counters() const {
  RankCounters c;
  c.bytes_read = reader_.bytes_read();
  c.weights_bytes = backend_->bytes(MemoryKind::kWeights);
  c.cache_bytes = backend_->bytes(MemoryKind::kCache);
  c.workspace_bytes = backend_->bytes(MemoryKind::kWorkspace) + backend_->bytes(MemoryKind::kScratch);
  c.kv_rows_written = rows_written_;
  c.kv_rows_read = rows_read_;
  c.row_tokens = row_tokens_;
  c.context_windows = context_windows_;
  c.collectives = parallel_.tp().counts();
  c.collectives.insert(parallel_.dcp().counts().begin(), parallel_.dcp().counts().end());
  c.context = model_->context_use();
  return c;
}

}  // namespace braid
