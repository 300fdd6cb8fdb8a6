#include "runtime/planning.h"

#include <sys/stat.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "model/slice.h"
#include "runtime/memory_budget.h"
#include "runtime/runner.h"

namespace braid {
namespace {

class CountingBackend final : public Backend {
 public:
  const char* name() const override { return "counting"; }

  Tensor alloc(MemoryKind kind, DType t, std::initializer_list<int64_t> shape) override {
    // Any address that is never read will do, but it must not be null: that means "absent".
    Tensor made(reinterpret_cast<void*>(uintptr_t{64}), t, shape);
    int64_t& bytes = bytes_[static_cast<size_t>(kind)];
    bytes += made.n_bytes();
    if (kind == MemoryKind::kScratch) most_scratch_ = std::max(most_scratch_, bytes);
    return made;
  }
  void begin_step() override { bytes_[static_cast<size_t>(MemoryKind::kScratch)] = 0; }
  ScratchMark scratch_mark() override { return {0, bytes_[static_cast<size_t>(MemoryKind::kScratch)], 0, 0}; }
  void scratch_release(const ScratchMark& m) override { bytes_[static_cast<size_t>(MemoryKind::kScratch)] = m.offset; }
  int64_t bytes(MemoryKind kind) const override {
    return kind == MemoryKind::kScratch ? most_scratch_ : bytes_[static_cast<size_t>(kind)];
  }
  void upload(Tensor, const void*) override {}
  void download(void*, Tensor) override {}
  void copy(Tensor, Tensor) override {}
  void fill_zero(Tensor) override {}

  LinearWeight pack_linear(const WeightMatrix& w, Tensor bias, int k_slices) override {
    const int64_t n = w.values.dim(0), k = w.values.dim(1);
    Tensor values = w.values;
    values.dtype = w.kept.type;
    return {n, k, k_slices, w.kept, keep(values), bias ? keep(bias) : Tensor(), scales(w.kept, {n, w.kept.scales(k, k_slices)})};
  }
  LinearWeight linear_rows(const LinearWeight& w, int64_t begin, int64_t end) const override {
    return {end - begin, w.k, w.k_slices, w.stored, w.packed.rows(begin, end), w.bias, {}};
  }
  HeadWeight pack_heads(Tensor w, bool transposed) override {
    return {w.dim(0), w.dim(transposed ? 2 : 1), w.dim(transposed ? 1 : 2), w.dtype, keep(w)};
  }
  ExpertWeights make_experts(int first, int count, int64_t hidden, int64_t ffn, const WeightFormat& f, int k_slices) override {
    return {first, count, hidden, ffn, k_slices, f, alloc(MemoryKind::kWeights, f.type, {count, 2 * ffn, hidden}),
            alloc(MemoryKind::kWeights, f.type, {count, hidden, ffn}), scales(f, {count, 2 * ffn, f.scales(hidden, 1)}),
            scales(f, {count, hidden, f.scales(ffn, k_slices)})};
  }
  void pack_expert(ExpertWeights&, int, const WeightMatrix&, const WeightMatrix&, const WeightMatrix&) override {}

  void embed(Tensor, Tensor, Tensor, int64_t) override {}
  void linear(Tensor, Tensor, const LinearWeight&) override {}
  void head_linear(Tensor, Tensor, const HeadWeight&) override {}
  void rms_norm(Tensor, Tensor, Tensor, float) override {}
  void add_rms_norm(Tensor, Tensor, Tensor, Tensor, float) override {}
  void add(Tensor, Tensor) override {}
  void silu_mul(Tensor, Tensor) override {}
  void gather_rows(Tensor, Tensor, Tensor) override {}
  void gqa_rope_cache(Tensor, Tensor, Tensor, Tensor, Tensor, float, const RopeTable&, const KvCache&, const BatchMeta&) override {}
  void mla_rope_cache(Tensor, Tensor, Tensor, Tensor, float, const RopeTable&, const KvCache&, const BatchMeta&) override {}
  void attention(Tensor, Tensor, Tensor, const KvCache&, const AttentionSpec&, const BatchMeta&) override {}
  void attention_partial(Tensor, Tensor, Tensor, Tensor, const KvCache&, const AttentionSpec&, const BatchMeta&) override {}
  void merge_partials(Tensor, Tensor, Tensor, Tensor, Tensor, float) override {}
  void merge_results(Tensor, Tensor, Tensor, Tensor, int) override {}
  void attention_rows(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, const RowSpans&, float) override {}
  void gather_cache(Tensor, const KvCache&, Tensor) override {}
  void route(Tensor, Tensor, Tensor, Tensor, const RouterSpec&) override {}
  void moe(Tensor, Tensor, Tensor, Tensor, const ExpertWeights&) override {}
  void sample(std::span<SampleResult>, Tensor, std::span<const SamplingRow>) override {}

 private:
  Tensor keep(Tensor host) {
    alloc(MemoryKind::kWeights, host.dtype, {host.n_elements()});
    return host;
  }
  Tensor scales(const WeightFormat& f, std::initializer_list<int64_t> shape) {
    return f.scaled() ? alloc(MemoryKind::kWeights, DType::kF32, shape) : Tensor();
  }
  int64_t bytes_[kMemoryKinds] = {};
  int64_t most_scratch_ = 0;
};

class CountingComm final : public Comm {
 public:
  CountingComm(const std::string& group, int rank, int size) : Comm(group, rank, size) {}
  void all_reduce(Tensor x, const char* name) override { tally(name, x); }
  void all_gather(Tensor, Tensor in, const char* name) override { tally(name, in); }
  void all_gatherv(Tensor, Tensor in, std::span<const int64_t>, const char* name) override { tally(name, in); }
  void reduce_scatter(Tensor, Tensor in, const char* name) override { tally(name, in); }
  void all_to_all(Tensor, Tensor in, const char* name) override { tally(name, in); }
  void broadcast(Tensor x, int, const char* name) override { tally(name, x); }
  void barrier(const char*) override {}

 private:
  void tally(const char* name, Tensor x) { count(name, size() > 1 ? x.n_bytes() : 0); }
};

class PaperWorld final : public World {
 public:
  explicit PaperWorld(int size) : size_(size) {}
  int size() const override { return size_; }
  int n_processes() const override { return 1; }
  int process() const override { return 0; }
  std::unique_ptr<Comm> group(int rank, const std::string& name, std::span<const int> ranks) override {
    const auto place = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    return std::make_unique<CountingComm>(name, static_cast<int>(place), static_cast<int>(ranks.size()));
  }
  int first_on_host() const override { return 0; }
  void use_stream(int, void*) override {}
  void launched(int) override {}
  void set_step(int, int64_t) override {}
  void control_send(std::span<const std::byte>) override {}
  std::vector<std::byte> control_receive() override { return {}; }
  std::string failure() const override { return {}; }
  void fail(const std::string&) override {}
  void set_terminate_handler(std::function<void()>) override {}

 private:
  int size_;
};

// Knows what the files hold (their headers, or the configuration's type for everything) and reads nothing.
class HeaderSource final : public WeightSource {
 public:
  HeaderSource(std::unique_ptr<WeightSource> files, const ModelConfig& model)
      : files_(std::move(files)), dtype_(model.dtype), block_rows_(model.fp8_block_rows), block_columns_(model.fp8_block_columns) {}
  bool has(const std::string& name) const override { return !files_ || files_->has(name); }
  TensorInfo info(const std::string& name) const override {
    if (files_) return files_->info(name);
    TensorInfo all;
    all.dtype = dtype_;
    return all;
  }
  int64_t read(const std::string& name, const Shape& shape, const Part& part) const override {
    const DType dtype = info(name).dtype;
    const int64_t bytes = part.out.n_elements() * size_of(dtype);
    if (dtype != DType::kF8E4M3) return bytes;
    const SliceWalk walk(name, shape, part);
    return bytes + scales_of(walk.slice(), block_rows_, block_columns_) * size_of(info(name + "_scale_inv").dtype);
  }
  std::vector<StoredName> names() const override { return {}; }

 private:
  std::unique_ptr<WeightSource> files_;
  DType dtype_;
  int64_t block_rows_, block_columns_;
};

std::unique_ptr<WeightSource> headers_of(const RankSetup& s) {
  struct stat st {};
  const bool has_files = ::stat((s.config.model + "/model.safetensors").c_str(), &st) == 0 ||
                         ::stat((s.config.model + "/model.safetensors.index.json").c_str(), &st) == 0;
  std::unique_ptr<WeightSource> files;
  if (has_files && s.config.load_format != "dummy") {
    files = open_checkpoint(s.config.model, s.model.fp8_block_rows, s.model.fp8_block_columns);
  }
  return std::make_unique<HeaderSource>(std::move(files), s.model);
}

StepPlan one_sequence(int64_t n_cached, int64_t n_tokens, int64_t block_size) {
  PlannedSequence s;
  s.id = RequestId(1);
  s.start = TokenPos(n_cached);
  s.tokens.assign(static_cast<size_t>(n_tokens), 0);
  s.blocks.assign(static_cast<size_t>((n_cached + n_tokens + block_size - 1) / block_size), BlockId(0));
  s.sample = true;
  StepPlan plan;
  plan.sequences.push_back(std::move(s));
  return plan;
}

RankPlan plan_rank(const RankSetup& setup, int rank, PaperWorld& world, const WeightSource& source) {
  Runner runner(setup, rank, world, source, std::make_unique<CountingBackend>());
  RankPlan p;
  p.rank = rank;
  p.file_bytes = runner.counters().bytes_read;
  p.weights_bytes = runner.counters().weights_bytes;
  p.kv_bytes_per_token = static_cast<double>(runner.block_bytes()) / static_cast<double>(setup.virtual_block());
  runner.allocate_cache(1);
  runner.forward(one_sequence(0, 1, setup.virtual_block()));
  p.decode_collectives = runner.counters().collectives;
  p.context = runner.counters().context;
  // The largest steps: a prompt's first chunk, and its last, behind as much context as a window holds.
  const int64_t chunk = std::min<int64_t>(setup.config.max_num_batched_tokens, setup.max_model_len);
  runner.forward(one_sequence(0, chunk, setup.virtual_block()));
  runner.forward(one_sequence(std::min(setup.max_model_len - chunk, setup.rows.window_tokens), chunk, setup.virtual_block()));
  p.workspace_bytes = runner.counters().workspace_bytes;
  return p;
}

// KV blocks that rank's memory holds, or that were asked for.
int64_t blocks_of(const RankSetup& setup, const RankPlan& r, int64_t memory_bytes) {
  if (setup.config.num_kv_blocks > 0) return setup.config.num_kv_blocks;
  const auto block_bytes = static_cast<int64_t>(r.kv_bytes_per_token * static_cast<double>(setup.virtual_block()));
  const int64_t budget = memory_bytes > 0 ? static_cast<int64_t>(setup.config.memory_utilization * static_cast<double>(memory_bytes)) - r.weights_bytes - r.workspace_bytes
                                          : kv_budget(setup, setup.config.layout.world());
  return std::max<int64_t>(0, budget / block_bytes);
}

std::vector<PlanVariant> plan_variants(const RankSetup& setup, PaperWorld& world, const WeightSource& source, int64_t memory_bytes) {
  std::vector<PlanVariant> variants;
  if (setup.config.layout.dcp == 1) return variants;
  const bool can_project = setup.model.mla && !setup.config.reproducible;
  using Exchange = ContextOptions::Exchange;
  for (const Exchange exchange : {Exchange::kAllToAll, Exchange::kGatherScatter}) {
    for (const bool replicate : {true, false}) {
      for (const bool project : {true, false}) {
        if (project && !can_project) continue;
        RankSetup other = setup;
        other.context.options.exchange = exchange;
        other.context.options.replicate_queries = replicate;
        other.context.options.project_before_merge = project;
        RankPlan rank = plan_rank(other, 0, world, source);
        variants.push_back({other.context.options, rank.weights_bytes, blocks_of(other, rank, memory_bytes) * setup.virtual_block(),
                            std::move(rank.decode_collectives)});
      }
    }
  }
  return variants;
}

}  // namespace

RunPlan plan_run(const RankSetup& setup, int64_t memory_bytes) {
  RunPlan plan;
  PaperWorld world(setup.config.layout.world());
  const auto source = headers_of(setup);
  for (int rank = 0; rank < world.size(); ++rank) plan.ranks.push_back(plan_rank(setup, rank, world, *source));
  plan.variants = plan_variants(setup, world, *source, memory_bytes);

  const int64_t block_tokens = setup.virtual_block();
  plan.n_blocks = std::numeric_limits<int64_t>::max();
  for (const RankPlan& r : plan.ranks) plan.n_blocks = std::min(plan.n_blocks, blocks_of(setup, r, memory_bytes));
  for (RankPlan& r : plan.ranks) r.kv_bytes = static_cast<int64_t>(r.kv_bytes_per_token * static_cast<double>(block_tokens * plan.n_blocks));
  plan.kv_tokens = plan.n_blocks * block_tokens;
  return plan;
}

void check_weights_fit(const RankSetup& setup, int first, int n_local) {
  if (setup.on_gpus()) return;  // whose memory is not this machine's
  PaperWorld world(setup.config.layout.world());
  const auto source = headers_of(setup);
  const Runner one(setup, first, world, *source, std::make_unique<CountingBackend>());  // the others hold as much
  const int64_t needed = one.counters().weights_bytes * n_local, machine = machine_memory_bytes();
  if (needed <= machine) return;
  throw Error("the weights of {} ranks take {:.1f} GB, this machine has {:.1f} GB; spread the ranks over hosts with mpirun, or see braid plan",
              n_local, static_cast<double>(needed) * 1e-9, static_cast<double>(machine) * 1e-9);
}

}  // namespace braid
