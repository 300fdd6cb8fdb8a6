// Attention over keys and values given as rows. A block is up to kMaxBlockRows consecutive queries of one sequence and one
// head; its keys come in tiles of kKeyTile rows in ascending order, with the arithmetic of cached attention (kernels.h).
#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "ops/cpu/cpu_backend.h"

namespace braid {
namespace {

constexpr int kMaxBlockRows = 128;
constexpr double kFlopsPerNanosecond = 60.0;

struct RowBlock {
  int64_t head = 0;
  int64_t first = 0, n_rows = 0;  // queries
  int64_t keys = 0, n_keys = 0;   // first key of the sequence, keys that the last query sees
  int64_t before_first = 0;       // keys that the first query sees
  bool causal = false;
  int64_t visible(int64_t row) const { return causal ? std::max<int64_t>(0, before_first + row) : n_keys; }
};

std::vector<RowBlock> cut(const RowSpans& spans, int64_t n_heads) {
  std::vector<RowBlock> blocks;
  const int32_t *q_start = spans.q_start.as<int32_t>(), *kv_start = spans.kv_start.as<int32_t>();
  for (int s = 0; s < spans.n_seqs; ++s) {
    const int64_t q_len = q_start[s + 1] - q_start[s], kv_len = kv_start[s + 1] - kv_start[s];
    for (int64_t i = 0; i < q_len; i += kMaxBlockRows) {
      RowBlock b;
      b.first = q_start[s] + i;
      b.n_rows = std::min<int64_t>(kMaxBlockRows, q_len - i);
      b.keys = kv_start[s];
      b.causal = spans.causal;
      b.before_first = i + kv_len - q_len + 1;
      b.n_keys = spans.causal ? std::max<int64_t>(0, b.before_first + b.n_rows - 1) : kv_len;
      for (b.head = 0; b.head < n_heads; ++b.head) blocks.push_back(b);
    }
  }
  return blocks;
}

void* row_of(const Tensor& x, int64_t row, int64_t head) {
  return static_cast<char*>(x.data) + (row * x.stride[0] + head * x.stride[1]) * size_of(x.dtype);
}

// A worker's buffers.
struct RowBuffers {
  AttentionArgs args;
  float* q = nullptr;

  static int64_t floats(int64_t dk, int64_t stride) {
    return (int64_t{kMaxBlockRows} + kKeyTile) * dk + (int64_t{kKeyTile} + kMaxBlockRows) * stride +
           int64_t{kMaxBlockRows} * (kKeyTile + 3) + 8 * 16;
  }
  RowBuffers(float* memory, int dk, int dv, int64_t stride) {
    auto take = [&](int64_t n) {
      float* p = memory;
      memory += (n + 15) / 16 * 16;
      return p;
    };
    q = take(int64_t{kMaxBlockRows} * dk);
    args.q = q;
    args.dk = dk;
    args.dv = dv;
    args.keys = take(int64_t{kKeyTile} * dk);
    args.values = take(kKeyTile * stride);
    args.scores = take(int64_t{kMaxBlockRows} * kKeyTile);
    args.rescale = take(kMaxBlockRows);
    args.state = {take(kMaxBlockRows * stride), take(kMaxBlockRows), take(kMaxBlockRows), stride};
  }
};

// Keys [start, start + n) of a head into the tile: the key's own lanes, then the rotated ones that heads share.
void load_tile(const Kernels& kernels, const AttentionArgs& args, const Tensor& k, const Tensor& k_rope, const Tensor& v,
               int64_t head, int64_t start, int n) {
  std::array<const void*, kKeyTile> keys, values, rotated;
  for (int i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    keys[at] = row_of(k, start + i, head);
    values[at] = row_of(v, start + i, head);
    if (k_rope) rotated[at] = row_of(k_rope, start + i, 0);
  }
  AttentionArgs part = args;
  part.dk = static_cast<int>(k.dim(2));
  kernels.attention_load(part, keys.data(), values.data(), n, k.dtype);
  if (!k_rope) return;
  part.keys += k.dim(2) * kKeyTile;
  part.dk = static_cast<int>(k_rope.dim(1));
  part.dv = 0;
  kernels.attention_load(part, rotated.data(), rotated.data(), n, k_rope.dtype);
}

}  // namespace

void CpuBackend::attention_rows(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor k_rope, Tensor v, const RowSpans& spans,
                                float scale) {
  const int dk = static_cast<int>(q.dim(2)), dv = static_cast<int>(v.dim(2));
  BRAID_CHECK(k.dtype == v.dtype && dk == k.dim(2) + (k_rope ? k_rope.dim(1) : 0), "keys of {} lanes, queries of {}",
              k.dim(2), dk);
  const std::vector<RowBlock> blocks = cut(spans, q.dim(1));
  double nanoseconds = 0.0;
  for (const RowBlock& b : blocks) nanoseconds += 2.0 * static_cast<double>(b.n_rows * b.n_keys * (dk + dv)) / kFlopsPerNanosecond + 500.0;
  const int64_t stride = (dv + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes;
  const ScratchScope temporary(*this);
  const Tensor memory = scratch(DType::kF32, {workers_.size(), RowBuffers::floats(dk, stride)});
  workers_.run(static_cast<int64_t>(blocks.size()), nanoseconds, [&](int64_t task, int worker) {
    const RowBlock& b = blocks[static_cast<size_t>(task)];
    const int rows = static_cast<int>(b.n_rows);
    RowBuffers buffers(memory.row<float>(worker), dk, dv, stride);
    AttentionArgs& args = buffers.args;
    args.scale_log2 = scale * 1.44269504088896341f;
    std::fill(args.state.acc, args.state.acc + rows * stride, 0.0f);
    std::fill(args.state.weight, args.state.weight + rows, 0.0f);
    std::fill(args.state.k, args.state.k + rows, -std::numeric_limits<float>::infinity());
    for (int r = 0; r < rows; ++r) kernels_.to_float(buffers.q + int64_t{r} * dk, row_of(q, b.first + r, b.head), q.dtype, dk);
    for (int64_t start = 0; start < b.n_keys; start += kKeyTile) {
      const auto n = static_cast<int>(std::min<int64_t>(kKeyTile, b.n_keys - start));
      load_tile(kernels_, args, k, k_rope, v, b.head, b.keys + start, n);
      auto seen = [&](int row) { return static_cast<int>(std::min<int64_t>(n, b.visible(row) - start)); };
      for (int r = 0; r < rows;) {  // runs of queries that see equally much of the tile
        const int first = r;
        while (++r < rows && seen(r) == seen(first)) {
        }
        if (seen(first) > 0) kernels_.attention_tile(args, first, r, seen(first));
      }
    }
    std::array<void*, kMaxBlockRows> out;
    std::array<float*, kMaxBlockRows> out_lse;
    for (int r = 0; r < rows; ++r) {
      out[static_cast<size_t>(r)] = row_of(y, b.first + r, b.head);
      out_lse[static_cast<size_t>(r)] = lse ? lse.row<float>(b.first + r) + b.head : nullptr;
    }
    kernels_.attention_finish(args.state, rows, dv, 1.0f, out.data(), y.dtype, lse ? out_lse.data() : nullptr);
  });
}

}  // namespace braid
