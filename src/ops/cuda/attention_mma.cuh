// Attention of bfloat16 queries on the tensor cores. A block of kWM x kWN warps has 16 kWM rows; per step of 32 keys each
// warp computes scores of 16 rows by 32 / kWN keys, the block agrees on the running maxima, and each warp adds the terms
// times its share of the value lanes. The next keys travel meanwhile.
#pragma once
#include "ops/cuda/attention_tiles.cuh"

namespace braid::cuda {


struct MmaLayout {
  int q = 0, k = 0, v = 0, p = 0, max = 0, slots = 0, total = 0;
};
__host__ __device__ inline MmaLayout mma_layout(int rows, int warps_n, int dk, int dv, bool latent) {
  MmaLayout l;
  l.k = rows * row_bytes(dk);
  l.v = l.k + 2 * kAttentionKeys * row_bytes(dk);
  l.p = l.v + (latent ? 0 : 2 * kAttentionKeys * row_bytes(dv));
  l.max = l.p + rows * row_bytes(kAttentionKeys);
  l.slots = l.max + rows * warps_n * 4;
  l.total = l.slots + 2 * kAttentionKeys * 8;
  return l;
}

template <typename C, int kWM, int kWN, int kDv>
__global__ __launch_bounds__(kWM* kWN* kWarp) void attention_mma_kernel(AttentionArgs a, bool q_aligned, bool aligned) {
  begin_after_previous();
  constexpr int kRows = 16 * kWM, kThreads = kWM * kWN * kWarp, kNS = kAttentionKeys / 8 / kWN, kNV = kDv / 8 / kWN;
  extern __shared__ __align__(128) char memory[];
  const MmaLayout at = mma_layout(kRows, kWN, a.dk, a.dv, a.latent);
  const AttentionBlock b = attention_block<kRows>(a);
  if (b.n_rows <= 0) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, wm = warp % kWM, wn = warp / kWM;
  const int k_row = row_bytes(a.dk), v_row = a.latent ? k_row : row_bytes(a.dv);
  const int dk_pad = padded_lanes(a.dk), dv_pad = padded_lanes(a.dv);
  char* const p_rows = memory + at.p;
  float* const maxima = reinterpret_cast<float*>(memory + at.max);  // [kWN, kRows]
  int64_t* const slots = reinterpret_cast<int64_t*>(memory + at.slots);  // [2, kAttentionKeys]
  const TileSource<C> keys{static_cast<const C*>(a.k) + b.kv * a.k_head, static_cast<const C*>(a.k_rope), a.k_slot, a.rope_row,
                           a.dk, a.dn};
  const TileSource<C> values{static_cast<const C*>(a.v) + b.kv * a.v_head, nullptr, a.v_slot, 0, a.dv, a.dv};

  auto find_slots = [&](int64_t first, int buffer) {
    const int j = threadIdx.x;
    if (j < kAttentionKeys && first + j < b.end) slots[buffer * kAttentionKeys + j] = key_slot(a, b, first + j);
  };
  auto load_tile = [&](int64_t first, int buffer) {
    if (first < b.end) {
      const int n = static_cast<int>(min(int64_t{kAttentionKeys}, b.end - first));
      load_rows<C, kAttentionKeys, kThreads>(memory + at.k + buffer * kAttentionKeys * k_row, keys, slots + buffer * kAttentionKeys, n, aligned);
      if (!a.latent) {
        load_rows<C, kAttentionKeys, kThreads>(memory + at.v + buffer * kAttentionKeys * v_row, values, slots + buffer * kAttentionKeys, n, aligned);
      }
    }
    commit_copies();
  };
  load_queries<kRows, kThreads>(memory, a, b, dk_pad, q_aligned);
  find_slots(b.begin, 0);
  __syncthreads();
  load_tile(b.begin, 0);

  const int rows[2] = {wm * 16 + lane / 4, wm * 16 + lane / 4 + 8};  // of this thread's results
  int seen[2];
  float k[2] = {-BRAID_INFINITY, -BRAID_INFINITY}, weight[2] = {}, acc[kNV * 4] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) seen[h] = rows[h] < b.n_rows ? visible_keys(a, b, rows[h]) : 0;

  int buffer = 0;
  for (int64_t first = b.begin; first < b.end; first += kAttentionKeys, buffer ^= 1) {
    find_slots(first + kAttentionKeys, buffer ^ 1);
    wait_copies<0>();
    __syncthreads();
    load_tile(first + kAttentionKeys, buffer ^ 1);

    float s[kNS * 4] = {};
    const uint32_t q_at = shared_address(memory) + (wm * 16 + lane % 16) * k_row + lane / 16 * 16;
    const uint32_t k_at = shared_address(memory + at.k + buffer * kAttentionKeys * k_row);
    for (int i = 0; i < dk_pad; i += 16) {
      uint32_t x[4], y[4];
      load_matrices(x, q_at + i * 2);
      if constexpr (kNS == 2) {
        load_matrices(y, k_at + (wn * 16 + lane / 16 * 8 + lane % 8) * k_row + i * 2 + lane / 8 % 2 * 16);
        mma_bf16(s, x, y[0], y[1]);
        mma_bf16(s + 4, x, y[2], y[3]);
      } else {
        load_matrices(y, k_at + (wn * 8 + lane % 8) * k_row + i * 2 + lane / 8 % 2 * 16);
        mma_bf16(s, x, y[0], y[1]);
      }
    }

    float most[2] = {-BRAID_INFINITY, -BRAID_INFINITY};
#pragma unroll
    for (int i = 0; i < kNS * 4; ++i) {
      const int h = i / 2 % 2, key = wn * (kAttentionKeys / kWN) + i / 4 * 8 + lane % 4 * 2 + i % 2;
      s[i] = first - b.begin + key < seen[h] ? s[i] * a.scale_log2 : -BRAID_INFINITY;
      most[h] = fmaxf(most[h], s[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 1));
      most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 2));
      if (lane % 4 == 0) maxima[wn * kRows + rows[h]] = most[h];
    }
    __syncthreads();
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int w = 0; w < kWN; ++w) most[h] = fmaxf(most[h], maxima[w * kRows + rows[h]]);
      factor[h] = raise_maximum(k[h], most[h]);
      weight[h] *= factor[h];
    }
#pragma unroll
    for (int i = 0; i < kNS * 4; i += 2) {
      const int h = i / 2 % 2, key = wn * (kAttentionKeys / kWN) + i / 4 * 8 + lane % 4 * 2;
      Pack<BFloat16, 2> pair;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        pair.v[c] = from_f<BFloat16>(softmax_term(s[i + c], k[h]));
        weight[h] += to_f(pair.v[c]);
      }
      *reinterpret_cast<Pack<BFloat16, 2>*>(p_rows + rows[h] * row_bytes(kAttentionKeys) + key * 2) = pair;
    }
    __syncthreads();

    if (__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < kNV * 4; ++i) acc[i] *= factor[i / 2 % 2];
    }
    const uint32_t v_at = a.latent ? k_at : shared_address(memory + at.v + buffer * kAttentionKeys * v_row);
#pragma unroll
    for (int step = 0; step < kAttentionKeys / 16; ++step) {
      uint32_t x[4];
      load_matrices(x, shared_address(p_rows) + (wm * 16 + lane % 16) * row_bytes(kAttentionKeys) + step * 32 + lane / 16 * 16);
#pragma unroll
      for (int j = 0; j < kNV; j += 2) {
        const int column = (wn * kNV + j) * 8;
        if (column >= dv_pad) continue;
        uint32_t y[4];
        load_matrices_transposed(y, v_at + (step * 16 + lane % 16) * v_row + (column + lane / 16 * 8) * 2);
        mma_bf16(acc + j * 4, x, y[0], y[1]);
        mma_bf16(acc + j * 4 + 4, x, y[2], y[3]);
      }
    }
  }

  // A row's weight lies with the four threads and the kWN warps that had its keys.
  wait_copies<0>();
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    weight[h] += __shfl_xor_sync(~0u, weight[h], 1);
    weight[h] += __shfl_xor_sync(~0u, weight[h], 2);
    if (lane % 4 == 0) maxima[wn * kRows + rows[h]] = weight[h];
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (rows[h] >= b.n_rows) continue;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWN; ++w) total += maxima[w * kRows + rows[h]];
    const int64_t token = token_of(a, b, rows[h]);
    const int head = head_of(a, b, rows[h]);
#pragma unroll
    for (int j = 0; j < kNV; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int i = (wn * kNV + j) * 8 + lane % 4 * 2 + c;
        if (i < a.dv) store_lane(a, b.part, token, head, i, acc[j * 4 + h * 2 + c], total);
      }
    }
    if (wn == 0 && lane % 4 == 0) store_row(a, b.part, token, head, total, k[h]);
  }
}

template <typename C, int kWM, int kWN>
void launch_attention_mma(cudaStream_t stream, const AttentionArgs& a) {
  const bool q_aligned = aligned_queries(a), aligned = aligned_keys<C>(a);
  const size_t shared = static_cast<size_t>(mma_layout(16 * kWM, kWN, a.dk, a.dv, a.latent).total);
  const auto kernel = a.dv <= 64    ? attention_mma_kernel<C, kWM, kWN, 64>
                      : a.dv <= 128 ? attention_mma_kernel<C, kWM, kWN, 128>
                      : a.dv <= 256 ? attention_mma_kernel<C, kWM, kWN, 256>
                                    : attention_mma_kernel<C, kWM, kWN, 512>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  launch(stream, kernel, attention_grid(a, 16 * kWM), kWM * kWN * kWarp, shared, a, q_aligned, aligned);
  CUDA_CHECK_LAUNCH("attention_mma");
}

template <typename C>
void attention_mma_of(cudaStream_t stream, const AttentionArgs& a) {
  attention_block_rows(int64_t{a.max_q_len} * a.group, a.reproducible) == 16 ? launch_attention_mma<C, 1, 4>(stream, a) : launch_attention_mma<C, 4, 2>(stream, a);
}

}  // namespace braid::cuda
