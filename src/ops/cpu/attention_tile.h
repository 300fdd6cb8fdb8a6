// A worker's memory for attention: a block of query rows and one tile of keys after another. Knows which of the level's
// two forms the types call for; what the rows are and where keys come from is its user's business.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "ops/cpu/kernels.h"

namespace braid {

inline constexpr int kMaxBlockRows = 512;

class AttentionTile {
 public:
  struct Shape {
    int rows = 0;  // of a block at most
    int dk = 0, dv = 0;
    DType q = DType::kF32, cached = DType::kF32;
    bool whole_pairs = true;  // parts of a key that are loaded apart start at even lanes
  };

  static int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
  static int64_t partial_floats(const Kernels& k, int dv, int rows) {
    return padded(rows * (padded(dv, k.lanes) + 2), 16);
  }
  static bool in_pairs(const Kernels& k, const Shape& s) {
    return k.attention_bf16.tile && s.q == DType::kBF16 && s.cached != DType::kF32 && s.whole_pairs;
  }
  static int64_t floats(const Kernels& k, const Shape& s) {
    const int64_t q = s.q == DType::kF32 || in_pairs(k, s) ? 0 : padded(int64_t{s.rows} * s.dk, 16);
    return q + padded(int64_t{kKeyTile} * s.dk, 16) + kKeyTile * padded(s.dv, 16) +
           padded(int64_t{s.rows} * (kKeyTile + 1), 16);
  }

  AttentionTile(const Kernels& kernels, const Shape& shape, float scale_log2, float* memory)
      : kernels_(kernels), shape_(shape) {
    form_ = in_pairs(kernels, shape) ? &kernels.attention_bf16 : &kernels.attention_f32;
    args_.q = q_;
    args_.n_keys = n_keys_;
    args_.dk = shape.dk;
    args_.dv = shape.dv;
    args_.scale_log2 = scale_log2;
    auto take = [&](int64_t n) {
      float* p = memory;
      memory += padded(n, 16);
      return p;
    };
    if (shape.q != DType::kF32 && form_ == &kernels.attention_f32) q_rows_ = take(int64_t{shape.rows} * shape.dk);
    args_.keys = take(int64_t{kKeyTile} * shape.dk);
    args_.values = take(kKeyTile * padded(shape.dv, 16));
    args_.scores = take(int64_t{shape.rows} * (kKeyTile + 1));
    args_.rescale = args_.scores + int64_t{shape.rows} * kKeyTile;
  }

  PartialRows partial(float* memory, int rows) const {
    const int64_t stride = padded(shape_.dv, kernels_.lanes);
    return {memory, memory + rows * stride, memory + rows * (stride + 1), stride};
  }
  static void clear(const PartialRows& p, int rows) {
    std::fill(p.acc, p.acc + rows * p.stride, 0.0f);
    std::fill(p.weight, p.weight + rows, 0.0f);
    std::fill(p.k, p.k + rows, -std::numeric_limits<float>::infinity());
  }

  void set_query(int row, const void* q) {
    if (q_rows_) {
      float* to = q_rows_ + int64_t{row} * shape_.dk;
      kernels_.to_float(to, q, shape_.q, shape_.dk);
      q = to;
    }
    q_[row] = q;
  }
  // After the queries of a block: whether its rows are the heads of one token, which may lie in lanes.
  void choose_lanes(bool one_token, int rows) {
    const int lanes = kernels_.lanes;  // queries and scores must find room where keys would lie
    const bool room = (shape_.dk + 1) / 2 * lanes + kKeyTile * lanes <= kKeyTile * shape_.dk;
    const bool fits = room && lanes / 2 < rows && rows <= lanes;
    lanes_ = one_token && fits && form_->tile_in_lanes && shape_.cached == DType::kBF16;
    if (lanes_) form_->pack_queries(args_, rows);
  }
  void accumulate_into(const PartialRows& sums) { args_.state = sums; }

  // Lanes [first, first + lanes) of the tile's keys.
  void load_keys(const void* const* rows, int n_keys, int first, int lanes) {
    if (lanes_) return static_cast<void>(std::copy_n(rows, n_keys, keys_));
    form_->load_keys(args_, rows, n_keys, first, lanes, shape_.cached);
  }
  void load_values(const void* const* rows, int n_keys) { form_->load_values(args_, rows, n_keys, shape_.cached); }

  // Adds the tile to rows [0, n): row r sees its first visible(r) keys, ascending in r.
  template <typename Visible>
  void add(int n, const Visible& visible) {
    if (lanes_) {
      const int n_keys = visible(0);
      std::fill_n(n_keys_, n, n_keys);
      if (n_keys > 0) form_->tile_in_lanes(args_, keys_, n, n_keys);
      return;
    }
    int begin = n;
    for (int r = n - 1; r >= 0 && (n_keys_[r] = visible(r)) > 0; --r) begin = r;
    if (begin < n) form_->tile(args_, begin, n);
  }

 private:
  const Kernels& kernels_;
  const Kernels::Attention* form_;
  Shape shape_;
  AttentionArgs args_;
  float* q_rows_ = nullptr;
  bool lanes_ = false;
  const void* q_[kMaxBlockRows];
  const void* keys_[kKeyTile];  // of the tile, where they are read in place
  int n_keys_[kMaxBlockRows];
};

}  // namespace braid
