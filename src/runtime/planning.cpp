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

  LinearWeight pack_linear(Tensor w, Tensor bias, int k_slices) override {
    return {w.dim(0), w.dim(1), k_slices, w.dtype, keep(w), bias ? keep(bias) : Tensor()};
  }
  LinearWeight linear_rows(const LinearWeight& w, int64_t begin, int64_t end) const override {
    return {end - begin, w.k, w.k_slices, w.stored, w.packed.rows(begin, end), w.bias};
  }
  HeadWeight pack_heads(Tensor w) override { return {w.dim(0), w.dim(1), w.dim(2), w.dtype, keep(w)}; }
  ExpertWeights make_experts(int first, int count, int64_t hidden, int64_t ffn, DType t, int k_slices) override {
    return {first, count, hidden, ffn, k_slices, t, alloc(MemoryKind::kWeights, t, {count, 2 * ffn, hidden}),
            alloc(MemoryKind::kWeights, t, {count, hidden, ffn})};
  }
  void pack_expert(ExpertWeights&, int, Tensor, Tensor, Tensor) override {}

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

}  // namespace

RunPlan plan_run(const RankSetup& setup, int64_t memory_bytes) {
  RunPlan plan;
  PaperWorld world(setup.config.layout.world());
  const auto source = headers_of(setup);
  for (int rank = 0; rank < world.size(); ++rank) plan.ranks.push_back(plan_rank(setup, rank, world, *source));

  const int64_t block_tokens = setup.virtual_block();
  plan.n_blocks = setup.config.num_kv_blocks;
  if (plan.n_blocks == 0) {
    plan.n_blocks = std::numeric_limits<int64_t>::max();
    for (const RankPlan& r : plan.ranks) {
      const auto block_bytes = static_cast<int64_t>(r.kv_bytes_per_token * static_cast<double>(block_tokens));
      const int64_t budget = memory_bytes > 0 ? static_cast<int64_t>(setup.config.memory_utilization * static_cast<double>(memory_bytes)) - r.weights_bytes - r.workspace_bytes
                                              : kv_budget(setup, world.size());
      plan.n_blocks = std::min(plan.n_blocks, std::max<int64_t>(0, budget / block_bytes));
    }
  }
  for (RankPlan& r : plan.ranks) r.kv_bytes = static_cast<int64_t>(r.kv_bytes_per_token * static_cast<double>(block_tokens * plan.n_blocks));
  plan.kv_tokens = plan.n_blocks * block_tokens;
  return plan;
}

}  // namespace braid
