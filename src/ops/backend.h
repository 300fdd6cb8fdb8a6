// A device as the engine sees it: memory, order and fused operations on packed tokens. Implemented by `reference`
// (naive, obviously right), `cpu` and `cuda` (fast); never branched per device elsewhere. One rank owns one backend; it
// is not thread-safe. Calls may return before the work is done: download() and sync() wait.
//
// Dimensions: T tokens of the step, S sequences, H hidden, N query heads, K key/value heads, D head size, F
// feed-forward size, E experts, k experts per token, V vocabulary. "compute" is the run's activation type, float32 or
// bfloat16. Accumulation is float32 everywhere. A row's result never depends on the rows beside it or on their number.
//
// Adding an operation: declare it here, write reference, cpu and cuda, add a case to conformance_test.cpp.
#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/batch.h"
#include "ops/dummy_values.h"
#include "ops/sampling.h"
#include "ops/weight_format.h"
#include "tensor/tensor.h"

namespace braid {

// What a piece of memory is for; the backend counts bytes by kind. Everything but kScratch lives as long as the
// backend; kScratch is a bump arena that begin_step() resets.
enum class MemoryKind { kWeights, kCache, kWorkspace, kScratch };
inline constexpr int kMemoryKinds = 4;

// How far the scratch arena was filled at some moment; private to the backend.
struct ScratchMark {
  int64_t block = 0, offset = 0, padded = 0, requested = 0;
};

// Order of work on a device. CPU backends run everything at once and have no stream.
struct Stream {
  void* handle = nullptr;
};

// A linear layer's weights in the backend's own layout. y = x w^T (+ bias).
// k_slices > 1 is the reproducible form of a product whose K is split over ranks (docs/architecture.md section 8): K is cut
// into that many equal slices, each accumulated alone, the slices then added in a balanced binary tree.
struct LinearWeight {
  int64_t n = 0, k = 0;
  int k_slices = 1;
  WeightFormat stored;
  Tensor packed;  // layout private to the backend
  Tensor bias;    // float32 [n] or empty
  Tensor scales;  // of stored.group, where the backend keeps them apart
};

// One small product per head: y[t, h, :] = x[t, h, :] w[h]^T.
struct HeadWeight {
  int64_t heads = 0, n = 0, k = 0;
  DType stored = DType::kF32;  // float32 or bfloat16
  Tensor packed;  // outermost one index per head, within a head in the backend's own layout
  HeadWeight of_heads(int64_t begin, int64_t end) const {  // shares the memory
    return {end - begin, n, k, stored, packed.rows(begin, end)};
  }
};

// Experts [first, first + count) of a mixture: gate and up [F, H] each, down [H, F]. k_slices cuts F, as in LinearWeight.
struct ExpertWeights {
  int first = 0, count = 0;
  int64_t hidden = 0, ffn = 0;
  int k_slices = 1;
  WeightFormat stored;
  Tensor gate_up, down;                // layouts private to the backend
  Tensor gate_up_scales, down_scales;  // of stored.group, where the backend keeps them apart
};

// A gated network: down(silu(gate x) * up x).
struct GatedWeights {
  LinearWeight gate_up;  // [2F, H], gate rows first
  LinearWeight down;     // [H, F]
};

enum class RopeLayout { kHalfSplit, kInterleaved };  // lane i pairs with i + d/2, or 2i with 2i + 1

struct RopeTable {
  Tensor cos_sin;  // float32 [max positions, d/2, 2], the attention factor already multiplied in; empty: no rotation
  RopeLayout layout = RopeLayout::kHalfSplit;
  int dim() const { return cos_sin ? static_cast<int>(2 * cos_sin.dim(1)) : 0; }
};

enum class RouterScore { kSoftmax, kSigmoid };
enum class GroupScore { kNone, kMax, kTopTwoSum };  // how a group of experts is ranked before its members are

struct RouterSpec {
  RouterScore score = RouterScore::kSoftmax;
  GroupScore group_score = GroupScore::kNone;
  int n_groups = 1, top_groups = 1, top_k = 1;
  bool renormalise = false;  // weights / (sum + 1e-20)
  float scale = 1.0f;        // applied to the weights last
};

// One layer's KV cache on this rank. Slot = block * block_size + offset.
// Grouped attention keeps keys and values apart. Latent attention keeps one row per token, [normed latent | rotated
// key lanes]; `v` is then a view of the first lanes of `k`, so that one kernel serves both.
struct KvCache {
  Tensor k;             // [slots, K, Dk]
  Tensor v;             // [slots, K, Dv]
  float scale = 1.0f;   // stored = value / scale; for float8 caches
};

struct AttentionSpec {
  float scale = 1.0f;  // softmax scale, final
  // Reproducible mode: 8 stripes, stripe(g) = (g / interleave) % 8, with partials kept relative to a power of two and
  // added in the fixed tree (s, s+4), (s, s+2), (s, s+1). Default mode: 1.
  int n_stripes = 1;
};

// A device's memory, shared with whoever else uses the device.
struct DeviceMemory {
  int64_t total = 0, free = 0;
};

// Work that was recorded once and is started again with one launch. It must end before the backend that made it, and
// before the communicators whose collectives it holds.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual int64_t n_nodes() const = 0;  // operations on the device
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;

  // A tap for checks: models hand it intermediate values worth comparing ("experts": int32 [T, k]). Empty: off.
  std::function<void(const char* what, Tensor value)> observer;

  // --- memory and order ---------------------------------------------------------------------------------------
  virtual Tensor alloc(MemoryKind, DType, std::initializer_list<int64_t> shape) = 0;  // contents undefined
  Tensor scratch(DType t, std::initializer_list<int64_t> shape) { return alloc(MemoryKind::kScratch, t, shape); }
  virtual void begin_step() = 0;  // scratch of the step before is gone
  // Scratch taken since the mark may be used again: work already asked for comes first, in order. See ScratchScope.
  virtual ScratchMark scratch_mark() = 0;
  virtual void scratch_release(const ScratchMark&) = 0;
  virtual int64_t bytes(MemoryKind) const = 0;  // allocated now; kScratch: the most that a step used
  virtual void upload(Tensor device /*dense, or rows of a matrix*/, const void* host /*dense*/) = 0;
  virtual void download(void* host, Tensor device) = 0;  // waits
  virtual void copy(Tensor to, Tensor from) = 0;         // same shape; converts between float types; strides allowed
  virtual void fill_zero(Tensor x) = 0;
  virtual Stream stream() const { return {}; }
  virtual void sync() {}
  virtual DeviceMemory device_memory() const { return {}; }  // zeros: the host's own memory

  // --- recording ------------------------------------------------------------------------------------------------
  // What is asked between begin_recording() and end_recording() is recorded instead of done. Only work on the stream can
  // be recorded (no upload, download, sync or sample), at the sizes and addresses that it is recorded with; whatever may
  // be set up on first use must have been used before. Scratch taken meanwhile belongs to the recording: replay() leaves
  // scratch as the recording did, so that its results stay until the next step.
  virtual bool can_record() const { return false; }  // false: the other three must not be called
  virtual void begin_recording();
  virtual std::unique_ptr<Recording> end_recording();
  virtual void replay(const Recording&);

  // --- loading --------------------------------------------------------------------------------------------------
  // Host memory for values on their way to the device, given back when the pointer ends.
  virtual std::shared_ptr<std::byte[]> staging(int64_t bytes);
  // The values lie at v.out when this returns: memory of staging() or of the backend, or elsewhere on the host.
  virtual void make_dummy(const DummyValues& v) { make_dummy_values(v); }

  // --- weights (host tensors in; the result may use another layout) -------------------------------------------------
  virtual LinearWeight pack_linear(const WeightMatrix& w /*[n, k]*/, Tensor bias /*float32 [n] or empty*/, int k_slices = 1) = 0;
  // Outputs [begin, end) of a packed weight, sharing its memory; `packed` is empty where the layout cannot be cut there.
  virtual LinearWeight linear_rows(const LinearWeight&, int64_t begin, int64_t end) const = 0;
  virtual HeadWeight pack_heads(Tensor w /*[heads, n, k]; transposed: [heads, k, n]; outer strides free*/, bool transposed) = 0;
  virtual ExpertWeights make_experts(int first, int count, int64_t hidden, int64_t ffn, const WeightFormat& stored,
                                     int k_slices) = 0;
  virtual void pack_expert(ExpertWeights&, int expert /*global id*/, const WeightMatrix& gate /*[F, H]*/,
                           const WeightMatrix& up /*[F, H]*/, const WeightMatrix& down /*[H, F]*/) = 0;

  // --- operations ---------------------------------------------------------------------------------------------------
  // y[t] = table[id - first_row]; zeros where the id lies outside [first_row, first_row + rows).
  virtual void embed(Tensor y /*[T, H]*/, Tensor ids /*int32 [T]*/, Tensor table /*[rows, H]*/, int64_t first_row) = 0;
  virtual void linear(Tensor y /*[T, n] compute or float32*/, Tensor x /*[T, k] compute*/, const LinearWeight&) = 0;
  virtual void head_linear(Tensor y /*[T, heads, n]*/, Tensor x /*[T, heads, k], strides allowed, 0 over heads too*/, const HeadWeight&) = 0;

  // y = x / sqrt(mean(x^2) + eps) rounded to compute, then * w.
  virtual void rms_norm(Tensor y /*[T, H]*/, Tensor x /*[T, H], row stride allowed*/, Tensor w /*[H] float32*/, float eps) = 0;
  // residual += add (float32 or compute), rounded to compute; y = rms_norm(residual).
  virtual void add_rms_norm(Tensor y, Tensor residual /*[T, H]*/, Tensor add /*[T, H]*/, Tensor w, float eps) = 0;
  virtual void add(Tensor y /*[T, H] float32*/, Tensor x /*[T, H] float32*/) = 0;  // y += x
  virtual void silu_mul(Tensor y /*[T, F]*/, Tensor gate_up /*[T, 2F], gate first*/) = 0;
  virtual void gather_rows(Tensor y /*[R, H]*/, Tensor x /*[T, H]*/, Tensor rows /*int32 [R]*/) = 0;

  // Grouped attention: optional per-head norms of q and k (empty: none), rotation in place, k and v into the cache at
  // batch.slots (rows with slot -1 are rotated but not written).
  virtual void gqa_rope_cache(Tensor q /*[T, N, D]*/, Tensor k /*[T, K, D]*/, Tensor v /*[T, K, D]*/, Tensor q_norm /*float32 [D]*/,
                              Tensor k_norm, float eps, const RopeTable&, const KvCache&, const BatchMeta&) = 0;
  // Latent attention: q_out = rotated q_in (the same place is allowed); kv_a = [latent | key lanes] becomes [rms_norm(latent) |
  // rotated lanes] in place, in every row, and goes to the cache at batch.slots (not where the slot is -1).
  virtual void mla_rope_cache(Tensor q_out /*[T, N, d_r]*/, Tensor q_in /*[T, N, d_r]*/, Tensor kv_a /*[T, r + d_r]*/,
                              Tensor norm /*float32 [r]*/, float eps, const RopeTable&, const KvCache&, const BatchMeta&) = 0;
  // Causal attention of every new token over the cached rows of its sequence on this rank, itself included: a query at
  // position p sees global positions <= p. Query head n reads key/value head n / (N / K). A row that sees nothing here
  // gives zeros and lse = -inf.
  virtual void attention(Tensor y /*[T, N, Dv]*/, Tensor lse /*float32 [T, N], natural log; or empty*/, Tensor q /*[T, N, Dk]*/,
                         const KvCache&, const AttentionSpec&, const BatchMeta&) = 0;
  // Attention over keys and values given as rows (expanded latent attention; a gathered context). Rows that see nothing:
  // zeros and lse = -inf. Strides are free but for the innermost dimension; 0 shares a key among heads.
  virtual void attention_rows(Tensor y /*[T, N, Dv]*/, Tensor lse /*float32 [T, N], natural log; or empty*/, Tensor q /*[T, N, Dn + Dr]*/,
                              Tensor k /*[J, N, Dn]*/, Tensor k_rope /*[J, Dr], shared by all heads; or empty*/, Tensor v /*[J, N, Dv]*/,
                              const RowSpans&, float scale) = 0;
  // rows[c] = cache.k[slots[c]] * cache.scale, in the type of `rows`: compute, or (with scale 1) the cache's own. A slot of
  // -1 gives zeros.
  virtual void gather_cache(Tensor rows /*[C, K, Dk]*/, const KvCache&, Tensor slots /*int32 [C]*/) = 0;
  // attention() unfinished, for rows spread over a decode-context-parallel group: sum = Σ 2^(s - k) v and weight =
  // Σ 2^(s - k) over the rows held here, s the score in units of log2, k a whole number (kept as a float) not below the
  // largest s. Where nothing is visible here: zeros and k = -infinity. Values are as stored, not yet times cache.scale.
  virtual void attention_partial(Tensor sum /*float32 [T, N, Dv]*/, Tensor weight /*float32 [T, N]*/, Tensor k /*float32 [T, N]*/,
                                 Tensor q, const KvCache&, const AttentionSpec&, const BatchMeta&) = 0;
  // Puts the partials of all ranks together, in rank order, in the tree (r, r + W/2), ..., (0, 1). In the reproducible
  // mode the result has the bits of attention() with W = 1.
  virtual void merge_partials(Tensor y /*[T, N, Dv]*/, Tensor lse /*float32 [T, N]; or empty*/, Tensor sums /*float32 [W, T, N, Dv]*/,
                              Tensor weights /*float32 [W, T, N]*/, Tensor ks /*float32 [W, T, N]*/, float value_scale) = 0;
  // What the ranks of a group send each other before a merge: message r begins with heads [r N, (r + 1) N) of the values, as
  // [T, N, D], and has their lse, as [T, N], at byte `lse_offset`.
  virtual void pack_results(Tensor messages /*uint8 [W, bytes]*/, Tensor values /*[T, W N, D]*/, Tensor lse /*float32 [T, W N]*/,
                            int64_t lse_offset);
  // The default mode's merge, of finished results: y = Σ w_i values[i], where w_i is rank first + i's share of the
  // softmax over all W ranks, exp(lse - log Σ exp lse). A rank that saw nothing (lse -infinity; NaN and +infinity count
  // as such) adds nothing whatever its values hold; where no rank saw anything y is 0. With all W values y is the merged
  // result, with one it is that rank's term of the sum. lse = log Σ exp lse, -infinity where no rank saw anything. Strides
  // are free but for the innermost dimension.
  virtual void merge_results(Tensor y /*[T, N, Dv] compute or float32*/, Tensor lse /*float32 [T, N]; or empty*/,
                             Tensor values /*[n, T, N, Dv]*/, Tensor lses /*float32 [W, T, N]*/, int first) = 0;

  // Chooses top_k experts of each row; ties go to the lowest id. The bias takes part in the choice only.
  virtual void route(Tensor ids /*int32 [T, k], ascending id*/, Tensor weights /*float32 [T, k]*/, Tensor logits /*float32 [T, E]*/,
                     Tensor bias /*float32 [E] or empty*/, const RouterSpec&) = 0;
  // y[t] = sum over the row's experts held here, by ascending id, of weight * down(silu(gate x) * up x).
  virtual void moe(Tensor y /*[T, H] float32*/, Tensor x /*[T, H]*/, Tensor ids, Tensor weights, const ExpertWeights&) = 0;
  // moe() and, added to it, a gated network that every row passes.
  virtual void moe_with_shared(Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights&, const GatedWeights& shared);
  // y = the gated network of x.
  void gated_network(Tensor y /*[T, H] compute or float32*/, Tensor x /*[T, H]*/, const GatedWeights&);

  // Draws or picks one token per row and reports log-probabilities of the unmodified logits. `logits` is scratch: penalties and
  // masks are written into it. Results are on the host; waits.
  virtual void sample(std::span<SampleResult> out, Tensor logits /*float32 [R, V]*/, std::span<const SamplingRow>) = 0;
  // The same without waiting where there is a device: `out` is filled by the next call that waits, sync() among them.
  virtual void sample_later(std::span<SampleResult> out, Tensor logits, std::span<const SamplingRow> rows) { sample(out, logits, rows); }
};

// Scratch taken while one of these lives is given back when it ends: a layer's temporaries, so that a model's
// workspace is one layer's, not all layers'.
class ScratchScope {
 public:
  explicit ScratchScope(Backend& backend) : backend_(backend), mark_(backend.scratch_mark()) {}
  ~ScratchScope() { backend_.scratch_release(mark_); }
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;

 private:
  Backend& backend_;
  ScratchMark mark_;
};

struct CpuOptions {
  int n_threads = 1;  // this rank's workers, the calling thread included
  std::string level;  // instruction-set level, one of cpu_levels(); empty: the best
};
std::vector<std::string> cpu_levels();  // that this machine can run, worst first: v2, v3, v4, v4_bf16
struct CudaOptions {
  int device = 0;             // index among this process's visible GPUs
  bool reproducible = false;  // one algorithm per product shape whatever the number of rows; see cuda_backend.h
};
int cuda_device_count();  // 0 where there is no driver, no GPU or no CUDA in this build

std::unique_ptr<Backend> make_reference_backend();
std::unique_ptr<Backend> make_cpu_backend(const CpuOptions&);
// Used by the thread that makes it. Throws Error where there is no such device.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&);

}  // namespace braid
