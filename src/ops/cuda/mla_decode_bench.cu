// Latent attention for decoding: correctness over a list of cases against a float64 reference on the device (--check),
// and times in graphs over rotated caches (--time). Prints the copy bandwidth of the same run. No argument: both.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ops/cuda/mla_decode.h"

namespace braid {
namespace {

void must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

template <typename T>
class Buffer {
 public:
  explicit Buffer(size_t n) : n_(n) { must(cudaMalloc(&data_, std::max<size_t>(n, 1) * sizeof(T)), "cudaMalloc"); }
  explicit Buffer(const std::vector<T>& host) : Buffer(host.size()) {
    must(cudaMemcpy(data_, host.data(), n_ * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* get() const { return data_; }
  std::vector<T> host() const {
    std::vector<T> out(n_);
    must(cudaMemcpy(out.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return out;
  }
  void poison() { must(cudaMemset(data_, 0xff, n_ * sizeof(T)), "poison"); }  // not a number in every type used here

 private:
  T* data_ = nullptr;
  size_t n_ = 0;
};

// --- inputs
// -----------------------------------------------------------------------------------------------------------
__device__ float normal(uint64_t i, uint64_t seed) {
  uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
  x ^= x >> 31, x *= 0xBF58476D1CE4E5B9ull, x ^= x >> 29, x *= 0x94D049BB133111EBull, x ^= x >> 32;
  const float u = (static_cast<uint32_t>(x) + 1.0f) * 2.3283064e-10f,
              v = static_cast<uint32_t>(x >> 32) * 2.3283064e-10f;
  return sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
}

__global__ void fill_bf16(__nv_bfloat16* to, int64_t n, uint64_t seed, float gain) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll)
    to[i] = __float2bfloat16(gain * normal(i, seed));
}

// Rows [0, length) of one sequence's local context; all others keep their poison.
__global__ void fill_context(void* cache, bool float8, const int32_t* blocks, int block_size, int length,
                             uint64_t seed) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < int64_t{length} * kMlaRow; i += gridDim.x * 256ll) {
    const int64_t j = i / kMlaRow,
                  at = (int64_t{blocks[j / block_size]} * block_size + j % block_size) * kMlaRow + i % kMlaRow;
    if (float8)
      static_cast<__nv_fp8_e4m3*>(cache)[at] = __nv_fp8_e4m3(8.0f * normal(i, seed));
    else
      static_cast<__nv_bfloat16*>(cache)[at] = __float2bfloat16(normal(i, seed));
  }
}

__device__ double cached(const MlaDecodeArgs& a, int64_t at) {
  return a.float8
             ? static_cast<double>(static_cast<float>(static_cast<const __nv_fp8_e4m3*>(a.cache)[at])) * a.cache_scale
             : static_cast<double>(__bfloat162float(static_cast<const __nv_bfloat16*>(a.cache)[at]));
}

// One block per sequence and query row; scores in scratch [rows, max_length].
__global__ void reference(MlaDecodeArgs a, double* scratch, int max_length, double* out, double* lse) {
  const int seq = blockIdx.y, row = blockIdx.x, first = a.q_start[seq];
  if (row >= (a.q_start[seq + 1] - first) * a.n_heads) return;
  const int64_t r = int64_t{first} * a.n_heads + row;
  const int visible = static_cast<int>(a.shard.local_length(a.positions[first + row / a.n_heads] + 1));
  double* score = scratch + r * max_length;
  const auto* q = static_cast<const __nv_bfloat16*>(a.q) + r * kMlaRow;
  const auto place = [&](int j) {
    return (int64_t{a.block_table[int64_t{seq} * a.table_columns + j / a.shard.block_size]} * a.shard.block_size +
            j % a.shard.block_size) *
           kMlaRow;
  };
  for (int j = threadIdx.x; j < visible; j += blockDim.x) {
    double s = 0;
    for (int i = 0; i < kMlaRow; ++i) s += static_cast<double>(__bfloat162float(q[i])) * cached(a, place(j) + i);
    score[j] = s * a.softmax_scale;
  }
  __syncthreads();
  double most = -INFINITY, sum = 0;
  for (int j = 0; j < visible; ++j) most = fmax(most, score[j]);
  for (int j = 0; j < visible; ++j) sum += exp(score[j] - most);
  for (int c = threadIdx.x; c < kMlaLatent; c += blockDim.x) {
    double o = 0;
    for (int j = 0; j < visible; ++j) o += exp(score[j] - most) * cached(a, place(j) + c);
    out[r * kMlaLatent + c] = visible ? o / sum : 0.0;
  }
  if (threadIdx.x == 0) lse[r] = visible ? most + log(sum) : -INFINITY;
}

// --- a batch
// ------------------------------------------------------------------------------------------------------------
struct Case {
  int heads = 16;
  std::vector<int> q_len, kv_len;  // per sequence
  bool float8 = false;
  int block_size = 64;
  int n_ranks = 1, rank = 0, interleave = 1;
  float gain = 1.0f;  // of the queries: large values raise the softmax's maximum often
};

int sum_of(const std::vector<int>& x) { return std::accumulate(x.begin(), x.end(), 0); }

struct Batch {
  Batch(const Case& c, int copies, uint64_t seed)
      : n_tokens(sum_of(c.q_len)),
        q(size_t(n_tokens) * c.heads * kMlaRow),
        out(size_t(n_tokens) * c.heads * kMlaLatent),
        lse(size_t(n_tokens) * c.heads) {
    std::vector<int32_t> q_start{0}, positions;
    SequenceShard shard{.n_ranks = c.n_ranks, .interleave = c.interleave, .block_size = c.block_size, .rank = c.rank};
    for (size_t s = 0; s < c.q_len.size(); ++s) {
      for (int i = 0; i < c.q_len[s]; ++i) positions.push_back(c.kv_len[s] - c.q_len[s] + i);
      q_start.push_back(q_start.back() + c.q_len[s]);
      columns = std::max<int>(columns, shard.table_columns(c.kv_len[s]));
    }
    columns = std::max(columns, 1);
    const int n_seqs = static_cast<int>(c.q_len.size());
    std::vector<int32_t> blocks(size_t(copies) * n_seqs * columns);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(static_cast<unsigned>(seed)));
    slots = int64_t(blocks.size()) * c.block_size;
    cache = std::make_unique<Buffer<uint8_t>>(size_t(slots) * kMlaRow * (c.float8 ? 1 : 2));
    cache->poison();
    table = std::make_unique<Buffer<int32_t>>(blocks);
    starts = std::make_unique<Buffer<int32_t>>(q_start);
    places = std::make_unique<Buffer<int32_t>>(positions);
    lengths = std::make_unique<Buffer<int32_t>>(std::vector<int32_t>(c.kv_len.begin(), c.kv_len.end()));
    const int max_q = *std::max_element(c.q_len.begin(), c.q_len.end());
    work = std::make_unique<Buffer<uint8_t>>(mla_decode_workspace(n_seqs, max_q, c.heads));
    work->poison();
    fill_bf16<<<512, 256>>>(q.get(), int64_t(n_tokens) * c.heads * kMlaRow, seed, c.gain);
    for (int copy = 0; copy < copies; ++copy) {
      for (int s = 0; s < n_seqs; ++s) {
        fill_context<<<512, 256>>>(cache->get(), c.float8, table->get() + (copy * n_seqs + s) * columns, c.block_size,
                                   static_cast<int>(shard.local_length(c.kv_len[s])), seed + 17 * copy + 1000 * s + 1);
      }
    }
    must(cudaDeviceSynchronize(), "inputs");
    args = {.q = q.get(),
            .cache = cache->get(),
            .float8 = c.float8,
            .cache_scale = c.float8 ? 0.125f : 1.0f,
            .softmax_scale = 0.0721688f,
            .out = out.get(),
            .lse = lse.get(),
            .q_start = starts->get(),
            .positions = places->get(),
            .kv_len = lengths->get(),
            .block_table = table->get(),
            .n_tokens = n_tokens,
            .n_seqs = n_seqs,
            .n_heads = c.heads,
            .table_columns = columns,
            .max_q_len = max_q,
            .n_slots = slots,
            .shard = shard,
            .workspace = work->get()};
  }
  MlaDecodeArgs copy(int i) const {
    MlaDecodeArgs a = args;
    a.block_table += static_cast<int64_t>(i) * a.n_seqs * a.table_columns;
    return a;
  }

  int n_tokens, columns = 0;
  int64_t slots = 0;
  Buffer<__nv_bfloat16> q, out;
  Buffer<float> lse;
  std::unique_ptr<Buffer<uint8_t>> cache, work;
  std::unique_ptr<Buffer<int32_t>> table, starts, places, lengths;
  MlaDecodeArgs args;
};

// --- correctness
// ----------------------------------------------------------------------------------------------------------
bool check(const Case& c, uint64_t seed) {
  Batch b(c, 1, seed);
  const int max_length = std::max(1, *std::max_element(c.kv_len.begin(), c.kv_len.end()));
  const size_t rows = size_t(b.n_tokens) * c.heads;
  Buffer<double> scratch(rows * max_length), want(rows * kMlaLatent), want_lse(rows);
  const dim3 grid(b.args.max_q_len * c.heads, b.args.n_seqs);
  reference<<<grid, 256>>>(b.args, scratch.get(), max_length, want.get(), want_lse.get());
  must(cudaDeviceSynchronize(), "reference");
  const std::vector<double> ref = want.host(), ref_lse = want_lse.host();
  bool good = true;
  double error = 0, worst_lse = 0;
  size_t odd = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {  // a moving error is a race
    b.out.poison(), b.lse.poison();
    must(mla_decode(b.args, nullptr), "mla_decode");
    must(cudaDeviceSynchronize(), "mla_decode");
    const std::vector<__nv_bfloat16> out = b.out.host();
    const std::vector<float> lse = b.lse.host();
    double diff = 0, norm = 0;
    for (size_t i = 0; i < ref.size(); ++i) {
      const double d = static_cast<double>(__bfloat162float(out[i])) - ref[i];
      diff += d * d, norm += ref[i] * ref[i];
      odd += std::isinf(ref_lse[i / kMlaLatent]) && d != 0;
    }
    for (size_t r = 0; r < rows; ++r) {
      if (std::isinf(ref_lse[r]))
        odd += lse[r] != -INFINITY;
      else
        worst_lse = std::max(worst_lse, std::isfinite(lse[r]) ? std::abs(lse[r] - ref_lse[r]) : INFINITY);
    }
    const double e = norm > 0 ? std::sqrt(diff / norm) : std::sqrt(diff);
    good &= e < (c.float8 ? 4e-3 : 6e-3);  // a NaN fails
    error = std::isfinite(e) ? std::max(error, e) : e;
  }
  good &= worst_lse < 2e-3 * std::max(1.0f, c.gain) && odd == 0;
  std::printf("%s heads %3d seqs %2zu q<=%d kv<=%d %s block %d dcp %d/%d S %d gain %g: error %.2e lse %.1e odd %zu\n",
              good ? "ok  " : "FAIL", c.heads, c.q_len.size(), b.args.max_q_len, max_length, c.float8 ? "fp8 " : "bf16",
              c.block_size, c.rank, c.n_ranks, c.interleave, c.gain, error, worst_lse, odd);
  return good;
}

int check_all() {
  std::vector<Case> cases;
  for (const bool float8 : {false, true}) {
    for (const int heads : {1, 8, 16, 24, 32, 64, 128}) {
      cases.push_back({.heads = heads,
                       .q_len = {1, 1, 1, 1, 1, 1, 1},
                       .kv_len = {1, 63, 64, 65, 128, 1000, 4097},
                       .float8 = float8});
    }
    for (const int heads : {5, 16, 128}) {
      cases.push_back(
          {.heads = heads, .q_len = {8, 0, 3, 1}, .kv_len = {9, 0, 700, 2050}, .float8 = float8, .block_size = 16});
      for (const int rank : {0, 2}) {
        cases.push_back({.heads = heads,
                         .q_len = {1, 2, 4, 1},
                         .kv_len = {1, 3, 517, 6000},
                         .float8 = float8,
                         .block_size = 16,
                         .n_ranks = 4,
                         .rank = rank,
                         .interleave = 1});
      }
      cases.push_back({.heads = heads,
                       .q_len = {2, 1},
                       .kv_len = {40, 3000},
                       .float8 = float8,
                       .block_size = 48,
                       .n_ranks = 2,
                       .rank = 1,
                       .interleave = 16,
                       .gain = 8.0f});
    }
    cases.push_back({.heads = 16,
                     .q_len = std::vector<int>(200, 1),
                     .kv_len = std::vector<int>(200, 300),
                     .float8 = float8,
                     .block_size = 256});
    cases.push_back({.heads = 16, .q_len = {1}, .kv_len = {100000}, .float8 = float8, .block_size = 64, .gain = 4.0f});
  }
  int failed = 0;
  for (size_t i = 0; i < cases.size(); ++i) failed += !check(cases[i], 100 + i);
  std::printf("%zu cases, %d failed\n", cases.size(), failed);
  return failed;
}

// --- times
// ----------------------------------------------------------------------------------------------------------------
// Median time of one launch, in seconds, from replays of a graph of `n` of them.
template <typename Launch>
double median_time(int n, Launch launch) {
  cudaStream_t stream;
  must(cudaStreamCreate(&stream), "stream");
  for (int i = 0; i < n; ++i) launch(i, stream);  // sets attributes and warms up
  must(cudaStreamSynchronize(stream), "warm-up");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < n; ++i) launch(i, stream);
  must(cudaStreamEndCapture(stream, &graph), "capture");
  must(cudaGraphInstantiate(&exec, graph, 0), "graph");
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  std::vector<float> ms;
  for (int i = 0; i < 23; ++i) {
    cudaEventRecord(begin, stream);
    must(cudaGraphLaunch(exec, stream), "replay");
    cudaEventRecord(end, stream);
    must(cudaEventSynchronize(end), "replay");
    float t = 0;
    cudaEventElapsedTime(&t, begin, end);
    if (i >= 3) ms.push_back(t);
  }
  std::sort(ms.begin(), ms.end());
  cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
  return ms[ms.size() / 2] * 1e-3 / n;
}

constexpr int kCopyThreads = 512, kCopyWords = 4;  // words of 16 bytes of a thread

__global__ void copy_words(uint4* to, const uint4* from) {
  const int64_t first = int64_t{blockIdx.x} * kCopyThreads * kCopyWords + threadIdx.x;
  uint4 x[kCopyWords];
#pragma unroll
  for (int j = 0; j < kCopyWords; ++j) x[j] = from[first + j * kCopyThreads];
#pragma unroll
  for (int j = 0; j < kCopyWords; ++j) to[first + j * kCopyThreads] = x[j];
}

// The better of the runtime's copy and a kernel's, in bytes read and written per second.
double copy_bandwidth() {
  const size_t bytes = size_t{4} << 30;
  Buffer<uint8_t> from(bytes), to(bytes);
  fill_bf16<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16*>(from.get()), bytes / 2, 1, 1.0f);
  const double runtime = median_time(
      1, [&](int, cudaStream_t s) { cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice, s); });
  const double kernel = median_time(1, [&](int, cudaStream_t s) {
    copy_words<<<static_cast<unsigned>(bytes / 16 / kCopyThreads / kCopyWords), kCopyThreads, 0, s>>>(
        reinterpret_cast<uint4*>(to.get()), reinterpret_cast<const uint4*>(from.get()));
  });
  std::printf("copy: runtime %.3f, kernel %.3f TB/s (read + write)\n", 2e-12 * bytes / runtime, 2e-12 * bytes / kernel);
  return 2.0 * bytes / std::min(runtime, kernel);
}

double time_case(int heads, int batch, int q_len, int length, bool float8, double bandwidth, double bf16_time) {
  const Case c{.heads = heads,
               .q_len = std::vector<int>(batch, q_len),
               .kv_len = std::vector<int>(batch, length),
               .float8 = float8};
  const double bytes = double(batch) * length * kMlaRow * (float8 ? 1 : 2);
  const int copies = static_cast<int>(std::clamp(2.4e8 / bytes, 2.0, 60.0));
  const Batch b(c, copies, 7);
  const double t = median_time(copies, [&](int i, cudaStream_t s) { must(mla_decode(b.copy(i), s), "mla_decode"); });
  const double flops = 2.0 * (kMlaRow + kMlaLatent) * heads * q_len * double(batch) * length;
  std::printf("%s heads %3d batch %3d q %d context %6d: %9.2f us  %6.3f TB/s = %4.1f %% of copy  %6.1f TFLOP/s",
              float8 ? "fp8 " : "bf16", heads, batch, q_len, length, t * 1e6, bytes / t * 1e-12,
              100 * bytes / t / bandwidth, flops / t * 1e-12);
  if (bf16_time > 0) std::printf("  %.3f of bf16", t / bf16_time);
  std::printf("\n");
  return t;
}

void time_all() {
  const double bandwidth = copy_bandwidth();
  struct Shape {
    int batch, q_len, length;
  };
  for (const Shape s : {Shape{1, 1, 4096}, Shape{8, 1, 131072}, Shape{64, 1, 16384}, Shape{64, 4, 16384}}) {
    for (const int heads : {8, 16, 32, 64, 128}) {
      const double bf16 = time_case(heads, s.batch, s.q_len, s.length, false, bandwidth, 0);
      time_case(heads, s.batch, s.q_len, s.length, true, bandwidth, bf16);
    }
  }
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device: nothing was run\n");
    return 0;
  }
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "--case" && argc == 7) {
    braid::time_case(std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5]),
                     std::string(argv[6]) == "fp8", 4.24e12, 0);
    return 0;
  }
  const int failed = mode == "--time" ? 0 : braid::check_all();
  if (mode != "--check") braid::time_all();
  return failed != 0;
}
