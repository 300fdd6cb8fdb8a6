// A mixture of experts for a few rows of bfloat16, and the gated network beside it that every row passes, in two launches
// that read each weight once. That network is taken as further experts of the same width, which every row chooses with
// weight 1. The first launch computes the gated products of every expert that some row chose, the second their down
// products and the weighted sums. No lists are made in between: whoever chose an expert is looked up in the ids.
//
// Rows of x are columns of the tensor cores' product, row t always column t; columns that did not choose the expert are
// zeros.
#include "ops/cuda/moe.h"
#include "ops/cuda/narrow.cuh"
#include "ops/cuda/product.cuh"

namespace braid::cuda {
namespace {

constexpr int kGateWarps = 4, kDownWarps = 16;
constexpr int kMaxChoices = 16;                        // of a row, those of the shared experts included
constexpr int kMaxTiles = kFewRows * kMaxChoices;

struct FewArgs {
  const BFloat16 *x, *gate_up, *down;                // gate_up [experts, 2 F, H], down [experts, H, F]
  const BFloat16 *shared_gate_up, *shared_down;      // [2 S F, H], [H, S F]
  const int32_t* ids;
  const float* weights;
  BFloat16* gated;                                   // [rows, choices, F]
  float* y;
  int64_t x_stride, y_stride, ids_stride, weights_stride, hidden, ffn;
  int rows, top_k, n_shared, first, experts;
  __device__ int choices() const { return top_k + n_shared; }
};

// Which of row t's choices is `expert` (a global id), or -1.
__device__ int choice_of(const FewArgs& a, int t, int expert) {
  int choice = -1;
#pragma unroll 8
  for (int j = 0; j < a.top_k; ++j) {
    if (a.ids[t * a.ids_stride + j] == expert) choice = j;
  }
  return choice;
}

// Block y: first the shared experts, then one tile for each (row, choice); it works if the row is the first to have
// chosen the expert. Block x: eight columns of F.
template <int kEights>
__global__ __launch_bounds__(kGateWarps* kWarp, 4) void few_gate_up_kernel(FewArgs a) {
  __shared__ NarrowSums<kEights, kGateWarps> sums;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, q = lane % 4;
  const int tile = blockIdx.y, chunks = static_cast<int>(a.hidden / kNarrowDepth);
  const bool shared = tile < a.n_shared;
  const int64_t n0 = int64_t{blockIdx.x} * 8;
  NarrowChunk ahead[kNarrowAhead];
  const BFloat16 *w_low, *w_high;
  auto load = [&](NarrowChunk& to, int c) {
    if (c < chunks) to.load(w_low + c * kNarrowDepth, w_high + c * kNarrowDepth);
  };
  auto begin_loading = [&](const BFloat16* gate, int64_t up_rows) {
    w_low = gate + min(n0 + g, a.ffn - 1) * a.hidden + q * 8;
    w_high = w_low + up_rows * a.hidden;
#pragma unroll
    for (int i = 0; i < kNarrowAhead; ++i) load(ahead[i], warp + i * kGateWarps);
  };
  if (shared) begin_loading(a.shared_gate_up + tile * a.ffn * a.hidden, a.n_shared * a.ffn);
  wait_for_previous();
  let_next_begin();  // only now: the second kernel reads the ids ahead of its own wait

  int choice[kEights];  // of row g of each eight
  const int pair = tile - a.n_shared, owner = shared ? 0 : pair / a.top_k;
  const int expert = shared ? 0 : a.ids[owner * a.ids_stride + pair % a.top_k];
  const int64_t held = expert - a.first;
  if (!shared && (held < 0 || held >= a.experts)) return;
  bool earlier = false;
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const int t = e * 8 + g;
    choice[e] = t >= a.rows ? -1 : shared ? a.top_k + tile : choice_of(a, t, expert);
    earlier = earlier || (!shared && choice[e] >= 0 && t < owner);
  }
  if (__any_sync(~0u, earlier)) return;  // the same in every warp
  if (!shared) begin_loading(a.gate_up + held * 2 * a.ffn * a.hidden, a.ffn);
  const BFloat16* x[kEights];
#pragma unroll
  for (int e = 0; e < kEights; ++e) x[e] = choice[e] < 0 ? nullptr : a.x + (e * 8 + g) * a.x_stride + q * 8;

  float acc[kEights][4] = {};
  for (int c0 = warp; c0 < chunks; c0 += kGateWarps * kNarrowAhead) {
#pragma unroll
    for (int i = 0; i < kNarrowAhead; ++i) {
      const int c = c0 + i * kGateWarps;
      if (c >= chunks) break;
      multiply_narrow<kEights, false>(acc, ahead[i], x, int64_t{c} * kNarrowDepth);
      load(ahead[i], c + kGateWarps * kNarrowAhead);
    }
  }
  sums.put(acc);
  __shared__ int of_row[8 * kEights];
  if (warp == 0 && q == 0) {
#pragma unroll
    for (int e = 0; e < kEights; ++e) of_row[e * 8 + g] = choice[e];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 64 * kEights; i += kGateWarps * kWarp) {
    const int column = i % 8, t = i / 8;
    if (of_row[t] < 0 || n0 + column >= a.ffn) continue;
    const float value = gated_value(sums.total(column, t), sums.total(column + 8, t));
    a.gated[(int64_t{t} * a.choices() + of_row[t]) * a.ffn + n0 + column] = from_f<BFloat16>(value);
  }
}

// The experts that the rows chose, each once, and which choice of each row that is.
struct FewTiles {
  int n;
  int expert[kMaxTiles];  // counted from the first held here; shared ones by their number
  int8_t choice[kMaxTiles][kFewRows];
  int id[kFewRows][kMaxChoices];
  float weight[kFewRows][kMaxChoices];

  __device__ void make(const FewArgs& a) {
    for (int i = threadIdx.x; i < a.rows * a.choices(); i += blockDim.x) {
      const int t = i / a.choices(), j = i % a.choices();
      const bool routed = j < a.top_k;
      id[t][j] = routed ? a.ids[t * a.ids_stride + j] - a.first : -1;
      weight[t][j] = routed ? a.weights[t * a.weights_stride + j] : 1.0f;
    }
    __syncthreads();
    if (threadIdx.x < kWarp) list(a);
    __syncthreads();
    for (int i = threadIdx.x; i < n * kFewRows; i += blockDim.x) {
      const int tile = i / kFewRows, t = i % kFewRows;
      choice[tile][t] = static_cast<int8_t>(t >= a.rows ? -1 : tile < a.n_shared ? a.top_k + tile : chosen_as(a, t, expert[tile]));
    }
    __syncthreads();
  }

 private:
  __device__ int chosen_as(const FewArgs& a, int t, int held) const {
    int found = -1;
    for (int j = 0; j < a.top_k; ++j) {
      if (id[t][j] == held) found = j;
    }
    return found;
  }

  __device__ void list(const FewArgs& a) {  // by one warp
    const int lane = threadIdx.x, pairs = a.rows * a.top_k;
    if (lane < a.n_shared) expert[lane] = lane;
    int found = a.n_shared;
    for (int p0 = 0; p0 < pairs; p0 += kWarp) {
      const int p = p0 + lane;
      int held = -1;
      bool first = false;
      if (p < pairs) {
        const int t = p / a.top_k;
        held = id[t][p % a.top_k];
        first = 0 <= held && held < a.experts;
        for (int before = 0; first && before < t; ++before) first = chosen_as(a, before, held) < 0;
      }
      const unsigned all = __ballot_sync(~0u, first);
      if (first) expert[found + __popc(all & ((1u << lane) - 1))] = held;
      found += __popc(all);
    }
    if (lane == 0) n = found;
  }
};

// A block: 16 columns of H. The chunks of all tiles, one tile behind the other, are cut evenly among the warps; a warp's
// sum for a tile is multiplied by the rows' weights when the tile ends.
template <int kEights>
__global__ __launch_bounds__(kDownWarps* kWarp, 1) void few_down_kernel(FewArgs a) {
  __shared__ FewTiles tiles;
  __shared__ NarrowSums<kEights, kDownWarps> sums;
  tiles.make(a);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, q = lane % 4;
  const int chunks = static_cast<int>(a.ffn / kNarrowDepth), all = tiles.n * chunks;
  const int begin = all * warp / kDownWarps, end = all * (warp + 1) / kDownWarps;
  const int64_t n0 = int64_t{blockIdx.x} * kNarrowRowsOfW;
  const int64_t low = min(n0 + g, a.hidden - 1), high = min(n0 + g + 8, a.hidden - 1);
  auto load = [&](NarrowChunk& to, int i) {
    if (i >= end) return;
    const int tile = i / chunks, lanes = i % chunks * kNarrowDepth + q * 8;
    const bool shared = tile < a.n_shared;
    const BFloat16* w = shared ? a.shared_down + tile * a.ffn : a.down + tiles.expert[tile] * a.hidden * a.ffn;
    const int64_t stride = shared ? a.n_shared * a.ffn : a.ffn;
    to.load(w + low * stride + lanes, w + high * stride + lanes);
  };
  NarrowChunk ahead[kNarrowAhead];
#pragma unroll
  for (int i = 0; i < kNarrowAhead; ++i) load(ahead[i], begin + i);
  begin_after_previous();

  float total[kEights][4] = {}, acc[kEights][4] = {};
  const BFloat16* x[kEights];
  for (int i0 = begin; i0 < end; i0 += kNarrowAhead) {
#pragma unroll
    for (int k = 0; k < kNarrowAhead; ++k) {
      const int i = i0 + k;
      if (i >= end) break;
      const int tile = i / chunks, c = i % chunks;
      if (c == 0 || i == begin) {
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
          const int choice = tiles.choice[tile][e * 8 + g];
          x[e] = choice < 0 ? nullptr : a.gated + (int64_t{e * 8 + g} * a.choices() + choice) * a.ffn + q * 8;
        }
      }
      multiply_narrow<kEights, false>(acc, ahead[k], x, int64_t{c} * kNarrowDepth);
      load(ahead[k], i + kNarrowAhead);
      if (c + 1 < chunks && i + 1 < end) continue;
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int t = e * 8 + q * 2 + k % 2, choice = tiles.choice[tile][t];
          if (choice >= 0) total[e][k] += tiles.weight[t][choice] * acc[e][k];
          acc[e][k] = 0.0f;
        }
      }
    }
  }
  sums.put(total);
  __syncthreads();
  for (int i = threadIdx.x; i < kNarrowRowsOfW * a.rows; i += kDownWarps * kWarp) {
    const int column = i % kNarrowRowsOfW, t = i / kNarrowRowsOfW;
    if (n0 + column < a.hidden) a.y[t * a.y_stride + n0 + column] = sums.total(column, t);
  }
}

template <int kEights>
void launch_few(cudaStream_t stream, const FewArgs& a) {
  const dim3 tiles(blocks_for(a.ffn, 8), static_cast<unsigned>(a.n_shared + a.rows * a.top_k));
  launch(stream, few_gate_up_kernel<kEights>, tiles, kGateWarps * kWarp, 0, a);
  CUDA_CHECK_LAUNCH("moe_few, gate and up");
  launch(stream, few_down_kernel<kEights>, blocks_for(a.hidden, kNarrowRowsOfW), kDownWarps * kWarp, 0, a);
  CUDA_CHECK_LAUNCH("moe_few, down");
}

int shared_experts(const ExpertWeights& w, const GatedWeights* shared) { return shared ? static_cast<int>(shared->down.k / w.ffn) : 0; }

bool narrow_weights(const LinearWeight& w) { return w.stored == DType::kBF16 && w.k_slices == 1 && !w.bias && divides_16(w.packed.data); }

}  // namespace

bool moe_few_takes(Tensor y, Tensor x, Tensor ids, const ExpertWeights& w, const GatedWeights* shared) {
  if (shared && (shared->down.k % w.ffn != 0 || !narrow_weights(shared->gate_up) || !narrow_weights(shared->down))) return false;
  return 0 < x.dim(0) && x.dim(0) <= kFewRows && x.dtype == DType::kBF16 && y.dtype == DType::kF32 && w.stored == DType::kBF16 && w.k_slices == 1 &&
         w.hidden % kNarrowDepth == 0 && w.ffn % kNarrowDepth == 0 && x.stride[0] % 8 == 0 && divides_16(x.data) &&
         ids.dim(1) + shared_experts(w, shared) <= kMaxChoices;
}

void moe_few(cudaStream_t stream, Tensor y, Tensor x, Tensor ids, Tensor weights, const ExpertWeights& w, const GatedWeights* shared, Tensor gated) {
  FewArgs a{};
  a.x = data_of<BFloat16>(x);
  a.gate_up = data_of<BFloat16>(w.gate_up);
  a.down = data_of<BFloat16>(w.down);
  if (shared) {
    a.shared_gate_up = data_of<BFloat16>(shared->gate_up.packed);
    a.shared_down = data_of<BFloat16>(shared->down.packed);
  }
  a.ids = data_of<int32_t>(ids);
  a.weights = data_of<float>(weights);
  a.gated = data_of<BFloat16>(gated);
  a.y = data_of<float>(y);
  a.x_stride = x.stride[0];
  a.y_stride = y.stride[0];
  a.ids_stride = ids.stride[0];
  a.weights_stride = weights.stride[0];
  a.hidden = w.hidden;
  a.ffn = w.ffn;
  a.rows = static_cast<int>(x.dim(0));
  a.top_k = static_cast<int>(ids.dim(1));
  a.n_shared = shared_experts(w, shared);
  a.first = w.first;
  a.experts = w.count;
  a.rows <= 8 ? launch_few<1>(stream, a) : launch_few<2>(stream, a);
}

int64_t moe_few_choices(Tensor ids, const ExpertWeights& w, const GatedWeights* shared) { return ids.dim(1) + shared_experts(w, shared); }

}  // namespace braid::cuda
