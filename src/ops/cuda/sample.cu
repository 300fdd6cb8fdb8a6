#include "ops/cuda/sample.h"

#include "ops/cuda/device.cuh"

namespace braid::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kBins = 2048;          // by distance from the largest logit
constexpr float kBinsPerUnit = 64.0f;  // the last bin takes everything beyond 32 units
constexpr float kWeightOne = 17592186044416.0f;  // 2^44

// Candidates in order: the larger logit, then the lower id. Equal logits give equal upper halves.
__device__ uint64_t rank_of(float x, int id) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 is 0
  const uint32_t key = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
  return uint64_t{key} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

struct Shared {
  unsigned long long weight[kBins];
  float floats[kWarp];
  double doubles[kWarp];
  unsigned long long sums[kWarp];
  uint64_t found;
  uint64_t before;  // measure of the bins above the chosen one
  int bin, n_list, best_id, nan;
};

// What a row's logits mean at some temperature; `max` is their largest.
struct Distribution {
  const float* logits;
  int n;
  float max, temperature;
  __device__ float exponent(float x) const { return (x - max) / temperature; }
  __device__ unsigned long long weight(float x) const {
    return static_cast<unsigned long long>(rintf(expf(exponent(x)) * kWeightOne));
  }
  __device__ int bin(float x) const { return static_cast<int>(fminf(-exponent(x) * kBinsPerUnit, kBins - 1)); }
};

__device__ unsigned long long block_total(unsigned long long x, Shared& s) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) s.sums[threadIdx.x / kWarp] = x;
  __syncthreads();
  unsigned long long total = 0;
  for (int w = 0; w < kWarps; ++w) total += s.sums[w];
  return total;
}

// Largest logit and its lowest id; id -1 where there is a NaN or nothing above -infinity.
__device__ void find_max(const float* logits, int n, Shared& s, float* max, int* id) {
  float best = -BRAID_INFINITY;
  int at = 0x7fffffff;
  bool nan = false;
#pragma unroll 4
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const float x = logits[i];
    nan |= isnan(x);
    if (x > best) {
      best = x;
      at = i;
    }
  }
  if (threadIdx.x == 0) s.nan = 0, s.best_id = 0x7fffffff;
  const float of_warp = warp_max(best);
  __syncthreads();
  if (nan) s.nan = 1;
  if (threadIdx.x % kWarp == 0) s.floats[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  *max = warp_max(s.floats[threadIdx.x % kWarp]);
  if (best == *max && *max > -BRAID_INFINITY) atomicMin(&s.best_id, at);
  __syncthreads();
  *id = s.nan || s.best_id == 0x7fffffff ? -1 : s.best_id;
  __syncthreads();
}

// Sum of exp(logit - max).
__device__ double sum_exp(const float* logits, int n, float max, Shared& s) {
  double sum = 0.0;
#pragma unroll 4
  for (int i = threadIdx.x; i < n; i += kThreads) sum += expf(logits[i] - max);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (threadIdx.x % kWarp == 0) s.doubles[threadIdx.x / kWarp] = sum;
  __syncthreads();
  double total = 0.0;
  for (int w = 0; w < kWarps; ++w) total += s.doubles[w];
  __syncthreads();
  return total;
}

// Block x: a part of row y.
__global__ __launch_bounds__(kThreads) void parts_kernel(SampleArgs a) {
  begin_after_previous();
  __shared__ Shared s;
  const int begin = static_cast<int>(int64_t{a.vocabulary} * blockIdx.x / kRowParts);
  const int n = static_cast<int>(int64_t{a.vocabulary} * (blockIdx.x + 1) / kRowParts) - begin;
  const float* logits = a.logits + blockIdx.y * a.stride + begin;
  RowPart part{};
  find_max(logits, n, s, &part.max, &part.id);
  if (s.nan) {
    part.id = -1;
  } else if (part.id < 0 || isinf(part.max)) {
    part.id = begin + max(part.id, 0);
  } else {
    part.id += begin;
    part.sum = sum_exp(logits, n, part.max, s);
  }
  if (threadIdx.x == 0) a.parts[blockIdx.y * kRowParts + blockIdx.x] = part;
}

// The whole row from its parts: largest logit, its lowest id or -1 as find_max() says, log of the sum of exponentials.
__device__ double join_parts(const RowPart* parts, float* max, int* id) {
  float most = -BRAID_INFINITY;
  bool nan = false;
  int at = -1;
#pragma unroll
  for (int p = 0; p < kRowParts; ++p) {
    nan |= parts[p].id < 0;
    if (parts[p].max > most) {
      most = parts[p].max;
      at = parts[p].id;
    }
  }
  double sum = 0.0;
#pragma unroll
  for (int p = 0; p < kRowParts; ++p) {
    if (parts[p].max > -BRAID_INFINITY) sum += parts[p].sum * exp(static_cast<double>(parts[p].max) - most);
  }
  *max = most;
  *id = nan ? -1 : at;
  return static_cast<double>(most) + log(sum);
}

// The first bin at which the measures from the top reach `target`; s.before: what the bins above it have. One warp.
__device__ void choose_bin(unsigned long long target, Shared& s) {
  constexpr int per_lane = kBins / kWarp;
  const int lane = threadIdx.x;
  unsigned long long own = 0;
  for (int i = 0; i < per_lane; ++i) own += s.weight[lane * per_lane + i];
  unsigned long long sum = own;
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) {
    const unsigned long long below = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += below;
  }
  const unsigned reached = __ballot_sync(~0u, sum >= target);
  if (lane != (reached ? __ffs(reached) - 1 : kWarp - 1)) return;
  unsigned long long before = sum - own;
  int bin = lane * per_lane;
  while (bin + 1 < (lane + 1) * per_lane && before + s.weight[bin] < target) before += s.weight[bin++];
  s.bin = bin;
  s.before = before;
}

// The highest cut such that the candidates not below it and not below `cut` measure at least `target` together; the
// measure of one is 1 (top_k) or its weight (top_p). `target` is at most what all of them measure.
__device__ uint64_t raise_cut(const Distribution& d, uint64_t cut, unsigned long long target, bool by_weight,
                              uint64_t* list, Shared& s) {
  for (int i = threadIdx.x; i < kBins; i += kThreads) s.weight[i] = 0;
  if (threadIdx.x == 0) s.n_list = 0, s.found = 0;
  __syncthreads();
#pragma unroll 4
  for (int i = threadIdx.x; i < d.n; i += kThreads) {
    const float x = d.logits[i];
    if (rank_of(x, i) >= cut) atomicAdd(&s.weight[d.bin(x)], by_weight ? d.weight(x) : 1ull);
  }
  __syncthreads();
  if (threadIdx.x < kWarp) choose_bin(target, s);
  __syncthreads();
#pragma unroll 4
  for (int i = threadIdx.x; i < d.n; i += kThreads) {
    const float x = d.logits[i];
    if (rank_of(x, i) >= cut && d.bin(x) == s.bin) list[atomicAdd(&s.n_list, 1)] = rank_of(x, i);
  }
  __syncthreads();  // also orders the block's writes to `list`
  const int n = s.n_list;
  const unsigned long long wanted = target - s.before;
  auto measure = [&](uint64_t rank) {
    return by_weight ? d.weight(d.logits[0xffffffffu - static_cast<uint32_t>(rank)]) : 1ull;
  };
  // Bit by bit: the highest rank at which the list still measures enough.
  if (n > kThreads) {
    uint64_t found = 0;
    for (int bit = 63; bit >= 0; --bit) {
      const uint64_t candidate = found | uint64_t{1} << bit;
      unsigned long long sum = 0;
      for (int i = threadIdx.x; i < n; i += kThreads) sum += list[i] >= candidate ? measure(list[i]) : 0;
      if (block_total(sum, s) >= wanted) found = candidate;
    }
    __syncthreads();
    return found;
  }
  // Few: each thread measures what is not below its own.
  if (static_cast<int>(threadIdx.x) < n) {
    const uint64_t own = list[threadIdx.x];
    unsigned long long sum = 0;
    for (int i = 0; i < n; ++i) sum += list[i] >= own ? measure(list[i]) : 0;
    if (sum >= wanted) atomicMax(reinterpret_cast<unsigned long long*>(&s.found), static_cast<unsigned long long>(own));
  }
  __syncthreads();
  const uint64_t found = s.found;
  __syncthreads();
  return found;
}

// How many candidates there are, or what they weigh.
__device__ unsigned long long measure_all(const Distribution& d, uint64_t cut, bool by_weight, Shared& s) {
  unsigned long long sum = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < d.n; i += kThreads) {
    const float x = d.logits[i];
    if (rank_of(x, i) >= cut) sum += by_weight ? d.weight(x) : 1ull;
  }
  const unsigned long long total = block_total(sum, s);
  __syncthreads();
  return total;
}

// The first candidate, by ascending id, at which the running weight exceeds draw * total. Each warp has a run of ids.
__device__ int draw_token(const Distribution& d, uint64_t cut, double draw, Shared& s) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int run = (d.n + kThreads - 1) / kThreads * kWarp, begin = warp * run, end = min(d.n, begin + run);
  auto weight_at = [&](int i) {
    if (i >= end) return 0ull;
    const float x = d.logits[i];
    return rank_of(x, i) >= cut ? d.weight(x) : 0ull;
  };
  unsigned long long sum = 0;
#pragma unroll 4
  for (int i = begin + lane; i < end; i += kWarp) sum += weight_at(i);
#pragma unroll
  for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
  if (lane == 0) s.sums[warp] = sum;
  if (threadIdx.x == 0) s.best_id = -1;
  __syncthreads();
  unsigned long long total = 0, before = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += s.sums[w];
    total += s.sums[w];
  }
  const auto target = static_cast<unsigned long long>(draw * static_cast<double>(total));
  if (before <= target && before + sum > target) {  // true of one warp
    for (int first = begin; first < end; first += kWarp) {
      const unsigned long long own = weight_at(first + lane);
      unsigned long long running = own;
#pragma unroll
      for (int k = 1; k < kWarp; k *= 2) {
        const unsigned long long below = __shfl_up_sync(~0u, running, k);
        if (lane >= k) running += below;
      }
      const unsigned over = __ballot_sync(~0u, before + running > target);
      if (over) {
        if (lane == 0) s.best_id = first + __ffs(over) - 1;
        break;
      }
      before += __shfl_sync(~0u, running, kWarp - 1);
    }
  }
  __syncthreads();
  return s.best_id;
}

__device__ void apply_edits(const SampleArgs& a, const SampleRow& row, float* logits) {
  if (row.mask >= 0) {
    const uint32_t* allowed = a.masks + row.mask;
    for (int i = threadIdx.x; i < a.vocabulary; i += kThreads) {
      if (!(allowed[i / 32] >> (i % 32) & 1u)) logits[i] = -BRAID_INFINITY;
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < row.n_edits; i += kThreads) {
    const LogitEdit e = a.edits[row.first_edit + i];
    float x = e.banned ? -BRAID_INFINITY : logits[e.id];
    x += e.bias;
    if (e.count >= 0 && row.repetition != 1.0f) x = x > 0.0f ? x / row.repetition : x * row.repetition;
    if (e.count > 0) x -= row.frequency * static_cast<float>(e.count) + row.presence;
    logits[e.id] = x;
  }
  __syncthreads();
}

// Ids and log-probabilities of the n best, in no order.
__device__ void best_logprobs(const SampleArgs& a, const Distribution& d, int n, double lse, uint64_t* list, Shared& s) {
  const int64_t at = int64_t{blockIdx.x} * a.most_top;
  const uint64_t cut = raise_cut(d, 0, static_cast<unsigned long long>(min(n, d.n)), false, list, s);
  if (threadIdx.x == 0) s.n_list = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < d.n; i += kThreads) {
    if (rank_of(d.logits[i], i) < cut) continue;
    const int to = atomicAdd(&s.n_list, 1);
    a.top_ids[at + to] = i;
    a.top_logprobs[at + to] = static_cast<float>(d.logits[i] - lse);
  }
  __syncthreads();
}

__global__ __launch_bounds__(kThreads) void sample_kernel(SampleArgs a) {
  begin_after_previous();
  __shared__ Shared s;
  const SampleRow row = a.rows[blockIdx.x];
  float* logits = a.logits + blockIdx.x * a.stride;
  uint64_t* list = a.list + int64_t{blockIdx.x} * a.vocabulary;
  const int n = a.vocabulary;
  float max;
  int token;
  if (threadIdx.x == 0) a.tokens[blockIdx.x] = -1, a.logprobs[blockIdx.x] = 0.0f;
  const double lse = join_parts(a.parts + blockIdx.x * kRowParts, &max, &token);
  if (token < 0 || isinf(max)) return;
  if (row.n_top > 0) best_logprobs(a, {logits, n, max, 1.0f}, row.n_top, lse, list, s);

  const bool edited = row.mask >= 0 || row.n_edits > 0;
  if (edited) {
    for (int i = threadIdx.x; i < row.n_edits; i += kThreads) {
      a.edits[row.first_edit + i].original = logits[a.edits[row.first_edit + i].id];
    }
    __syncthreads();
    apply_edits(a, row, logits);
    find_max(logits, n, s, &max, &token);
    if (token < 0) return;
  }
  if (row.temperature > 0.0f) {
    const Distribution d{logits, n, max, row.temperature};
    const float floor = row.min_p > 0.0f ? max + row.temperature * logf(row.min_p) : -BRAID_INFINITY;
    uint64_t cut = rank_of(fmaxf(floor, -3.402823466e38f), 0) >> 32 << 32;
    if (row.top_k > 0 && row.top_k < n && measure_all(d, cut, false, s) > static_cast<unsigned long long>(row.top_k)) {
      cut = raise_cut(d, cut, static_cast<unsigned long long>(row.top_k), false, list, s);
    }
    if (row.top_p < 1.0f) {
      const double total = static_cast<double>(measure_all(d, cut, true, s));
      const double target = fmax(1.0, ceil(static_cast<double>(row.top_p) * total));
      cut = raise_cut(d, cut, static_cast<unsigned long long>(target), true, list, s);
    }
    token = draw_token(d, cut, row.draw, s);
  }
  if (threadIdx.x == 0) {
    a.tokens[blockIdx.x] = token;
    a.logprobs[blockIdx.x] = static_cast<float>(logits[token] - lse);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < row.n_edits; i += kThreads) {
    const LogitEdit& e = a.edits[row.first_edit + i];
    if (e.id == token) a.logprobs[blockIdx.x] = static_cast<float>(e.original - lse);
  }
}

}  // namespace

void sample(cudaStream_t stream, const SampleArgs& a) {
  launch(stream, parts_kernel, dim3(kRowParts, static_cast<unsigned>(a.n_rows)), kThreads, 0, a);
  CUDA_CHECK_LAUNCH("sample, parts");
  launch(stream, sample_kernel, static_cast<unsigned>(a.n_rows), kThreads, 0, a);
  CUDA_CHECK_LAUNCH("sample");
}

}  // namespace braid::cuda
