// Attention: which rows, which keys, in which order; see kernels.h for the arithmetic.
//
// A block is some consecutive new tokens of one sequence times some query heads that read one key/value head. Its keys
// are cut into stripes (one in the default mode), each stripe into segments of kSegment rows, each segment into tiles
// of kKeyTile rows counted from the stripe's first row. A segment's sums are kept apart and added to the stripe's in
// ascending order, stripes in the tree (q, q + half), so that segments may be computed by different threads without
// changing a bit. All positions become local rows through SequenceShard; the rows of one of this rank's stripes are
// dealt among its stripes exactly as positions are among ranks, so that the same class answers for both.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/cpu/attention_tile.h"
#include "ops/cpu/cpu_backend.h"

namespace braid {
namespace {

constexpr int64_t kSegment = 256;
constexpr int kMostRows = 128;  // of a block
constexpr int kMaxRanks = 64;
constexpr int64_t kBlockFloats = 96 * 1024;  // sums of a block: what fits the second-level cache beside a tile
constexpr double kFlopsPerNanosecond = 60.0;

struct Block {
  int seq = 0;
  int kv_head = 0, first_head = 0, n_heads = 0;
  int first_token = 0, n_tokens = 0;  // rows of the step
  int64_t keys = 0;                   // local rows that its last token sees
  int rows() const { return n_tokens * n_heads; }
  int64_t token(int row) const { return first_token + row / n_heads; }
  int64_t head(int row) const { return first_head + row % n_heads; }
};

void* row_of(const Tensor& x, int64_t token, int64_t head) {
  return static_cast<char*>(x.data) + (token * x.stride[0] + head * x.stride[1]) * size_of(x.dtype);
}

// The attention of one block at a time, in a worker's memory.
class BlockAttention {
 public:
  BlockAttention(const Kernels& kernels, const Tensor& q, const KvCache& cache, const AttentionSpec& spec,
                 const BatchMeta& batch, int dv, float* memory)
      : kernels_(kernels),
        q_(q),
        cache_(cache),
        batch_(batch),
        dv_(dv),
        n_stripes_(stripes_here(spec, batch)),
        tile_(kernels, shape(q, cache, dv), spec.scale * cache.scale * 1.44269504088896341f, memory) {
    memory += AttentionTile::floats(kernels, shape(q, cache, dv));
    const int64_t each = AttentionTile::partial_floats(kernels, dv, kMostRows);
    segment_ = tile_.partial(memory, kMostRows);
    for (int s = 0; s < n_stripes_; ++s) {
      stripes_[static_cast<size_t>(s)] = tile_.partial(memory += each, kMostRows);
    }
  }

  static int stripes_here(const AttentionSpec& spec, const BatchMeta& batch) {
    return spec.n_stripes == 1 ? 1 : spec.n_stripes / batch.shard.n_ranks;
  }
  static AttentionTile::Shape shape(const Tensor& q, const KvCache& cache, int dv) {
    return {kMostRows, static_cast<int>(q.dim(2)), dv, q.dtype, cache.k.dtype};
  }
  static int64_t worker_floats(const Kernels& kernels, const Tensor& q, const KvCache& cache, int dv, int n_stripes) {
    return AttentionTile::floats(kernels, shape(q, cache, dv)) +
           (1 + n_stripes) * AttentionTile::partial_floats(kernels, dv, kMostRows);
  }

  int n_stripes() const { return n_stripes_; }
  int64_t partial_floats(int rows) const { return AttentionTile::partial_floats(kernels_, dv_, rows); }
  PartialRows partial(float* memory, int rows) const { return tile_.partial(memory, rows); }

  void begin(const Block& block) {
    choose(block);
    for (int r = 0; r < block.rows(); ++r) tile_.set_query(r, row_of(q_, block.token(r), block.head(r)));
    tile_.choose_lanes(block.n_tokens == 1, block.rows());
  }

  void choose(const Block& block) { block_ = block; }  // for all but segment()

  int64_t n_segments(int stripe) const {
    return (stripe_shard(stripe).local_length(block_.keys) + kSegment - 1) / kSegment;
  }

  // The block's sums over one segment of one stripe, from nothing.
  void segment(int stripe, int64_t segment, const PartialRows& into) {
    clear(into);
    tile_.accumulate_into(into);
    const SequenceShard rows = stripe_shard(stripe);
    std::array<int64_t, kMostRows> visible;  // rows of the stripe that each token sees
    for (int t = 0; t < block_.n_tokens; ++t) {
      const int64_t position = batch_.positions.as<int32_t>()[block_.first_token + t];
      visible[static_cast<size_t>(t)] = rows.local_length(batch_.shard.local_length(position + 1));
    }
    const int64_t most = visible[static_cast<size_t>(block_.n_tokens - 1)];
    const int64_t end = std::min(most, (segment + 1) * kSegment);
    for (int64_t start = segment * kSegment; start < end; start += kKeyTile) {
      const auto n = static_cast<int>(std::min<int64_t>(kKeyTile, most - start));
      load(rows, start, n);
      tile_.add(block_.rows(), [&](int row) {
        return static_cast<int>(std::min<int64_t>(n, visible[static_cast<size_t>(row / block_.n_heads)] - start));
      });
    }
  }

  // Everything that the block sees on this rank, in stripes_[0].
  const PartialRows& whole() {
    for (int s = 0; s < n_stripes_; ++s) {
      const PartialRows& stripe = stripes_[static_cast<size_t>(s)];
      clear(stripe);
      for (int64_t i = 0; i < n_segments(s); ++i) {
        segment(s, i, segment_);
        kernels_.attention_merge(stripe, segment_, block_.rows());
      }
    }
    return merged();
  }

  // The same from segments computed elsewhere, stripe by stripe.
  const PartialRows& whole_of(const PartialRows* segments) {
    for (int s = 0; s < n_stripes_; ++s) {
      clear(stripes_[static_cast<size_t>(s)]);
      for (int64_t i = 0; i < n_segments(s); ++i) {
        kernels_.attention_merge(stripes_[static_cast<size_t>(s)], *segments++, block_.rows());
      }
    }
    return merged();
  }

 private:
  // Among this rank's rows of a sequence: those of one of its stripes.
  SequenceShard stripe_shard(int stripe) const {
    return {n_stripes_, n_stripes_ == 1 ? 1 : batch_.shard.interleave, batch_.shard.block_size, stripe};
  }

  void clear(const PartialRows& p) const { AttentionTile::clear(p, block_.rows()); }

  const PartialRows& merged() {
    for (int half = n_stripes_ / 2; half >= 1; half /= 2) {
      for (int s = 0; s < half; ++s) {
        kernels_.attention_merge(stripes_[static_cast<size_t>(s)], stripes_[static_cast<size_t>(s + half)],
                                 block_.rows());
      }
    }
    return stripes_[0];
  }

  // Rows [start, start + n) of a stripe into the tile.
  void load(const SequenceShard& stripe, int64_t start, int n) {
    const int32_t* blocks = batch_.block_table.row<int32_t>(block_.seq);
    const SequenceShard& shard = batch_.shard;
    const void* keys[kKeyTile];
    const void* values[kKeyTile];
    const bool consecutive = n_stripes_ == 1;
    int64_t block_end = 0, slot = 0;
    for (int i = 0; i < n; ++i) {
      const LocalPos j(consecutive ? start + i : stripe.global(LocalPos(start + i)).value);
      if (consecutive && j.value < block_end) {
        ++slot;
      } else {
        const int64_t column = j.value / shard.block_size;
        slot = shard.slot(BlockId(blocks[column]), j).value;
        block_end = (column + 1) * shard.block_size;
      }
      keys[i] = row_of(cache_.k, slot, block_.kv_head);
      values[i] = row_of(cache_.v, slot, block_.kv_head);
    }
    tile_.load_keys(keys, n, 0, static_cast<int>(q_.dim(2)));
    tile_.load_values(values, n);
  }

  const Kernels& kernels_;
  const Tensor& q_;
  const KvCache& cache_;
  const BatchMeta& batch_;
  int dv_;
  int n_stripes_;  // of this rank
  AttentionTile tile_;
  PartialRows segment_;
  std::array<PartialRows, 8> stripes_;
  Block block_;
};

// Cuts the batch into blocks, the longest work of every sequence first.
std::vector<Block> make_blocks(const Tensor& q, const KvCache& cache, const BatchMeta& batch, int rows_per_block) {
  std::vector<Block> blocks;
  const int n_kv = static_cast<int>(cache.k.dim(1)), group = static_cast<int>(q.dim(1)) / n_kv;
  const int heads = std::min(group, rows_per_block), tokens = std::max(1, rows_per_block / heads);
  for (int s = 0; s < batch.n_seqs; ++s) {
    const int begin = batch.q_start.as<int32_t>()[s], end = batch.q_start.as<int32_t>()[s + 1];
    for (int t = begin + (end - begin - 1) / tokens * tokens; t >= begin && begin < end; t -= tokens) {
      const int n = std::min(tokens, end - t);
      const int64_t keys = batch.shard.local_length(batch.positions.as<int32_t>()[t + n - 1] + 1);
      for (int h = 0; h < n_kv; ++h) {
        for (int g = 0; g < group; g += heads) {
          blocks.push_back({s, h, h * group + g, std::min(heads, group - g), t, n, keys});
        }
      }
    }
  }
  return blocks;
}

// Few blocks: their segments are the tasks, and the blocks are put together afterwards. make(worker) gives a worker's
// BlockAttention, take(floats) memory, write(block, sums) a block's result.
template <typename Make, typename Take, typename Write>
void attend_by_segments(Workers& workers, double nanoseconds, const std::vector<Block>& blocks, const Make& make,
                        const Take& take, const Write& write) {
  struct Part {
    const Block* block;
    int stripe;
    int64_t segment;
  };
  std::vector<Part> parts;
  std::vector<PartialRows> sums;
  BlockAttention mine = make(0);
  for (const Block& b : blocks) {
    mine.choose(b);
    for (int s = 0; s < mine.n_stripes(); ++s) {
      for (int64_t i = 0; i < mine.n_segments(s); ++i) {
        sums.push_back(mine.partial(take(mine.partial_floats(b.rows())), b.rows()));
        parts.push_back({&b, s, i});
      }
    }
  }
  workers.run(static_cast<int64_t>(parts.size()), nanoseconds, [&](int64_t i, int worker) {
    const Part& part = parts[static_cast<size_t>(i)];
    BlockAttention a = make(worker);
    a.begin(*part.block);
    a.segment(part.stripe, part.segment, sums[static_cast<size_t>(i)]);
  });
  const PartialRows* next = sums.data();
  for (const Block& b : blocks) {
    mine.choose(b);
    write(b, mine.whole_of(next));
    for (int s = 0; s < mine.n_stripes(); ++s) next += mine.n_segments(s);
  }
}

}  // namespace

template <typename Write>
void CpuBackend::attend(const Tensor& q, const KvCache& cache, const AttentionSpec& spec, const BatchMeta& batch,
                        int dv, const Write& write) {
  const int dk = static_cast<int>(q.dim(2)), ranks = batch.shard.n_ranks;
  BRAID_CHECK(spec.n_stripes == 1 || (spec.n_stripes == 8 && 8 % ranks == 0), "{} stripes on {} ranks", spec.n_stripes,
              ranks);
  BRAID_CHECK(cache.k.dtype == cache.v.dtype && q.dim(1) % cache.k.dim(1) == 0);
  const int n_stripes = BlockAttention::stripes_here(spec, batch);
  const int64_t per_row = (n_stripes + 1) * AttentionTile::padded(dv, kernels_.lanes);
  const int rows_per_block = static_cast<int>(std::clamp<int64_t>(kBlockFloats / per_row, 8, kMostRows));
  const std::vector<Block> blocks = dealt(make_blocks(q, cache, batch, rows_per_block), workers_.size());
  double nanoseconds = 0.0;
  for (const Block& b : blocks) {
    nanoseconds += 2.0 * static_cast<double>(b.rows() * b.keys * (dk + dv)) / kFlopsPerNanosecond + 1000.0;
  }

  const ScratchScope temporary(*this);
  const int64_t worker_floats = BlockAttention::worker_floats(kernels_, q, cache, dv, n_stripes);
  const Tensor memory = scratch(DType::kF32, {workers_.size(), worker_floats});
  auto make = [&](int worker) {
    return BlockAttention(kernels_, q, cache, spec, batch, dv, memory.row<float>(worker));
  };
  const auto n_blocks = static_cast<int64_t>(blocks.size());
  if (workers_.size() > 1 && n_blocks < 4 * workers_.size()) {
    auto take = [&](int64_t floats) { return scratch(DType::kF32, {floats}).as<float>(); };
    attend_by_segments(workers_, nanoseconds, blocks, make, take, write);
    return;
  }
  workers_.run(n_blocks, nanoseconds, [&](int64_t i, int worker) {
    BlockAttention a = make(worker);
    a.begin(blocks[static_cast<size_t>(i)]);
    write(blocks[static_cast<size_t>(i)], a.whole());
  });
}

void CpuBackend::attention(Tensor y, Tensor lse, Tensor q, const KvCache& cache, const AttentionSpec& spec,
                           const BatchMeta& batch) {
  const int dv = static_cast<int>(y.dim(2));
  attend(q, cache, spec, batch, dv, [&](const Block& b, const PartialRows& sums) {
    void* out[kMostRows];
    float* out_lse[kMostRows];
    for (int r = 0; r < b.rows(); ++r) {
      out[r] = row_of(y, b.token(r), b.head(r));
      out_lse[r] = lse ? lse.row<float>(b.token(r)) + b.head(r) : nullptr;
    }
    kernels_.attention_finish(sums, b.rows(), dv, cache.scale, out, y.dtype, lse ? out_lse : nullptr);
  });
}

void CpuBackend::attention_partial(Tensor sum, Tensor weight, Tensor k, Tensor q, const KvCache& cache,
                                   const AttentionSpec& spec, const BatchMeta& batch) {
  const int dv = static_cast<int>(sum.dim(2));
  attend(q, cache, spec, batch, dv, [&](const Block& b, const PartialRows& sums) {
    for (int r = 0; r < b.rows(); ++r) {
      const int64_t t = b.token(r), n = b.head(r);
      std::copy_n(sums.acc + r * sums.stride, dv, static_cast<float*>(row_of(sum, t, n)));
      weight.row<float>(t)[n] = sums.weight[r];
      k.row<float>(t)[n] = sums.k[r];
    }
  });
}

void CpuBackend::merge_partials(Tensor y, Tensor lse, Tensor sums, Tensor weights, Tensor ks, float value_scale) {
  const int64_t ranks = sums.dim(0), heads = y.dim(1), dv = y.dim(2),
                stride = AttentionTile::padded(dv, kernels_.lanes);
  const ScratchScope temporary(*this);
  const Tensor memory = scratch(DType::kF32, {workers_.size(), ranks, stride});
  const double nanoseconds = static_cast<double>(ranks * dv);
  for_rows(y.dim(0) * heads, nanoseconds, [&](int64_t row, int worker) {
    const int64_t t = row / heads, n = row % heads;
    float weight[kMaxRanks], k[kMaxRanks];
    auto partial = [&](int64_t w) {
      return PartialRows{memory.row<float>(worker) + w * stride, weight + w, k + w, stride};
    };
    for (int64_t w = 0; w < ranks; ++w) {
      const float* from = sums.row<float>(w) + t * sums.stride[1] + n * sums.stride[2];
      std::fill(std::copy_n(from, dv, partial(w).acc), partial(w).acc + stride, 0.0f);
      weight[w] = weights.row<float>(w)[t * weights.stride[1] + n];
      k[w] = ks.row<float>(w)[t * ks.stride[1] + n];
    }
    for (int64_t left = ranks; left > 1; left = (left + 1) / 2) {
      for (int64_t w = 0; w + (left + 1) / 2 < left; ++w) {
        kernels_.attention_merge(partial(w), partial(w + (left + 1) / 2), 1);
      }
    }
    void* out = row_of(y, t, n);
    float* out_lse = lse ? lse.row<float>(t) + n : nullptr;
    kernels_.attention_finish(partial(0), 1, static_cast<int>(dv), value_scale, &out, y.dtype,
                              lse ? &out_lse : nullptr);
  });
}

void CpuBackend::merge_results(Tensor y, Tensor lse, Tensor values, Tensor lses, int first) {
  const int64_t ranks = lses.dim(0), n_values = values.dim(0), heads = y.dim(1), dv = y.dim(2);
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  BRAID_CHECK(ranks <= kMaxRanks && first + n_values <= ranks, "values of ranks [{}, {}) of {}", first,
              first + n_values, ranks);
  const ScratchScope temporary(*this);
  const Tensor memory = scratch(DType::kF32, {workers_.size(), 2, dv});
  for_rows(y.dim(0) * heads, static_cast<double>(n_values * dv), [&](int64_t row, int worker) {
    const int64_t t = row / heads, n = row % heads;
    float weights[kMaxRanks], most = kNothing, total = 0.0f;
    for (int64_t w = 0; w < ranks; ++w) {
      const float l = lses.row<float>(w)[t * lses.stride[1] + n];
      weights[w] = l < std::numeric_limits<float>::infinity() ? l : kNothing;  // NaN fails the comparison
      most = std::max(most, weights[w]);
    }
    for (int64_t w = 0; w < ranks; ++w) {
      weights[w] = weights[w] == kNothing ? 0.0f : std::exp(weights[w] - most);
      total += weights[w];
    }
    float* sum = memory.row<float>(worker);
    float* term = sum + dv;
    std::fill(sum, sum + dv, 0.0f);
    for (int64_t i = 0; i < n_values; ++i) {
      const float weight = weights[first + i];
      if (weight == 0.0f) continue;
      const int64_t at = i * values.stride[0] + t * values.stride[1] + n * values.stride[2];
      kernels_.to_float(term, static_cast<const char*>(values.data) + at * size_of(values.dtype), values.dtype, dv);
      kernels_.from_float(term, DType::kF32, term, dv, weight / total);
      kernels_.add(sum, term, dv);
    }
    kernels_.from_float(row_of(y, t, n), y.dtype, sum, dv, 1.0f);
    if (lse) lse.row<float>(t)[n] = most + std::log(total);
  });
}

}  // namespace braid
