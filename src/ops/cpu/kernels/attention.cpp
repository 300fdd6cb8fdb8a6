// Attention arithmetic: see AttentionArgs and PartialRows. Scores accumulate over a key's lanes in ascending order, the
// sums of a tile over its keys in ascending order; a row sees exactly its own visible keys, so that neither other rows
// nor later keys reach its bits. The running maximum is rounded up to an integer: rescaling is by powers of two, exact.
#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/product.h"
#include "ops/cpu/kernels/table.h"

namespace braid::BRAID_LEVEL {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

BRAID_INLINE F load_lanes(const void* row, DType type, int64_t i) {
  switch (type) {
    case DType::kBF16:
      return from_bf16_bits(load_as<U16>(static_cast<const uint16_t*>(row) + i));
    case DType::kF8E4M3:
      return from_e4m3_bits(load_as<U8>(static_cast<const uint8_t*>(row) + i));
    default:
      return load(static_cast<const float*>(row) + i);
  }
}
BRAID_INLINE float load_lane(const void* row, DType type, int64_t i) {
  switch (type) {
    case DType::kBF16:
      return from_bf16_bits(U16{} + static_cast<const uint16_t*>(row)[i])[0];
    case DType::kF8E4M3:
      return from_e4m3_bits(U8{} + static_cast<const uint8_t*>(row)[i])[0];
    default:
      return static_cast<const float*>(row)[i];
  }
}

// One of log2(kLanes) steps of a transposition: swaps the off-diagonal blocks of size S.
template <int S>
BRAID_INLINE void swap_blocks(F (&r)[kLanes]) {
  I low{}, high{};
  for (int l = 0; l < kLanes; ++l) {
    low[l] = l & S ? kLanes + l - S : l;
    high[l] = l & S ? kLanes + l : l + S;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i & S) continue;
    const F a = r[i], b = r[i + S];
    r[i] = __builtin_shuffle(a, b, low);
    r[i + S] = __builtin_shuffle(a, b, high);
  }
}

BRAID_INLINE void transpose(F (&r)[kLanes]) {
  swap_blocks<1>(r);
  swap_blocks<2>(r);
  if constexpr (kLanes >= 8) swap_blocks<4>(r);
  if constexpr (kLanes >= 16) swap_blocks<8>(r);
}

// keys[d][j] = k_rows[j][d]. Vectors of keys beyond n_keys are filled from the last valid row and never looked at.
template <DType type>
void load_keys(const AttentionArgs& a, const void* const* k_rows, int n_keys) {
  for (int j = 0; j < n_keys; j += kLanes) {
    const void* rows[kLanes];
    for (int l = 0; l < kLanes; ++l) rows[l] = k_rows[j + l < n_keys ? j + l : n_keys - 1];
    int d = 0;
    for (; d + kLanes <= a.dk; d += kLanes) {
      F r[kLanes];
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) r[l] = load_lanes(rows[l], type, d);
      transpose(r);
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) store(a.keys + (d + l) * kKeyTile + j, r[l]);
    }
    for (; d < a.dk; ++d) {
      for (int l = 0; l < kLanes; ++l) a.keys[d * kKeyTile + j + l] = load_lane(rows[l], type, d);
    }
  }
}

template <DType type>
void load_values(const AttentionArgs& a, const void* const* v_rows, int n_keys) {
  for (int j = 0; j < n_keys; ++j) {
    float* to = a.values + j * a.state.stride;
    int d = 0;
    for (; d + kLanes <= a.dv; d += kLanes) store(to + d, load_lanes(v_rows[j], type, d));
    if (d == a.dv) continue;
    F rest{};
    for (int i = 0; d + i < a.dv; ++i) rest[i] = load_lane(v_rows[j], type, d + i);
    store(to + d, rest);
  }
}

void load_tile(const AttentionArgs& a, const void* const* k_rows, const void* const* v_rows, int n_keys, DType type) {
  switch (type) {
    case DType::kBF16:
      load_keys<DType::kBF16>(a, k_rows, n_keys);
      return load_values<DType::kBF16>(a, v_rows, n_keys);
    case DType::kF8E4M3:
      load_keys<DType::kF8E4M3>(a, k_rows, n_keys);
      return load_values<DType::kF8E4M3>(a, v_rows, n_keys);
    default:
      load_keys<DType::kF32>(a, k_rows, n_keys);
      return load_values<DType::kF32>(a, v_rows, n_keys);
  }
}

template <int R, int NV>
__attribute__((noinline)) void score_rows(const AttentionArgs& a, int row, int column) {
  F acc[R][NV] = {};
  const float* x[R];
  for (int r = 0; r < R; ++r) x[r] = a.q + static_cast<int64_t>(row + r) * a.dk;
  product_tile<R, NV>(acc, x, a.keys + column, kKeyTile, a.dk);
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < NV; ++v) store(a.scores + (row + r) * kKeyTile + column + v * kLanes, acc[r][v]);
  }
}

template <int R, int NV>
__attribute__((noinline)) void value_rows(const AttentionArgs& a, int row, int column, int n_keys) {
  F acc[R][NV] = {};
  const float* x[R];
  for (int r = 0; r < R; ++r) x[r] = a.scores + (row + r) * kKeyTile;
  product_tile<R, NV>(acc, x, a.values + column, a.state.stride, n_keys);
  for (int r = 0; r < R; ++r) {
    const F rescale = broadcast(a.rescale[row + r]);
    for (int v = 0; v < NV; ++v) {
      float* y = a.state.acc + (row + r) * a.state.stride + column + v * kLanes;
      store(y, fma(load(y), rescale, acc[r][v]));
    }
  }
}

// Calls f.template operator()<R, NV>(row, column) over rows [begin, end) and `vectors` vectors of columns.
template <int NV, typename F_>
BRAID_INLINE void with_rows(int begin, int end, int column, F_ f) {
  for (int row = begin; row < end;) {
    const int n = tile_rows(end - row);
    switch (n) {
      case 1:
        f.template operator()<1, NV>(row, column);
        break;
      case 2:
        f.template operator()<2, NV>(row, column);
        break;
      case 3:
        f.template operator()<3, NV>(row, column);
        break;
      case 4:
        f.template operator()<4, NV>(row, column);
        break;
      case 5:
        f.template operator()<5, NV>(row, column);
        break;
      default:
        f.template operator()<6, NV>(row, column);
        break;
    }
    row += n;
  }
}
template <typename F_>
BRAID_INLINE void for_tiles(int begin, int end, int vectors, F_ f) {
  int v = 0;
  for (; v + kTileVectors <= vectors; v += kTileVectors) with_rows<kTileVectors>(begin, end, v * kLanes, f);
  switch (vectors - v) {
    case 1:
      return with_rows<1>(begin, end, v * kLanes, f);
    case 2:
      return with_rows<2>(begin, end, v * kLanes, f);
    case 3:
      return with_rows < kTileVectors == 4 ? 3 : 1 > (begin, end, v * kLanes, f);
    default:
      return;
  }
}

// 2^d for a whole d <= 0; 0 where that is no normal number, and for NaN, which is what -infinity - -infinity gives.
BRAID_INLINE float power_of_two(float d) {
  const int bits = d >= -126.0f ? (static_cast<int>(d) + 127) << 23 : 0;
  return __builtin_bit_cast(float, bits);
}

BRAID_INLINE void softmax_row(const AttentionArgs& a, int row, int n_keys) {
  float* s = a.scores + row * kKeyTile;
  I lane;
  for (int l = 0; l < kLanes; ++l) lane[l] = l;
  F most = broadcast(kMinusInfinity);
  for (int j = 0; j < n_keys; j += kLanes) {
    F t = load(s + j) * a.scale_log2;
    if (n_keys - j < kLanes) t = lane < n_keys - j ? t : broadcast(kMinusInfinity);
    store(s + j, t);
    most = max(t, most);
  }
  const float before = a.state.k[row], top = __builtin_ceilf(max_lanes(most));
  const float k = before > top ? before : top;
  F sum{};
  for (int j = 0; j < n_keys; j += kLanes) {
    const F p = exp2(load(s + j) - k);
    store(s + j, p);
    sum += p;
  }
  a.rescale[row] = power_of_two(before - k);
  a.state.k[row] = k;
  a.state.weight[row] = a.state.weight[row] * a.rescale[row] + sum_lanes(sum);
}

void tile(const AttentionArgs& a, int begin, int end, int n_keys) {
  for_tiles(begin, end, (n_keys + kLanes - 1) / kLanes,
            [&]<int R, int NV>(int row, int column) { score_rows<R, NV>(a, row, column); });
  for (int row = begin; row < end; ++row) softmax_row(a, row, n_keys);
  for_tiles(begin, end, static_cast<int>(a.state.stride / kLanes),
            [&]<int R, int NV>(int row, int column) { value_rows<R, NV>(a, row, column, n_keys); });
}

void merge(const PartialRows& into, const PartialRows& from, int rows) {
  for (int r = 0; r < rows; ++r) {
    const float k = into.k[r] > from.k[r] ? into.k[r] : from.k[r];
    const float mine = power_of_two(into.k[r] - k), theirs = power_of_two(from.k[r] - k);
    float* y = into.acc + r * into.stride;
    const float* x = from.acc + r * from.stride;
    for (int64_t i = 0; i < into.stride; i += kLanes) store(y + i, load(y + i) * mine + load(x + i) * theirs);
    into.weight[r] = into.weight[r] * mine + from.weight[r] * theirs;
    into.k[r] = k;
  }
}

void finish(const PartialRows& a, int rows, int dv, float scale, void* const* y, DType type, float* const* lse) {
  for (int r = 0; r < rows; ++r) {
    const bool empty = a.weight[r] == 0.0f;
    const float factor = empty ? 0.0f : scale / a.weight[r];
    const float* acc = a.acc + r * a.stride;
    for (int64_t i = 0; i < dv; i += kLanes) {
      const F v = load(acc + i) * factor;
      const int n = dv - i < kLanes ? static_cast<int>(dv - i) : kLanes;
      if (type == DType::kF32) {
        auto* to = static_cast<float*>(y[r]) + i;
        if (n == kLanes) {
          store(to, v);
        } else {
          for (int l = 0; l < n; ++l) to[l] = v[l];
        }
      } else {
        auto* to = static_cast<uint16_t*>(y[r]) + i;
        const U16 bits = to_bf16_bits(v);
        if (n == kLanes) {
          store_as<U16>(to, bits);
        } else {
          for (int l = 0; l < n; ++l) to[l] = bits[l];
        }
      }
    }
    if (lse) {
      constexpr double kLn2 = 0.69314718055994530942;
      *lse[r] =
          empty ? kMinusInfinity : static_cast<float>(kLn2 * a.k[r] + __builtin_log(static_cast<double>(a.weight[r])));
    }
  }
}

}  // namespace

void add_attention(Kernels& table) {
  table.attention_load = load_tile;
  table.attention_tile = tile;
  table.attention_merge = merge;
  table.attention_finish = finish;
}

}  // namespace braid::BRAID_LEVEL
