// Latent attention's decode kernel for a float8 (e4m3) cache (sm_90a).
//
// Half the bytes leave half the time, so the matrix units are not fed 64 rows where there are fewer: the products are
// turned around, cached tokens or lanes being the 64 rows and the query rows (kN = 8, 16 or 32) the columns:
//   S^T [tokens x kN] = K Q^T      O^T [512 x kN] += V^T P^T
// K's bytes go into the products as they are, against queries as a sum of two e4m3 numbers (exact but for the smallest
// lanes), some lanes at a time, because such products are summed coarsely. V^T is widened to float16, which holds every
// e4m3 value. Both come from registers, which each thread fills from shared memory. A tile is 128 tokens. Two
// warpgroups each score 64 of them, agree on the maximum (raised seldom, see kRaise), and each adds 256 output lanes. A
// third warpgroup fetches cache rows, 16 consecutive tokens a copy.
//
// A slot is 64 tokens in four such runs, 16 bytes apart. Rows of products are counted across the runs (token_of), so
// that neither reads along rows nor reads down columns meet in the same banks.
#include <cuda_fp8.h>

#include "ops/cuda/mla_plan.cuh"
#include "ops/cuda/mla_ptx.cuh"

// For older GPUs the kernel is compiled empty, and what it uses is then unused.
#pragma nv_diag_suppress 177

namespace braid {
namespace {

constexpr int kSlotTokens = 64, kTokens = 128;  // tokens of a ring slot and of a tile
constexpr int kRunBytes = 16 * kMlaRow + 16;    // of 16 consecutive tokens
constexpr int kSlotBytes = kSlotTokens / 16 * kRunBytes;
constexpr int kGroups = kMlaRow / 64;  // of 64 lanes
constexpr int kPieces = (kMlaRow + 127) / 128;
constexpr int kThreads = 384;
constexpr float kRaise = 8.0f;  // log2 units by which scores may pass the running maximum
constexpr float kLift = 6.0f;   // numerators are 2^(score - maximum + kLift): away from float16's smallest numbers

template <int kN>
constexpr int kSlots = kN <= 16   ? 5
                       : kN == 32 ? 4
                                  : 3;

template <int kN>
struct Shared {
  alignas(1024) uint8_t q[kPieces][2 * kN * 128];  // 128 lanes each, 128-byte swizzle: coarse rows, then what they lack
  alignas(1024) uint8_t p[2][kN * 128];            // 64 tokens each
  alignas(1024) uint8_t kv[kSlots<kN>][kSlotBytes];
  float scale[kN];  // of raw scores, to log2 units
  int visible[kN];
  float by_warp[8][kN];  // maxima, later sums
  MlaItem item;
  uint64_t full[kSlots<kN>], empty[kSlots<kN>], item_full, item_empty;
};

// Counts ring slots over all items.
template <int kN>
struct SlotRing {
  int slot = 0;
  uint32_t phase = 0;
  __device__ void advance() {
    if (++slot == kSlots<kN>) slot = 0, phase ^= 1;
  }
};

__device__ void consumers_sync() { named_barrier(1, 256); }
__device__ bool consumers_any(bool mine) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nbarrier.cta.red.or.pred q, 1, 256, p;\nselp.b32 %0, 1, 0, q;\n}\n"
      : "=r"(any)
      : "r"(static_cast<int>(mine))
      : "memory");
  return any != 0;
}

// Which of a slot's 64 tokens product row `row` is, and where it lies.
__device__ int token_of(int row) { return row % 8 / 2 * 16 + row / 8 * 2 + row % 2; }
__device__ int place_of(int row) { return row % 8 / 2 * kRunBytes + (row / 8 * 2 + row % 2) * kMlaRow; }

__device__ uint32_t widen(uint32_t two_bytes) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(two_bytes)));
  return halves;
}

// Four warps, each with 16 consecutive tokens of every slot, which never straddle a cache block.
template <int kN>
__device__ void load_loop(Shared<kN>& sm, const MlaPlan& plan, MlaWalk walk) {
  const MlaDecodeArgs& a = plan.args;
  const int lane = threadIdx.x % 32, run = threadIdx.x / 32 % 4 * 16;
  const uint64_t hint = plan.row_tiles == 1 ? kReadOnce : kReadAgain;
  SlotRing<kN> ring;
  for (int n = 0;; ++n) {
    const MlaItem item = walk.next(plan, blockIdx.y, blockIdx.x, blockIdx.x);
    if (threadIdx.x % 128 == 0) {
      barrier_wait(&sm.item_empty, (n & 1) ^ 1);
      sm.item = item;
      barrier_arrive(&sm.item_full);
    }
    if (item.seq < 0) return;
    const int32_t* blocks = a.block_table + static_cast<int64_t>(item.seq) * a.table_columns;
    for (int first = item.first_tile * kTokens; first < item.last_tile * kTokens;
         first += kSlotTokens, ring.advance()) {
      const int token = first + run, here = min(max(item.length - token, 0), 16);
      const uint8_t* from = nullptr;
      if (here > 0) {
        const int64_t slot =
            int64_t{blocks[token / a.shard.block_size]} * a.shard.block_size + token % a.shard.block_size;
        from = static_cast<const uint8_t*>(a.cache) + slot * kMlaRow;
      }
      uint64_t* full = &sm.full[ring.slot];
      uint8_t* to = sm.kv[ring.slot] + run / 16 * kRunBytes;
      barrier_wait(&sm.empty[ring.slot], ring.phase ^ 1);
      if (here < 16) {  // zeros past the context, since whatever lies there may be no number
        for (int i = here * kMlaRow + lane * 16; i < 16 * kMlaRow; i += 512) {
          *reinterpret_cast<uint4*>(to + i) = uint4{};
        }
        fence_async_proxy();
        __syncwarp();
      }
      if (lane == 0) {
        barrier_expect(full, here * kMlaRow);
        if (here > 0) load_bytes(to, from, here * kMlaRow, full, hint);
      }
      __syncwarp();
    }
  }
}

// Queries of the item into shared memory, one warp a row, scaled by a power of two into e4m3's range, lanes in the
// order in which score_product() sums them: lane 16 c + 8 t + 4 h + i of 64 is number 16 h + 4 c + i of step t.
template <int kN>
__device__ void load_queries(Shared<kN>& sm, const MlaPlan& plan, const MlaItem& item) {
  const MlaDecodeArgs& a = plan.args;
  const int lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < kN; row += 8) {
    const bool used = row < item.rows;
    const auto* q = static_cast<const __nv_bfloat16*>(a.q) + (static_cast<int64_t>(item.first_row) + row) * kMlaRow;
    float2 x[kGroups];
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      x[i] = used ? __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(q + i * 64 + 2 * lane)) : float2{};
      most = fmaxf(most, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
    }
    for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    const int exponent = most > 0.0f ? min(max(ilogbf(most), -100), 100) - 7 : 0;  // the largest to 128 .. 256
    const float down = exp2f(static_cast<float>(-exponent));
    const int c = lane / 8, step = lane % 8 / 4, half = lane % 4 / 2;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const float2 scaled = make_float2(x[i].x * down, x[i].y * down);
      const __nv_fp8x2_storage_t coarse = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
      const float2 kept = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(coarse, __NV_E4M3)));
      const __nv_fp8x2_storage_t rest =
          __nv_cvt_float2_to_fp8x2(make_float2(scaled.x - kept.x, scaled.y - kept.y), __NV_SATFINITE, __NV_E4M3);
      const int chunk = (2 * i + step) % 4 * 2 + half;
      uint8_t* to = sm.q[i / 2] + row * 128 + (chunk ^ (row & 7)) * 16 + 4 * c + 2 * (lane % 2);
      *reinterpret_cast<__nv_fp8x2_storage_t*>(to) = coarse;
      *reinterpret_cast<__nv_fp8x2_storage_t*>(to + kN * 128) = rest;
    }
    if (lane == 0) {
      sm.scale[row] = plan.score_scale * exp2f(static_cast<float>(exponent));
      const int token = item.first_token + (item.row_in_seq + row) / a.n_heads;
      sm.visible[row] = used ? static_cast<int>(a.shard.local_length(a.positions[token] + 1)) : 0;
    }
  }
  fence_async_proxy();
}

constexpr int kTogether =
    3;  // groups of 64 lanes that are summed in the matrix units, before their sum joins the others

template <int kN>
__device__ void score_product(Shared<kN>& sm, float (&s)[kN / 2], const uint8_t* kv) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const uint8_t* row = kv + place_of(warp * 16 + lane / 4) + lane % 4 * 16;
  const uint64_t q = operand(smem_address(sm.q), 1024);
  uint4 low[2][kTogether], high[2][kTogether];
  const auto read = [&](int first) {
#pragma unroll
    for (int g = 0; g < kTogether; ++g) {
      low[first / kTogether % 2][g] = *reinterpret_cast<const uint4*>(row + (first + g) * 64);
      high[first / kTogether % 2][g] = *reinterpret_cast<const uint4*>(row + (first + g) * 64 + 2 * kMlaRow);
    }
  };
  read(0);
#pragma unroll
  for (int first = 0; first < kGroups; first += kTogether) {
    float part[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) part[i] = 0.0f;
    product_pin(part);
    product_fence();
#pragma unroll
    for (int g = 0; g < kTogether; ++g) {
      const uint4 x = low[first / kTogether % 2][g], y = high[first / kTogether % 2][g];
      const uint32_t a[2][4] = {{x.x, y.x, x.y, y.y}, {x.z, y.z, x.w, y.w}};
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const int step = 2 * (first + g) + t;
        product_bytes<kN>(part, a[t], q + (step / 4 * 2 * kN * 128 + step % 4 * 32) / 16, 1);
      }
    }
    product_commit();
    if (first + kTogether < kGroups) read(first + kTogether);
    product_wait<0>();
    product_pin(part);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) s[i] += part[i] + part[kN / 2 + i];
  }
}

// Bytes of 16 lanes by 64 tokens of the values and the operands made of them, transposed on the way: row 8h + g of a
// product is lane 2g + h.
struct ColumnPiece {
  uint32_t r[8];
  __device__ void read(uint32_t address) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(r[4 * half]), "=r"(r[4 * half + 1]), "=r"(r[4 * half + 2]), "=r"(r[4 * half + 3])
                   : "r"(address + half * 8 * kMlaRow)
                   : "memory");
    }
  }
  __device__ void widen_to(uint32_t (&a)[4][4]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t lanes = __byte_perm(r[i], 0, 0x3120);
      a[i / 2][i % 2 * 2] = widen(lanes & 0xffff);
      a[i / 2][i % 2 * 2 + 1] = widen(lanes >> 16);
    }
  }
};

template <int kN>
__device__ void value_product(Shared<kN>& sm, float (&o)[4][kN / 2], const uint8_t* first, const uint8_t* second) {
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int at = place_of(lane) + group * 256 + warp * 16;
  const uint32_t kv[2] = {smem_address(first) + at, smem_address(second) + at};
  const uint64_t p = operand(smem_address(sm.p), 1024);
  ColumnPiece piece[2];
  uint32_t a[2][4][4];
  piece[0].read(kv[0]);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < 7) piece[(i + 1) % 2].read(kv[(i + 1) % 2] + (i + 1) / 2 * 64);
    piece[i % 2].widen_to(a[i % 2]);
    product_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      product_narrow<kN>(o[i / 2], a[i % 2][step], p + (i % 2 * kN * 128 + step * 32) / 16, 1);
    }
    product_commit();
    product_wait<1>();
  }
  product_wait<0>();
#pragma unroll
  for (int i = 0; i < 4; ++i) product_pin(o[i]);
}

// Running softmax of the kN / 4 query rows of a thread: columns 8j + 2c and the next, c = lane % 4.
template <int kN>
struct ColumnState {
  float most[kN / 4], sum[kN / 4];

  __device__ static int column(int i) { return i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2; }

  // Scales and masks scores, and says whether one passes the running maximum by too much.
  __device__ bool prepare(const Shared<kN>& sm, float (&s)[kN / 2], int first_token, bool mask) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int token = first_token + warp / 4 * 64 + token_of(warp % 4 * 16 + lane / 4);
    bool raise = false;
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      const float scale = sm.scale[column(i)];
      float& low = s[i / 2 * 4 + i % 2];
      float& high = s[i / 2 * 4 + i % 2 + 2];
      low *= scale, high *= scale;
      if (mask) {
        const int visible = sm.visible[column(i)];
        if (token >= visible) low = -INFINITY;
        if (token + 2 >= visible) high = -INFINITY;
      }
      raise |= fmaxf(low, high) > most[i] + kRaise;
    }
    return raise;
  }

  // Raises the maxima of all columns to what the tile holds and rescales results so far.
  __device__ void raise(Shared<kN>& sm, const float (&s)[kN / 2], float (&o)[4][kN / 2]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      float high = fmaxf(s[i / 2 * 4 + i % 2], s[i / 2 * 4 + i % 2 + 2]);
      for (int d = 4; d < 32; d *= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, d));
      if (lane < 4) sm.by_warp[warp][column(i)] = high;
    }
    consumers_sync();
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      float high = most[i];
      for (int w = 0; w < 8; ++w) high = fmaxf(high, sm.by_warp[w][column(i)]);
      const float factor = most[i] == high ? 1.0f : exp2f(most[i] - high);
      most[i] = high;
      sum[i] *= factor;
#pragma unroll
      for (int m = 0; m < 4; ++m) o[m][i / 2 * 4 + i % 2] *= factor, o[m][i / 2 * 4 + i % 2 + 2] *= factor;
    }
    consumers_sync();
  }

  // Numerators into shared memory, transposed: [query row][token].
  __device__ void write(Shared<kN>& sm, const float (&s)[kN / 2]) {
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    uint32_t pairs[kN / 8][2];
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float p[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float base = most[2 * j + i] == -INFINITY ? 0.0f : most[2 * j + i] - kLift;
          p[i] = fast_exp2(s[4 * j + 2 * half + i] - base);
          sum[2 * j + i] += p[i];
        }
        const __half2 packed = __floats2half2_rn(p[0], p[1]);
        pairs[j][half] = reinterpret_cast<const uint32_t&>(packed);
      }
    }
    const int row = lane % 8, chunk = 2 * warp + lane / 8 % 2;
    const uint32_t to = smem_address(sm.p[group]) + row * 128 + (chunk ^ row) * 16;
    if constexpr (kN == 8) {
      asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(to), "r"(pairs[0][0]),
                   "r"(pairs[0][1])
                   : "memory");
    } else {
#pragma unroll
      for (int j = 0; j < kN / 8; j += 2) {
        asm volatile(
            "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to + (j + lane / 16) * 1024),
            "r"(pairs[j][0]), "r"(pairs[j][1]), "r"(pairs[j + 1][0]), "r"(pairs[j + 1][1])
            : "memory");
      }
    }
    fence_async_proxy();
  }

  // Sums over all tokens of the item: afterwards `sum` holds the same in every thread of a column.
  __device__ void total(Shared<kN>& sm) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      for (int d = 4; d < 32; d *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], d);
      if (lane < 4) sm.by_warp[warp][column(i)] = sum[i];
    }
    consumers_sync();
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      sum[i] = 0.0f;
      for (int w = 0; w < 8; ++w) sum[i] += sm.by_warp[w][column(i)];
    }
  }
};

template <int kN>
__device__ void store_columns(const MlaPlan& plan, const MlaItem& item, const ColumnState<kN>& state,
                              const float (&o)[4][kN / 2]) {
  const MlaDecodeArgs& a = plan.args;
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) {
    const int row = ColumnState<kN>::column(i);
    if (row >= item.rows) continue;
    const float inverse = state.sum[i] > 0.0f ? a.cache_scale / state.sum[i] : 0.0f;
    const float lse = state.sum[i] > 0.0f ? state.most[i] - kLift + log2f(state.sum[i]) : -INFINITY;
    const int64_t at =
        item.partial >= 0 ? static_cast<int64_t>(item.partial) * kN + row : static_cast<int64_t>(item.first_row) + row;
    if (threadIdx.x < 4) {
      if (item.partial >= 0)
        plan.part_lse[at] = lse;
      else if (a.lse)
        a.lse[at] = lse * 0.69314718055994531f;
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int64_t to = at * kMlaLatent + group * 256 + m * 64 + warp * 16 + lane / 4 * 2;
      const float low = o[m][i / 2 * 4 + i % 2] * inverse, high = o[m][i / 2 * 4 + i % 2 + 2] * inverse;
      if (item.partial >= 0) {
        *reinterpret_cast<float2*>(plan.part_out + to) = make_float2(low, high);
      } else {
        *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(a.out) + to) = __floats2bfloat162_rn(low, high);
      }
    }
  }
}

template <int kN>
__device__ void attend_loop(Shared<kN>& sm, const MlaPlan& plan) {
  const int group = threadIdx.x / 128;
  SlotRing<kN> ring;
  for (int n = 0;; ++n) {
    barrier_wait(&sm.item_full, n & 1);
    const MlaItem item = sm.item;
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(&sm.item_empty);
    if (item.seq < 0) return;
    let_next_begin();  // the merge waits for this grid's end all the same, but is then already there
    load_queries(sm, plan, item);
    consumers_sync();
    ColumnState<kN> state;
    float o[4][kN / 2];
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) state.most[i] = -INFINITY, state.sum[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 2 * kN; ++i) o[i / (kN / 2)][i % (kN / 2)] = 0.0f;
    const int all_visible = sm.visible[0];  // tokens that every row in use sees
    for (int tile = item.first_tile; tile < item.last_tile; ++tile) {
      const SlotRing<kN> first = ring;
      ring.advance();
      const SlotRing<kN> second = ring;
      ring.advance();
      float s[kN / 2];
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) s[i] = 0.0f;
      const int mine = group == 0 ? first.slot : second.slot;
      barrier_wait(&sm.full[mine], group == 0 ? first.phase : second.phase);
      score_product(sm, s, sm.kv[mine]);
      const bool mask = (tile + 1) * kTokens > all_visible || item.rows < kN;
      if (consumers_any(state.prepare(sm, s, tile * kTokens, mask))) state.raise(sm, s, o);
      state.write(sm, s);
      consumers_sync();
      const int other = group == 0 ? second.slot : first.slot;
      barrier_wait(&sm.full[other], group == 0 ? second.phase : first.phase);
      value_product(sm, o, sm.kv[first.slot], sm.kv[second.slot]);
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        barrier_arrive(&sm.empty[first.slot]);
        barrier_arrive(&sm.empty[second.slot]);
      }
    }
    state.total(sm);
    store_columns(plan, item, state, o);
    consumers_sync();
  }
}

template <int kN>
__global__ void __launch_bounds__(kThreads, 1) mla_decode_float8_kernel(const __grid_constant__ MlaPlan plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t dynamic[];
  Shared<kN>& sm = *reinterpret_cast<Shared<kN>*>(dynamic);
  int* units = reinterpret_cast<int*>(sm.kv);  // before the first rows arrive
  mla_measure(plan, units);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSlots<kN>; ++i) barrier_init(&sm.full[i], 4), barrier_init(&sm.empty[i], 8);
    barrier_init(&sm.item_full, 1);
    barrier_init(&sm.item_empty, 8);
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    give_registers<40>();
    const MlaWalk walk = mla_find(plan, units, blockIdx.y, threadIdx.x < 288 && blockIdx.x == 0 && blockIdx.y == 0);
    fence_async_proxy();
    named_barrier(2, 128);  // all have read `units`
    load_loop(sm, plan, walk);
  } else {
    take_registers<232>();
    attend_loop(sm, plan);
  }
#endif
}

template <int kN>
cudaError_t launch(const MlaPlan& plan, cudaStream_t stream) {
  const auto kernel = mla_decode_float8_kernel<kN>;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared<kN>));
  if (status != cudaSuccess) return status;
  kernel<<<dim3(plan.row_tiles, plan.n_parts), kThreads, sizeof(Shared<kN>), stream>>>(plan);
  return cudaGetLastError();
}

}  // namespace

cudaError_t mla_decode_float8(MlaPlan plan, cudaStream_t stream) {
  switch (plan.tile_rows) {
    case 8:
      return launch<8>(plan, stream);
    case 16:
      return launch<16>(plan, stream);
    default:
      return launch<32>(plan, stream);
  }
}

}  // namespace braid
