// Times the CUDA backend's operations at the shapes of DeepSeek-V2-Lite and R1: cuda_bench [words of a case's name]...
// Each case is set up often enough that its data exceed the second-level cache twice, all of them recorded in one graph
// and replayed; a line gives the median time of one, its rates, and the share of the nearer ceiling, where copy bandwidth
// and the rate of a large product are measured first.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ops/backend.h"
#include "ops/cuda/device.cuh"

namespace braid {
namespace {

constexpr double kColdBytes = 150e6;  // more than twice the second-level cache
constexpr DType kBF16 = DType::kBF16, kF32 = DType::kF32;

__global__ void fill_random(uint32_t* x, int64_t n, bool bf16, uint32_t seed) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  uint32_t h = static_cast<uint32_t>(i) * 2654435761u + seed;
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  const float a = (static_cast<float>(h & 0xffff) / 65536.0f - 0.5f) * 0.2f, b = (static_cast<float>(h >> 16) / 65536.0f - 0.5f) * 0.2f;
  x[i] = bf16 ? uint32_t{from_f<BFloat16>(a).bits} | uint32_t{from_f<BFloat16>(b).bits} << 16 : __float_as_uint(a);
}

class Bench {
 public:
  Bench(int argc, char** argv) : words_(argv + 1, argv + argc), backend_(make_cuda_backend({})) {
    stream_ = static_cast<cudaStream_t>(backend_->stream().handle);
    CUDA_CHECK(cudaEventCreate(&begin_));
    CUDA_CHECK(cudaEventCreate(&end_));
  }

  Tensor random(DType t, std::initializer_list<int64_t> shape) {
    Tensor x = backend_->alloc(MemoryKind::kScratch, t, shape);
    const int64_t words = x.n_bytes() / 4;
    fill_random<<<blocks_for(words, 256), 256, 0, stream_>>>(data_of<uint32_t>(x), words, t == kBF16, seed_++);
    CUDA_CHECK_LAUNCH("fill_random");
    return x;
  }
  Tensor ints(const std::vector<int32_t>& values) {
    Tensor x = backend_->alloc(MemoryKind::kScratch, DType::kI32, {static_cast<int64_t>(values.size())});
    backend_->upload(x, values.data());
    return x;
  }

  // make() sets a case up and returns what runs it.
  template <typename Make>
  void time(const std::string& name, double bytes, double flops, const Make& make) {
    for (const std::string& w : words_) {
      if (name.find(w) == std::string::npos) return;
    }
    backend_->begin_step();
    const int copies = static_cast<int>(std::clamp(kColdBytes / bytes, 1.0, 64.0));
    std::vector<decltype(make())> runs;
    for (int i = 0; i < copies; ++i) runs.push_back(make());
    const ScratchMark mark = backend_->scratch_mark();
    auto run_all = [&] {
      for (const auto& run : runs) {
        run();
        backend_->scratch_release(mark);
      }
    };
    run_all();
    backend_->sync();
    cudaGraph_t graph;
    cudaGraphExec_t recorded;
    CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    run_all();
    CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&recorded, graph, 0));
    std::vector<float> microseconds;
    for (int i = 0; i < 12; ++i) {
      CUDA_CHECK(cudaEventRecord(begin_, stream_));
      CUDA_CHECK(cudaGraphLaunch(recorded, stream_));
      CUDA_CHECK(cudaEventRecord(end_, stream_));
      backend_->sync();
      float ms = 0.0f;
      CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
      if (i >= 2) microseconds.push_back(ms * 1000.0f / static_cast<float>(copies));
    }
    CUDA_CHECK(cudaGraphExecDestroy(recorded));
    CUDA_CHECK(cudaGraphDestroy(graph));
    std::sort(microseconds.begin(), microseconds.end());
    const double us = microseconds[microseconds.size() / 2], tb = bytes / us * 1e-6, tf = flops / us * 1e-6;
    if (bandwidth_ == 0.0) bandwidth_ = tb;
    if (products_ == 0.0 && flops > 0.0) products_ = tf;
    const double share = std::max(tb / bandwidth_, products_ > 0.0 ? tf / products_ : 0.0);
    std::printf("%10.2f us %8.3f TB/s %8.1f TFLOP/s %5.0f %%  %s\n", us, tb, tf, 100.0 * share, name.c_str());
    std::fflush(stdout);
  }

  void ceilings() {
    const std::vector<std::string> words = std::exchange(words_, {});
    time("ceiling: copy of 1 GiB", 2.0 * (1 << 30), 0.0, [&] {
      const Tensor from = random(kBF16, {1 << 29}), to = random(kBF16, {1 << 29});
      return [this, from, to] { backend_->copy(to, from); };
    });
    linear(8192, 8192, 8192, kBF16);
    words_ = words;
  }

  LinearWeight linear_weight(int64_t n, int64_t k) {
    LinearWeight w;
    w.n = n, w.k = k, w.stored = kBF16, w.packed = random(kBF16, {n, k});
    return w;
  }

  void linear(int64_t m, int64_t n, int64_t k, DType y_type) {
    const std::string name = "linear m " + std::to_string(m) + " " + std::to_string(n) + "x" + std::to_string(k);
    const double bytes = 2.0 * static_cast<double>(n * k + m * k) + static_cast<double>(m * n) * size_of(y_type);
    time(name, bytes, 2.0 * static_cast<double>(m * n * k), [&] {
      const Tensor x = random(kBF16, {m, k}), y = random(y_type, {m, n});
      return [this, x, y, w = linear_weight(n, k)] { backend_->linear(y, x, w); };
    });
  }

  void heads(int64_t m, int64_t count, int64_t n, int64_t k) {
    const std::string name = "head_linear m " + std::to_string(m) + " " + std::to_string(count) + "x" + std::to_string(n) + "x" + std::to_string(k);
    time(name, 2.0 * static_cast<double>(count * (n * k + m * k + m * n)), 2.0 * static_cast<double>(m * count * n * k), [&] {
      const Tensor x = random(kBF16, {m, count, k}), y = random(kBF16, {m, count, n});
      HeadWeight w;
      w.heads = count, w.n = n, w.k = k, w.stored = kBF16, w.packed = random(kBF16, {count, n, k});
      return [this, x, y, w] { backend_->head_linear(y, x, w); };
    });
  }

  // `shared`: experts' width of the network that every row passes beside them, or 0.
  void moe(int64_t m, int experts, int top_k, int64_t hidden, int64_t ffn, int64_t shared) {
    std::vector<int32_t> ids;
    std::vector<bool> used(static_cast<size_t>(experts));
    for (int64_t t = 0; t < m; ++t) {
      std::vector<int32_t> row;
      for (uint32_t h = static_cast<uint32_t>(t) * 2654435761u; static_cast<int>(row.size()) < top_k; h = h * 1664525u + 1013904223u) {
        const auto id = static_cast<int32_t>((h >> 8) % static_cast<uint32_t>(experts));
        if (std::find(row.begin(), row.end(), id) == row.end()) row.push_back(id);
      }
      std::sort(row.begin(), row.end());
      for (const int32_t id : row) used[static_cast<size_t>(id)] = true;
      ids.insert(ids.end(), row.begin(), row.end());
    }
    const auto active = static_cast<double>(std::count(used.begin(), used.end(), true));
    const std::string name = "moe m " + std::to_string(m) + " " + std::to_string(experts) + " top " + std::to_string(top_k) +
                             (shared > 0 ? " shared " + std::to_string(shared) : "");
    time(name, 6.0 * static_cast<double>(hidden) * (active * static_cast<double>(ffn) + static_cast<double>(shared)),
         6.0 * static_cast<double>(m * hidden * (top_k * ffn + shared)), [&] {
      const Tensor x = random(kBF16, {m, hidden}), y = random(kF32, {m, hidden}), weights = random(kF32, {m, top_k});
      const Tensor id = ints(ids).view({m, top_k});
      ExpertWeights w;
      w.count = experts, w.hidden = hidden, w.ffn = ffn, w.stored = kBF16;
      w.gate_up = random(kBF16, {experts, 2 * ffn, hidden});
      w.down = random(kBF16, {experts, hidden, ffn});
      if (shared == 0) return std::function<void()>([this, x, y, weights, id, w] { backend_->moe(y, x, id, weights, w); });
      const GatedWeights beside{linear_weight(2 * shared, hidden), linear_weight(hidden, shared)};
      return std::function<void()>([this, x, y, weights, id, w, beside] { backend_->moe_with_shared(y, x, id, weights, w, beside); });
    });
  }

  void rows(int64_t m, int64_t h, int64_t f, int experts) {
    const std::string of = " m " + std::to_string(m);
    time("add_rms_norm" + of, 2.0 * 4 * static_cast<double>(m * h), 0.0, [&] {
      const Tensor x = random(kBF16, {m, h}), add = random(kBF16, {m, h}), y = random(kBF16, {m, h}), w = random(kF32, {h});
      return [this, x, add, y, w] { backend_->add_rms_norm(y, x, add, w, 1e-6f); };
    });
    time("silu_mul" + of, 2.0 * 3 * static_cast<double>(m * f), 0.0, [&] {
      const Tensor x = random(kBF16, {m, 2 * f}), y = random(kBF16, {m, f});
      return [this, x, y] { backend_->silu_mul(y, x); };
    });
    time("route" + of, 4.0 * static_cast<double>(m * experts), 0.0, [&] {
      const Tensor logits = random(kF32, {m, experts}), ids = random(DType::kI32, {m, 6}), weights = random(kF32, {m, 6});
      const RouterSpec spec{RouterScore::kSoftmax, GroupScore::kNone, 1, 1, 6, false, 1.0f};
      return [this, logits, ids, weights, spec] { backend_->route(ids, weights, logits, {}, spec); };
    });
  }

  // A batch of equal sequences: `fresh` tokens behind `context`, latent cache of 64-row blocks.
  void attention(int seqs, int context, int fresh, int heads, DType kept) {
    const int length = context + fresh, columns = (length + 63) / 64, t = seqs * fresh;
    const std::string of = " " + std::to_string(heads) + " heads, " + std::to_string(seqs) + " x (" + std::to_string(context) + " + " +
                           std::to_string(fresh) + "), " + (kept == kBF16 ? "bf16" : "fp8");
    std::vector<int32_t> positions, q_start{0}, kv_len, table, slots;
    for (int s = 0; s < seqs; ++s) {
      for (int c = 0; c < columns; ++c) table.push_back(c * seqs + s);
      for (int i = 0; i < fresh; ++i) {
        positions.push_back(context + i);
        slots.push_back(table[static_cast<size_t>(s * columns + (context + i) / 64)] * 64 + (context + i) % 64);
      }
      q_start.push_back(q_start.back() + fresh);
      kv_len.push_back(length);
    }
    const int64_t n_slots = int64_t{seqs} * columns * 64;
    auto batch_of = [&] {
      BatchMeta b;
      b.n_tokens = t, b.n_seqs = seqs, b.max_q_len = fresh, b.max_kv_len = length;
      b.positions = ints(positions), b.q_start = ints(q_start), b.kv_len = ints(kv_len), b.slots = ints(slots);
      b.block_table = ints(table).view({seqs, columns});
      b.shard = {1, 1, 64, 0};
      return b;
    };
    const double pairs = static_cast<double>(seqs) * fresh * (context + 0.5 * (fresh + 1));
    time("attention" + of, static_cast<double>(n_slots) * 576 * size_of(kept), 2176.0 * heads * pairs, [&] {
      KvCache cache;
      cache.k = random(kept, {n_slots, 1, 576});
      if (kept != kBF16) backend_->fill_zero(cache.k);
      cache.v = cache.k.columns(0, 512);
      const Tensor q = random(kBF16, {t, heads, 576}), y = random(kBF16, {t, heads, 512});
      return [this, q, y, cache, batch = batch_of()] { backend_->attention(y, {}, q, cache, {0.07f, 1}, batch); };
    });
    if (context == 0) return;
    time("mla_rope_cache" + of, 2.0 * t * (heads * 64 * 2 + 576 * 2), 0.0, [&] {
      KvCache cache;
      cache.k = random(kept, {n_slots, 1, 576});
      cache.v = cache.k.columns(0, 512);
      const Tensor q = random(kBF16, {t, heads, 192}), wide = random(kBF16, {t, heads, 576}), kv = random(kBF16, {t, 576});
      const Tensor norm = random(kF32, {512});
      const RopeTable rope{random(kF32, {length, 32, 2}), RopeLayout::kInterleaved};
      return [this, q, wide, kv, norm, rope, cache, batch = batch_of()] {
        backend_->mla_rope_cache(wide.columns(512, 576), q.columns(128, 192), kv, norm, 1e-6f, rope, cache, batch);
      };
    });
  }

  // Expanded latent attention of one prompt: its own tokens, or `keys` cached ones before them.
  void attention_rows(int queries, int keys, int heads, bool causal) {
    const std::string name = "attention_rows " + std::to_string(heads) + " heads 128+64/128, " + std::to_string(queries) + " on " +
                             std::to_string(keys) + (causal ? " causal" : "");
    const double pairs = static_cast<double>(queries) * (causal ? keys - 0.5 * (queries - 1) : keys);
    time(name, 2.0 * heads * (192.0 * queries + 320.0 * keys), 640.0 * heads * pairs, [&] {
      const Tensor q = random(kBF16, {queries, heads, 192}), kv = random(kBF16, {keys, heads, 256}), rope = random(kBF16, {keys, 64});
      const Tensor y = random(kBF16, {queries, heads, 128});
      RowSpans spans;
      spans.n_seqs = 1, spans.max_q_len = queries, spans.max_kv_len = keys, spans.causal = causal;
      spans.q_start = ints({0, queries}), spans.kv_start = ints({0, keys});
      return [this, q, kv, rope, y, spans] {
        backend_->attention_rows(y, {}, q, kv.columns(0, 128), rope, kv.columns(128, 256), spans, 0.07f);
      };
    });
  }

  // Not in a graph: it waits. Host time of the whole call.
  void sample(int rows, int vocabulary, const char* what, const SamplingRow& row) {
    const std::string name = "sample " + std::to_string(rows) + " rows, " + what;
    for (const std::string& w : words_) {
      if (name.find(w) == std::string::npos) return;
    }
    backend_->begin_step();
    const Tensor logits = backend_->alloc(MemoryKind::kScratch, kF32, {rows, vocabulary});
    std::mt19937 random_bits(1);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    std::vector<float> host(static_cast<size_t>(rows) * static_cast<size_t>(vocabulary));
    for (float& x : host) x = normal(random_bits);
    backend_->upload(logits, host.data());
    const std::vector<SamplingRow> all(static_cast<size_t>(rows), row);
    std::vector<SampleResult> out(all.size());
    std::vector<float> microseconds;
    for (int i = 0; i < 8; ++i) {
      CUDA_CHECK(cudaEventRecord(begin_, stream_));
      backend_->sample(out, logits, all);
      CUDA_CHECK(cudaEventRecord(end_, stream_));
      backend_->sync();
      float ms = 0.0f;
      CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
      microseconds.push_back(ms * 1000.0f);
    }
    std::sort(microseconds.begin(), microseconds.end());
    std::printf("%10.2f us  %s\n", microseconds[4], name.c_str());
  }

 private:
  std::vector<std::string> words_;
  std::unique_ptr<Backend> backend_;
  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
  uint32_t seed_ = 1;
  double bandwidth_ = 0.0, products_ = 0.0;
};

void run(Bench& b) {
  b.ceilings();
  for (const int64_t m : {1, 8, 64, 4096}) {
    for (const auto& [n, k] : {std::pair{3072, 2048}, {576, 2048}, {2048, 2048}, {5632, 2048}, {2048, 2816}, {21888, 2048}, {2112, 7168}, {7168, 16384}}) {
      b.linear(m, n, k, kBF16);
    }
    if (m <= 64) b.linear(m, 102400, 2048, kF32);
    b.linear(m, 64, 2048, kF32);
    b.heads(m, 16, 512, 128);
    b.heads(m, 16, 128, 512);
    for (const int64_t shared : {0, 2816}) b.moe(m, 64, 6, 2048, 1408, shared);
    b.rows(m, 2048, 2816, 64);
  }
  for (const int64_t m : {2, 4, 16}) b.moe(m, 64, 6, 2048, 1408, 2816);
  b.rows(1, 7168, 2048, 256);
  for (const DType kept : {kBF16, DType::kF8E4M3}) {
    for (const int seqs : {1, 8, 64}) b.attention(seqs, 8192, 1, 16, kept);
    b.attention(1, 4096, 1, 128, kept);
    b.attention(32, 32768, 1, 16, kept);
    b.attention(8, 8192, 1, 128, kept);
  }
  b.attention(1, 0, 8192, 16, kBF16);
  b.attention(1, 24576, 2048, 16, kBF16);
  b.attention_rows(8192, 8192, 16, true);
  b.attention_rows(2048, 24576, 16, false);
  b.attention_rows(8192, 8192, 128, true);
  SamplingRow row;
  for (const int rows : {1, 64}) {
    b.sample(rows, 102400, "greedy", row);
    SamplingRow drawn = row;
    drawn.temperature = 0.8f;
    b.sample(rows, 102400, "temperature", drawn);
    drawn.top_p = 0.95f;
    drawn.top_k = 50;
    b.sample(rows, 102400, "top_k 50, top_p 0.95", drawn);
  }
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  if (braid::cuda_device_count() == 0) {
    std::printf("no GPU is usable here\n");
    return 0;
  }
  braid::Bench bench(argc, argv);
  braid::run(bench);
  return 0;
}
