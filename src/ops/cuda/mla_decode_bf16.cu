// Latent attention's decode kernel for a bfloat16 cache (sm_90a).
//
// A block holds 64 query rows and walks over the context in tiles of 64 cached rows, in four warpgroups:
//   loader    one thread: fetches query tiles and cache tiles, two of the latter in flight, and tells the others what
//   to do scores    S = Q K^T, softmax numerators P (kept relative to a maximum that is raised only by more than 2^8,
//   so that
//             results are hardly ever rescaled), row sums
//   values    two warpgroups, each with 256 of the 512 output columns in registers: O += P V
// Products of one tile thus run beside the softmax of another. P passes through shared memory in register order: thread
// i of the score group writes what thread i of either value group needs as its operand.
//
// A cache tile lies in shared memory as nine pieces of 64 tokens x 64 lanes in the 128-byte swizzle: K with its lanes
// contiguous, V (the first eight pieces) read transposed. Pieces 0-3, 4-7 and 8 are given back apart, by their last
// readers. In a pair of blocks (two row tiles of the same sequence) each block fetches half of every tile for both.
#include "ops/cuda/mla_plan.cuh"
#include "ops/cuda/mla_ptx.cuh"

// For older GPUs the kernel is compiled empty, and what it uses is then unused.
#pragma nv_diag_suppress 177

namespace braid {
namespace {

constexpr int kRows = 64, kTokens = 64, kPieces = 9, kStages = 2;
constexpr int kPieceBytes = 64 * 64 * 2;
constexpr int kTileBytes = kPieces * kPieceBytes;
constexpr int kThreads = 512;
constexpr float kRaise = 8.0f;  // log2 units by which scores may pass the running maximum

enum Release { kLeft, kRight, kRope, kReleases };  // groups of pieces that are given back together

struct Shared {
  alignas(1024) uint8_t q[kTileBytes];
  alignas(1024) uint8_t kv[kStages][kTileBytes];
  uint4 p[4][128];       // [16 tokens each][thread]: the operand registers of P
  float factor[kRows];   // what results so far are multiplied with
  float inverse[kRows];  // after the last tile: 1 / row sum, times the value scale
  int raised[4];         // per warp: whether factors differ from 1
  MlaItem item;
  uint64_t full[kStages][kPieces], empty[kStages][kReleases];
  uint64_t item_full, item_empty, p_full[2], p_empty;  // P comes in halves of 32 tokens
};

template <bool kPair>
__device__ void release(uint64_t* bar) {
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
  if constexpr (kPair) {
    barrier_arrive_cluster(bar, 0);
    barrier_arrive_cluster(bar, 1);
  } else {
    barrier_arrive(bar);
  }
}

__device__ void arrive_once(uint64_t* bar) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(bar);
}

// Counts tiles over all items: which stage a tile is in and which phase its barriers are in.
struct Ring {
  int n = 0;
  __device__ int stage() const { return n % kStages; }
  __device__ uint32_t phase() const { return n / kStages & 1; }
};

// The cache rows of a tile, `box` tokens at a time; rows past the context become a coordinate that yields zeros.
template <bool kPair>
struct TileRows {
  static constexpr int kBoxes = (kPair ? 32 : 64) / 16;
  int row[kBoxes];

  __device__ void find(const MlaPlan& plan, const MlaItem& item, int tile, int box, int first) {
    const MlaDecodeArgs& a = plan.args;
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      const int token = tile * kTokens + first + i * box;
      const bool here = i * box < kBoxes * 16 && token < item.length;
      row[i] = here ? a.block_table[static_cast<int64_t>(item.seq) * a.table_columns + token / a.shard.block_size] *
                              a.shard.block_size +
                          token % a.shard.block_size
                    : static_cast<int>(a.n_slots);
    }
  }
};

template <bool kPair>
__device__ void load_pieces(Shared& sm, const CUtensorMap* map, const TileRows<kPair>& rows, int box, int first,
                            int stage, int begin, int end) {
  for (int piece = begin; piece < end; ++piece) {
    uint64_t* bar = &sm.full[stage][piece];
    barrier_expect(bar, kPieceBytes);
#pragma unroll
    for (int i = 0; i < TileRows<kPair>::kBoxes; ++i) {
      if (i * box >= TileRows<kPair>::kBoxes * 16) break;
      uint8_t* to = sm.kv[stage] + piece * kPieceBytes + (first + i * box) * 128;
      if constexpr (kPair) {
        load_box_pair(to, map, piece * 64, rows.row[i], bar);
      } else {
        load_box(to, map, piece * 64, rows.row[i], bar, kReadOnce);
      }
    }
  }
}

template <bool kPair>
__device__ void load_loop(Shared& sm, const MlaPlan& plan, const CUtensorMap* q_map, const CUtensorMap* kv_map,
                          MlaWalk walk, int box) {
  const int part = blockIdx.y, row_tile = blockIdx.x, partner = kPair ? row_tile ^ 1 : row_tile;
  const int first = kPair ? static_cast<int>(cluster_rank()) * 32 : 0;
  Ring ring;
  MlaItem next = walk.next(plan, part, row_tile, partner);
  for (int n = 0;; ++n) {
    const MlaItem item = next;
    TileRows<kPair> rows;
    rows.find(plan, item, item.first_tile, box, first);
    barrier_wait(&sm.item_empty, (n & 1) ^ 1);
    sm.item = item;
    if (item.seq < 0) return barrier_arrive(&sm.item_full);
    barrier_expect(&sm.item_full, kTileBytes);
    for (int piece = 0; piece < kPieces; ++piece) {
      load_box(sm.q + piece * kPieceBytes, q_map, piece * 64, item.first_row, &sm.item_full, kReadOnce);
    }
    next = walk.next(plan, part, row_tile, partner);
    for (int piece = 0; next.seq >= 0 && piece < kPieces; ++piece) prefetch_box(q_map, piece * 64, next.first_row);
    for (int tile = item.first_tile; tile < item.last_tile; ++tile, ++ring.n) {
      const int stage = ring.stage();
      if (tile > item.first_tile) rows.find(plan, item, tile, box, first);
      barrier_wait(&sm.empty[stage][kLeft], ring.phase() ^ 1);
      load_pieces<kPair>(sm, kv_map, rows, box, first, stage, 0, 4);
      barrier_wait(&sm.empty[stage][kRight], ring.phase() ^ 1);
      load_pieces<kPair>(sm, kv_map, rows, box, first, stage, 4, 8);
      barrier_wait(&sm.empty[stage][kRope], ring.phase() ^ 1);
      load_pieces<kPair>(sm, kv_map, rows, box, first, stage, 8, 9);
    }
  }
}

// Softmax of one tile of scores for the two rows of a thread.
struct RowState {
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f}, factor[2];
  int visible[2] = {0, 0};

  // Masks scores and finds what results so far are to be multiplied with; true: not with 1.
  __device__ bool raise(float (&s)[32], float scale, int first_token) {
    if (first_token + kTokens > min(visible[0], visible[1])) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int token = first_token + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        if (token >= visible[i / 2 % 2]) s[i] = -INFINITY;
      }
    }
    float high[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < 32; ++i) high[i / 2 % 2] = fmaxf(high[i / 2 % 2], s[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) high[r] = fmaxf(high[r], __shfl_xor_sync(~0u, high[r], 1));
#pragma unroll
    for (int r = 0; r < 2; ++r) high[r] = fmaxf(high[r], __shfl_xor_sync(~0u, high[r], 2)) * scale;
    bool raised = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool more = high[r] > most[r] + kRaise;
      factor[r] = more ? fast_exp2(most[r] - high[r]) : 1.0f;
      if (more) most[r] = high[r];
      raised |= more;
      sum[r] *= factor[r];
    }
    return raised;
  }

  // Scores of half a tile, 32 tokens, become numerators.
  __device__ void exponentiate(float (&s)[32], float scale, int half) {
    float part[4] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float most_here = most[i / 2 % 2], base = most_here == -INFINITY ? 0.0f : most_here;
      float& x = s[16 * half + i];
      x = fast_exp2(fmaf(x, scale, -base));
      part[i % 4] += x;
    }
    sum[0] += part[0] + part[1];
    sum[1] += part[2] + part[3];
  }
};

__device__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ void score_product(Shared& sm, float (&s)[32], const Ring& ring) {
  const uint64_t q = operand(smem_address(sm.q), 1024), k = operand(smem_address(sm.kv[ring.stage()]), 1024);
  product_pin(s);
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    barrier_wait(&sm.full[ring.stage()][piece], ring.phase());
    product_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int at = (piece * kPieceBytes + step * 32) / 16;
      product_64x64(s, q + at, k + at, piece + step > 0);
    }
  }
  product_commit();
  product_wait<0>();
  product_pin(s);
}

// Row sums, the last message to the value groups and the log-sum-exp of an item.
__device__ void finish_rows(Shared& sm, const MlaPlan& plan, const MlaItem& item, RowState& state, int row) {
  const MlaDecodeArgs& a = plan.args;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const int at = row + 8 * r;
    if (threadIdx.x % 4 != 0) continue;
    sm.inverse[at] = sum > 0.0f ? a.cache_scale / sum : 0.0f;
    if (at >= item.rows) continue;
    const float lse = sum > 0.0f ? state.most[r] + log2f(sum) : -INFINITY;
    if (item.partial >= 0) {
      plan.part_lse[static_cast<int64_t>(item.partial) * kRows + at] = lse;
    } else if (a.lse) {
      a.lse[item.first_row + at] = lse * 0.69314718055994531f;
    }
  }
}

template <bool kPair>
__device__ void score_loop(Shared& sm, const MlaPlan& plan) {
  const MlaDecodeArgs& a = plan.args;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, row = warp * 16 + lane / 4;
  Ring ring;
  uint32_t p_phase = 1;
  for (int n = 0;; ++n) {
    barrier_wait(&sm.item_full, n & 1);
    const MlaItem item = sm.item;
    if (item.seq < 0) return;
    RowState state;
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r >= item.rows) continue;
      const int token = item.first_token + (item.row_in_seq + row + 8 * r) / a.n_heads;
      state.visible[r] = static_cast<int>(a.shard.local_length(a.positions[token] + 1));
    }
    for (int tile = item.first_tile; tile < item.last_tile; ++tile, ++ring.n) {
      float s[32];
      score_product(sm, s, ring);
      release<kPair>(&sm.empty[ring.stage()][kRope]);
      const bool raised = __any_sync(~0u, state.raise(s, plan.score_scale, tile * kTokens));
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // the first half is multiplied while the second is made
        state.exponentiate(s, plan.score_scale, half);
        if (half == 0) {
          barrier_wait(&sm.p_empty, p_phase);
          p_phase ^= 1;
          if (lane % 4 == 0) sm.factor[row] = state.factor[0], sm.factor[row + 8] = state.factor[1];
          if (lane == 0) sm.raised[warp] = raised;
        }
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          sm.p[i][threadIdx.x % 128] = make_uint4(pack(s[8 * i], s[8 * i + 1]), pack(s[8 * i + 2], s[8 * i + 3]),
                                                  pack(s[8 * i + 4], s[8 * i + 5]), pack(s[8 * i + 6], s[8 * i + 7]));
        }
        arrive_once(&sm.p_full[half]);
      }
    }
    arrive_once(&sm.item_empty);
    barrier_wait(&sm.p_empty, p_phase);
    p_phase ^= 1;
    finish_rows(sm, plan, item, state, row);
    arrive_once(&sm.p_full[0]);
  }
}

// Cached rows past the context may hold anything, and zero times anything is not always zero.
__device__ void clear_rows(uint8_t* half, int from, int thread) {
  for (int i = from * 32 + thread; i < kTokens * 32; i += 128) {
    *reinterpret_cast<uint4*>(half + i % 4 * kPieceBytes + i / 32 * 128 + i / 4 % 8 * 16) = uint4{};
  }
  fence_async_proxy();
}

__device__ void store_rows(const MlaPlan& plan, const MlaItem& item, const float (&o)[2][64], const float (&inverse)[2],
                           int row, int column) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + 8 * r;
    if (at >= item.rows) continue;
    if (item.partial >= 0) {
      float* to = plan.part_out + (static_cast<int64_t>(item.partial) * kRows + at) * kMlaLatent + column;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        *reinterpret_cast<float2*>(to + 8 * i) =
            make_float2(o[i / 16][i % 16 * 4 + 2 * r] * inverse[r], o[i / 16][i % 16 * 4 + 2 * r + 1] * inverse[r]);
      }
    } else {
      auto* to = static_cast<__nv_bfloat16*>(plan.args.out) + (static_cast<int64_t>(item.first_row) + at) * kMlaLatent +
                 column;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        *reinterpret_cast<uint32_t*>(to + 8 * i) =
            pack(o[i / 16][i % 16 * 4 + 2 * r] * inverse[r], o[i / 16][i % 16 * 4 + 2 * r + 1] * inverse[r]);
      }
    }
  }
}

template <bool kPair>
__device__ void value_loop(Shared& sm, const MlaPlan& plan, int half) {
  const int thread = threadIdx.x % 128, warp = thread / 32, row = warp * 16 + thread % 32 / 4;
  Ring ring;
  uint32_t p_phase[2] = {0, 0};
  for (int n = 0;; ++n) {
    barrier_wait(&sm.item_full, n & 1);
    const MlaItem item = sm.item;
    arrive_once(&sm.item_empty);
    if (item.seq < 0) return;
    let_next_begin();  // the merge waits for this grid's end all the same, but is then already there
    float o[2][64];
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i / 64][i % 64] = 0.0f;
    for (int tile = item.first_tile; tile < item.last_tile; ++tile, ++ring.n) {
      uint8_t* v = sm.kv[ring.stage()] + half * 4 * kPieceBytes;
      const uint64_t at = operand(smem_address(v), 1024, kPieceBytes);
      uint4 p[4];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        barrier_wait(&sm.p_full[part], p_phase[part]);
        p_phase[part] ^= 1;
#pragma unroll
        for (int i = 2 * part; i < 2 * part + 2; ++i) p[i] = sm.p[i][thread];
        if (part == 0) {
          if (sm.raised[warp]) {
            const float factor[2] = {sm.factor[row], sm.factor[row + 8]};
#pragma unroll
            for (int i = 0; i < 128; ++i) o[i / 64][i % 64] *= factor[i / 2 % 2];
          }
          if ((tile + 1) * kTokens > item.length) {
            clear_rows(v, item.length - tile * kTokens, thread);
            named_barrier(1 + half, 128);
          }
          product_pin(o[0]);
          product_pin(o[1]);
        } else {
          arrive_once(&sm.p_empty);
        }
        product_fence();
#pragma unroll
        for (int i = 4 * part; i < 4 * part + 4; ++i) {
          product_64x128(o[i % 2], p[i / 2], at + (i % 2 * 2 * kPieceBytes + i / 2 * 2048) / 16);
        }
        product_commit();
      }
      product_wait<0>();
      product_pin(o[0]);
      product_pin(o[1]);
      release<kPair>(&sm.empty[ring.stage()][half == 0 ? kLeft : kRight]);
    }
    barrier_wait(&sm.p_full[0], p_phase[0]);
    p_phase[0] ^= 1;
    const float inverse[2] = {sm.inverse[row], sm.inverse[row + 8]};
    arrive_once(&sm.p_empty);
    store_rows(plan, item, o, inverse, row, half * 256 + thread % 4 * 2);
  }
}

template <bool kPair>
__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_bf16_kernel(const __grid_constant__ MlaPlan plan, const __grid_constant__ CUtensorMap q_map,
                           const __grid_constant__ CUtensorMap kv_map, int box) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t dynamic[];
  Shared& sm = *reinterpret_cast<Shared*>(dynamic);
  int* units = reinterpret_cast<int*>(sm.kv);  // before the first tile arrives
  mla_measure(plan, units);
  if (threadIdx.x == 0) {
    prefetch_map(&q_map);
    prefetch_map(&kv_map);
    const int readers = kPair ? 8 : 4;
    for (int stage = 0; stage < kStages; ++stage) {
      for (int i = 0; i < kPieces; ++i) barrier_init(&sm.full[stage][i], 1);
      for (int i = 0; i < kReleases; ++i) barrier_init(&sm.empty[stage][i], readers);
    }
    barrier_init(&sm.item_full, 1);
    barrier_init(&sm.item_empty, 12);
    for (uint64_t& bar : sm.p_full) barrier_init(&bar, 4);
    barrier_init(&sm.p_empty, 8);
    barrier_init_fence();
  }
  __syncthreads();
  const int group = threadIdx.x / 128;
  if (group == 0) {
    give_registers<64>();
    if (threadIdx.x < 32) {
      const MlaWalk walk = mla_find(plan, units, blockIdx.y, blockIdx.x == 0 && blockIdx.y == 0);
      fence_async_proxy();
      if constexpr (kPair) cluster_sync();
      if (threadIdx.x == 0) load_loop<kPair>(sm, plan, &q_map, &kv_map, walk, box);
      __syncwarp();
    } else {
      if constexpr (kPair) cluster_sync();
    }
  } else if (group == 1) {
    give_registers<96>();
    if constexpr (kPair) cluster_sync();
    score_loop<kPair>(sm, plan);
  } else {
    take_registers<176>();
    if constexpr (kPair) cluster_sync();
    value_loop<kPair>(sm, plan, group - 2);
  }
  if constexpr (kPair) cluster_sync();
#endif
}

// A two-dimensional tensor of bf16 rows of 576, in boxes of 64 lanes by `box` rows.
bool describe(CUtensorMap* map, const void* base, int64_t rows, int box) {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  if (!encode) return false;
  const cuuint64_t size[2] = {kMlaRow, static_cast<cuuint64_t>(rows)}, stride[1] = {kMlaRow * 2};
  const cuuint32_t part[2] = {64, static_cast<cuuint32_t>(box)}, step[2] = {1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(base), size, stride, part, step,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <bool kPair>
cudaError_t launch(const MlaPlan& plan, cudaStream_t stream) {
  const MlaDecodeArgs& a = plan.args;
  int box = kPair ? 32 : 64;
  while (a.shard.block_size % box != 0) box /= 2;
  CUtensorMap q_map, kv_map;
  if (!describe(&q_map, a.q, int64_t{a.n_tokens} * a.n_heads, kRows)) return cudaErrorInvalidValue;
  if (!describe(&kv_map, a.cache, a.n_slots, box)) return cudaErrorInvalidValue;
  const auto kernel = mla_decode_bf16_kernel<kPair>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kPair ? 2 : 1, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(plan.row_tiles, plan.n_parts);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, plan, q_map, kv_map, box);
}

}  // namespace

cudaError_t mla_decode_bf16(MlaPlan plan, cudaStream_t stream) {
  return plan.row_tiles % 2 == 0 ? launch<true>(plan, stream) : launch<false>(plan, stream);
}

}  // namespace braid
