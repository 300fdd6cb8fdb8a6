#include "ops/cuda/attention_flash.h"

#include "ops/cuda/attention_tiles.cuh"

// A block of eight warps has 128 rows, 16 a warp. A warp keeps its queries and its results in registers and needs no
// other warp: scores become the terms of the second product where they are. Tiles of 64 keys in two stages of shared
// memory, the first of which the queries pass through.
namespace braid::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp, kKeys = 64;

__device__ uint32_t pack_terms(float a, float b) {
  return uint32_t{from_f<BFloat16>(a).bits} | uint32_t{from_f<BFloat16>(b).bits} << 16;
}

// kDk, kDv: most lanes of a key and of a value, multiples of 16.
template <int kDk, int kDv>
__global__ __launch_bounds__(kThreads, 1) void flash_kernel(AttentionArgs a, bool q_aligned, bool aligned) {
  begin_after_previous();
  constexpr int kSteps = kDk / 16, k_row = row_bytes(kDk), v_row = row_bytes(kDv);
  constexpr int kStage = kKeys * (k_row + v_row);
  static_assert(kFlashRows * k_row <= 2 * kStage);
  extern __shared__ __align__(128) char memory[];
  __shared__ int64_t slots[2][kKeys];
  const AttentionBlock b = attention_block<kFlashRows>(a);
  if (b.n_rows <= 0) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const TileSource<BFloat16> keys{static_cast<const BFloat16*>(a.k) + b.kv * a.k_head, static_cast<const BFloat16*>(a.k_rope),
                                  a.k_slot, a.rope_row, a.dk, a.dn};
  const TileSource<BFloat16> values{static_cast<const BFloat16*>(a.v) + b.kv * a.v_head, nullptr, a.v_slot, 0, a.dv, a.dv};

  load_queries<kFlashRows, kThreads>(memory, a, b, kDk, q_aligned);
  auto find_slots = [&](int64_t first, int buffer) {
    const int j = threadIdx.x;
    if (j < kKeys && first + j < b.end) slots[buffer][j] = key_slot(a, b, first + j);
  };
  auto load_tile = [&](int64_t first, int buffer) {
    if (first < b.end) {
      const int n = static_cast<int>(min(int64_t{kKeys}, b.end - first));
      char* stage = memory + buffer * kStage;
      load_rows<BFloat16, kKeys, kThreads, kDk>(stage, keys, slots[buffer], n, aligned);
      load_rows<BFloat16, kKeys, kThreads, kDv>(stage + kKeys * k_row, values, slots[buffer], n, aligned);
    }
    commit_copies();
  };
  commit_copies();
  find_slots(b.begin, 0);
  wait_copies<0>();
  __syncthreads();
  uint32_t q[kSteps][4];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    load_matrices(q[i], shared_address(memory) + (warp * 16 + lane % 16) * k_row + i * 32 + lane / 16 * 16);
  }
  __syncthreads();
  load_tile(b.begin, 0);

  int seen[2], fewest = 0x7fffffff, most_seen = 0;
  float k[2] = {-BRAID_INFINITY, -BRAID_INFINITY}, weight[2] = {}, acc[kDv / 8][4] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = warp * 16 + lane / 4 + h * 8;
    seen[h] = row < b.n_rows ? visible_keys(a, b, row) : 0;
    fewest = min(fewest, seen[h]);
    most_seen = max(most_seen, seen[h]);
  }
  fewest = __reduce_min_sync(~0u, fewest);
  most_seen = __reduce_max_sync(~0u, most_seen);

  int buffer = 0;
  for (int64_t first = b.begin; first < b.end; first += kKeys, buffer ^= 1) {
    find_slots(first + kKeys, buffer ^ 1);
    wait_copies<0>();
    __syncthreads();
    load_tile(first + kKeys, buffer ^ 1);
    const int at = static_cast<int>(first - b.begin);
    if (at >= most_seen) continue;

    float s[kKeys / 8][4] = {};
    const uint32_t k_at = shared_address(memory + buffer * kStage) + (lane / 16 * 8 + lane % 8) * k_row + lane / 8 % 2 * 16;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int j = 0; j < kKeys / 8; j += 2) {
        uint32_t y[4];
        load_matrices(y, k_at + j * 8 * k_row + i * 32);
        mma_bf16(s[j], q[i], y[0], y[1]);
        mma_bf16(s[j + 1], q[i], y[2], y[3]);
      }
    }
    if (at + kKeys > fewest) {
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (at + j * 8 + lane % 4 * 2 + c % 2 >= seen[c / 2]) s[j][c] = -BRAID_INFINITY;
        }
      }
    }
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = -BRAID_INFINITY;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) most = fmaxf(most, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      factor[h] = raise_maximum(k[h], most * a.scale_log2);
      weight[h] *= factor[h];
      const float shift = k[h] == -BRAID_INFINITY ? 0.0f : k[h];  // all scores are then -infinity, all terms 0
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float term = exp2f(fmaf(s[j][2 * h + c], a.scale_log2, -shift));
          s[j][2 * h + c] = term;
          weight[h] += term;
        }
      }
    }
    if (__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
      for (int j = 0; j < kDv / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) acc[j][c] *= factor[c / 2];
      }
    }
    const uint32_t v_at = shared_address(memory + buffer * kStage + kKeys * k_row) + lane % 16 * v_row + lane / 16 * 16;
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      const uint32_t p[4] = {pack_terms(s[2 * i][0], s[2 * i][1]), pack_terms(s[2 * i][2], s[2 * i][3]),
                             pack_terms(s[2 * i + 1][0], s[2 * i + 1][1]), pack_terms(s[2 * i + 1][2], s[2 * i + 1][3])};
#pragma unroll
      for (int j = 0; j < kDv / 8; j += 2) {
        uint32_t y[4];
        load_matrices_transposed(y, v_at + i * 16 * v_row + j * 16);
        mma_bf16(acc[j], p, y[0], y[1]);
        mma_bf16(acc[j + 1], p, y[2], y[3]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    weight[h] += __shfl_xor_sync(~0u, weight[h], 1);
    weight[h] += __shfl_xor_sync(~0u, weight[h], 2);
    const int row = warp * 16 + lane / 4 + h * 8;
    if (row >= b.n_rows) continue;
    const int64_t token = token_of(a, b, row);
    const int head = head_of(a, b, row);
#pragma unroll
    for (int j = 0; j < kDv / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int i = j * 8 + lane % 4 * 2 + c;
        if (i < a.dv) store_lane(a, b.part, token, head, i, acc[j][h * 2 + c], weight[h]);
      }
    }
    if (lane % 4 == 0) store_row(a, b.part, token, head, weight[h], k[h]);
  }
}

template <int kDk, int kDv>
void launch_heads(cudaStream_t stream, const AttentionArgs& a) {
  constexpr int shared = 2 * kKeys * (row_bytes(kDk) + row_bytes(kDv));
  CUDA_CHECK(cudaFuncSetAttribute(flash_kernel<kDk, kDv>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  launch(stream, flash_kernel<kDk, kDv>, attention_grid(a, kFlashRows), kThreads, shared, a, aligned_queries(a),
         aligned_keys<BFloat16>(a));
  CUDA_CHECK_LAUNCH("attention_flash");
}

}  // namespace

bool attention_flash_takes(const AttentionArgs& a) {
  return !a.reproducible && a.n_stripes == 1 && a.q_type == DType::kBF16 && a.cache_type == DType::kBF16 && a.dk <= 192 &&
         a.dv <= 128 && int64_t{a.max_q_len} * a.group > 64;
}

void attention_flash(cudaStream_t stream, const AttentionArgs& a) {
  if (a.dk <= 64 && a.dv <= 64) {
    launch_heads<64, 64>(stream, a);
  } else if (a.dk <= 128) {
    launch_heads<128, 128>(stream, a);
  } else {
    launch_heads<192, 128>(stream, a);
  }
}

}  // namespace braid::cuda
