// Attention over keys and values given as rows. A block is some consecutive queries of one sequence and one head, as
// many as leave every worker some blocks; its keys come in tiles of kKeyTile rows in ascending order, with the
// arithmetic of cached attention.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "ops/cpu/attention_tile.h"
#include "ops/cpu/cpu_backend.h"

namespace braid {
namespace {

constexpr int64_t kLeastBlockRows = 96;  // fewer would not pay for loading a tile
constexpr int64_t kBlocksPerWorker = 4;  // so that the last ones end at about the same time
constexpr double kFlopsPerNanosecond = 60.0;

struct RowBlock {
  int64_t head = 0;
  int64_t first = 0, n_rows = 0;  // queries
  int64_t keys = 0, n_keys = 0;   // first key of the sequence, keys that the last query sees
  int64_t before_first = 0;       // keys that the first query sees
  bool causal = false;
  int64_t visible(int64_t row) const { return causal ? std::max<int64_t>(0, before_first + row) : n_keys; }
};

// The longest work of every sequence first.
std::vector<RowBlock> cut(const RowSpans& spans, int64_t n_heads, int64_t block_rows) {
  std::vector<RowBlock> blocks;
  const int32_t *q_start = spans.q_start.as<int32_t>(), *kv_start = spans.kv_start.as<int32_t>();
  for (int s = 0; s < spans.n_seqs; ++s) {
    const int64_t q_len = q_start[s + 1] - q_start[s], kv_len = kv_start[s + 1] - kv_start[s];
    for (int64_t end = q_len; end > 0; end -= block_rows) {
      const int64_t i = std::max<int64_t>(0, end - block_rows);
      RowBlock b;
      b.first = q_start[s] + i;
      b.n_rows = end - i;
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

// Keys [start, start + n) of a head into the tile: the key's own lanes, then the rotated ones that heads share.
void load_tile(AttentionTile& tile, const Tensor& k, const Tensor& k_rope, const Tensor& v, int64_t head, int64_t start,
               int n) {
  std::array<const void*, kKeyTile> keys, values, rotated;
  for (int i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    keys[at] = row_of(k, start + i, head);
    values[at] = row_of(v, start + i, head);
    if (k_rope) rotated[at] = row_of(k_rope, start + i, 0);
  }
  const int lanes = static_cast<int>(k.dim(2));
  tile.load_keys(keys.data(), n, 0, lanes);
  if (k_rope) tile.load_keys(rotated.data(), n, lanes, static_cast<int>(k_rope.dim(1)));
  tile.load_values(values.data(), n);
}

}  // namespace

void CpuBackend::attention_rows(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor k_rope, Tensor v,
                                const RowSpans& spans, float scale) {
  const int dk = static_cast<int>(q.dim(2)), dv = static_cast<int>(v.dim(2));
  BRAID_CHECK(dk == k.dim(2) + (k_rope ? k_rope.dim(1) : 0), "keys of {} lanes, queries of {}", k.dim(2), dk);
  BRAID_CHECK(k.dtype == v.dtype && (!k_rope || k_rope.dtype == k.dtype));
  const int64_t fair = q.dim(0) * q.dim(1) / (kBlocksPerWorker * workers_.size());
  const std::vector<RowBlock> blocks =
      dealt(cut(spans, q.dim(1), std::clamp<int64_t>(fair, kLeastBlockRows, kMaxBlockRows)), workers_.size());
  double nanoseconds = 0.0;
  for (const RowBlock& b : blocks) {
    nanoseconds += 2.0 * static_cast<double>(b.n_rows * b.n_keys * (dk + dv)) / kFlopsPerNanosecond + 500.0;
  }
  AttentionTile::Shape shape{kMaxBlockRows, dk, dv, q.dtype, k.dtype};
  shape.whole_pairs = !k_rope || k.dim(2) % 2 == 0;
  const int64_t tile_floats = AttentionTile::floats(kernels_, shape);
  const ScratchScope temporary(*this);
  const Tensor memory =
      scratch(DType::kF32, {workers_.size(), tile_floats + AttentionTile::partial_floats(kernels_, dv, kMaxBlockRows)});
  workers_.run(static_cast<int64_t>(blocks.size()), nanoseconds, [&](int64_t task, int worker) {
    const RowBlock& b = blocks[static_cast<size_t>(task)];
    const int rows = static_cast<int>(b.n_rows);
    AttentionTile tile(kernels_, shape, scale * 1.44269504088896341f, memory.row<float>(worker));
    const PartialRows sums = tile.partial(memory.row<float>(worker) + tile_floats, rows);
    AttentionTile::clear(sums, rows);
    tile.accumulate_into(sums);
    void* out[kMaxBlockRows];
    float* out_lse[kMaxBlockRows];
    for (int r = 0; r < rows; ++r) {
      tile.set_query(r, row_of(q, b.first + r, b.head));
      out[r] = row_of(y, b.first + r, b.head);
      out_lse[r] = lse ? lse.row<float>(b.first + r) + b.head : nullptr;
    }
    for (int64_t start = 0; start < b.n_keys; start += kKeyTile) {
      const auto n = static_cast<int>(std::min<int64_t>(kKeyTile, b.n_keys - start));
      load_tile(tile, k, k_rope, v, b.head, b.keys + start, n);
      tile.add(rows, [&](int row) { return static_cast<int>(std::min<int64_t>(n, b.visible(row) - start)); });
    }
    kernels_.attention_finish(sums, rows, dv, 1.0f, out, y.dtype, lse ? out_lse : nullptr);
  });
}

}  // namespace braid
