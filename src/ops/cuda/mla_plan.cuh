// How latent attention's work is dealt to blocks, worked out on the device by every block for itself.
//
// Query rows of a sequence (token-major, then head) are cut into tiles of `tile_rows`, its local context into tiles of
// `tile_tokens`. The context tiles of all sequences, each sequence followed by kItemCost empty units that stand for the
// price of starting it, form one line that is cut into `n_parts` equal parts. A part walks through its sequences: one
// item is what it does of one of them. A sequence that one part holds whole is written straight to the output; else
// every part that meets it leaves a partial result, and mla_combine adds them up.
#pragma once
#include "ops/cuda/mla_decode.h"

namespace braid {

inline constexpr int kItemCost = 2;

struct MlaPlan {
  MlaDecodeArgs args;
  int tile_rows = 0, tile_tokens = 0;
  int row_tiles = 0;  // of the sequence with the most query tokens
  int n_parts = 0;
  int2* spread = nullptr;     // [S] first part that meets the sequence, number of parts that do
  float* part_lse = nullptr;  // [2 * n_parts * row_tiles, tile_rows], in units of log2
  float* part_out = nullptr;  // [2 * n_parts * row_tiles, tile_rows, 512]
  float score_scale = 0.0f;   // of a raw score, to units of log2
};

struct MlaItem {
  int seq = -1;  // -1: nothing more to do
  int first_tile = 0, last_tile = 0;
  int length = 0;       // local context of the sequence
  int first_row = 0;    // of the row tile, counted over all tokens' heads
  int rows = 0;         // in use of the row tile; may be 0 or negative in a pair of blocks
  int first_token = 0;  // q_start of the sequence
  int row_in_seq = 0;   // first_row counted from the sequence's first
  int partial = -1;     // where the partial result goes; -1: this is the whole
};

__device__ inline int mla_length(const MlaPlan& plan, int seq) {
  return static_cast<int>(plan.args.shard.local_length(plan.args.kv_len[seq]));
}
__device__ inline int mla_units(const MlaPlan& plan, int seq) {
  return (mla_length(plan, seq) + plan.tile_tokens - 1) / plan.tile_tokens + kItemCost;
}

// Where one part stands on the line of units.
struct MlaWalk {
  int seq = 0, offset = 0, left = 0;

  // The next item of this part for `row_tile`. Items without rows are passed over if also `partner`, the other row
  // tile of a pair, has none.
  __device__ MlaItem next(const MlaPlan& plan, int part, int row_tile, int partner) {
    const MlaDecodeArgs& a = plan.args;
    while (left > 0 && seq < a.n_seqs) {
      MlaItem item;
      const int s = seq, start = offset, units = mla_units(plan, s), tiles = units - kItemCost;
      const int end = min(start + left, units);
      left -= end - start;
      offset = end == units ? 0 : end;
      seq += end == units;
      item.first_token = a.q_start[s];
      const int n_rows = (a.q_start[s + 1] - item.first_token) * a.n_heads;
      const bool work = min(end, tiles) > start || (tiles == 0 && start == 0);
      if (!work || min(row_tile, partner) * plan.tile_rows >= n_rows) continue;
      item.seq = s;
      item.first_tile = start;
      item.last_tile = min(end, tiles);
      item.length = mla_length(plan, s);
      item.row_in_seq = row_tile * plan.tile_rows;
      item.first_row = item.first_token * a.n_heads + item.row_in_seq;
      item.rows = min(plan.tile_rows, n_rows - item.row_in_seq);
      if (start > 0 || end < tiles) item.partial = (2 * part + (start == 0)) * plan.row_tiles + row_tile;
      return item;
    }
    return {};
  }
};

// The line's cuts. With more than 32 sequences the block first fills `units` (shared memory, [S]); else the one warp
// that calls mla_find() reads the lengths itself.
__device__ inline void mla_measure(const MlaPlan& plan, int* units) {
  if (plan.args.n_seqs <= 32) return;
  for (int s = threadIdx.x; s < plan.args.n_seqs; s += blockDim.x) units[s] = mla_units(plan, s);
}

// Where `part` begins. Also writes `spread`, if asked.
__device__ inline MlaWalk mla_find(const MlaPlan& plan, const int* units, int part, bool write_spread) {
  const int lane = threadIdx.x % 32, n = plan.args.n_seqs;
  const int own = n <= 32 && lane < n ? mla_units(plan, lane) : 0;
  int total = own;
  for (int s = lane; n > 32 && s < n; s += 32) total += units[s];
  for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(~0u, total, d);
  const int payload = max((total + plan.n_parts - 1) / plan.n_parts, 1);
  const int begin = part * payload;
  MlaWalk walk{n, 0, payload};
  int before = 0;
  for (int s0 = 0; s0 < n; s0 += 32) {
    const int s = s0 + lane, mine = n <= 32 ? own : s < n ? units[s] : 0;
    int sum = mine;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    const int start = before + sum - mine;
    if (write_spread && s < n) {
      const int first = start / payload, last = (start + max(mine - kItemCost, 1) - 1) / payload;
      plan.spread[s] = make_int2(first, last - first + 1);
    }
    const unsigned hit = __ballot_sync(~0u, s < n && start <= begin && begin < start + mine);
    if (hit) {
      const int from = __ffs(hit) - 1;
      walk.seq = s0 + from;
      walk.offset = begin - __shfl_sync(~0u, start, from);
    }
    before += __shfl_sync(~0u, sum, 31);
  }
  return walk;
}

// Adds the partial results of sequences that several parts met. Launched by mla_decode() after the first kernel.
cudaError_t mla_combine(const MlaPlan& plan, cudaStream_t stream);
cudaError_t mla_decode_bf16(MlaPlan plan, cudaStream_t stream);
cudaError_t mla_decode_float8(MlaPlan plan, cudaStream_t stream);

}  // namespace braid
