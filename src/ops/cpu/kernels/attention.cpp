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

// The rows of one vector of keys; those beyond n_keys are the last valid one and never looked at.
struct RowsOfVector {
  const void* row[kLanes];
};
BRAID_INLINE RowsOfVector rows_of_vector(const void* const* rows, int j, int n_keys) {
  RowsOfVector v;
  for (int l = 0; l < kLanes; ++l) v.row[l] = rows[j + l < n_keys ? j + l : n_keys - 1];
  return v;
}

// keys[first + d][j] = rows[j][d].
template <DType type>
void load_keys(const AttentionArgs& a, const void* const* rows, int n_keys, int first, int lanes) {
  float* const keys = static_cast<float*>(a.keys) + first * kKeyTile;
  for (int j = 0; j < n_keys; j += kLanes) {
    const RowsOfVector in = rows_of_vector(rows, j, n_keys);
    int d = 0;
    for (; d + kLanes <= lanes; d += kLanes) {
      F r[kLanes];
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) r[l] = load_lanes(in.row[l], type, d);
      transpose(r);
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) store(keys + (d + l) * kKeyTile + j, r[l]);
    }
    for (; d < lanes; ++d) {
      for (int l = 0; l < kLanes; ++l) keys[d * kKeyTile + j + l] = load_lane(in.row[l], type, d);
    }
  }
}

template <DType type>
void load_values(const AttentionArgs& a, const void* const* rows, int n_keys) {
  for (int j = 0; j < n_keys; ++j) {
    float* to = static_cast<float*>(a.values) + j * a.state.stride;
    int d = 0;
    for (; d + kLanes <= a.dv; d += kLanes) store(to + d, load_lanes(rows[j], type, d));
    if (d == a.dv) continue;
    F rest{};
    for (int i = 0; d + i < a.dv; ++i) rest[i] = load_lane(rows[j], type, d + i);
    store(to + d, rest);
  }
}

void load_keys_f32(const AttentionArgs& a, const void* const* rows, int n_keys, int first, int lanes, DType type) {
  if (type == DType::kBF16) return load_keys<DType::kBF16>(a, rows, n_keys, first, lanes);
  if (type == DType::kF8E4M3) return load_keys<DType::kF8E4M3>(a, rows, n_keys, first, lanes);
  load_keys<DType::kF32>(a, rows, n_keys, first, lanes);
}
void load_values_f32(const AttentionArgs& a, const void* const* rows, int n_keys, DType type) {
  if (type == DType::kBF16) return load_values<DType::kBF16>(a, rows, n_keys);
  if (type == DType::kF8E4M3) return load_values<DType::kF8E4M3>(a, rows, n_keys);
  load_values<DType::kF32>(a, rows, n_keys);
}

// Sums over a row's own keys behind those that all rows of its tile see, in the same chain.
template <int NV>
BRAID_INLINE void rest_of_row(F (&acc)[NV], const float* p, const float* values, int64_t stride, int begin, int end) {
  for (int j = begin; j < end; ++j) {
    const F x = broadcast(p[j]);
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[v] = fma(x, load(values + j * stride + v * kLanes), acc[v]);
  }
}
BRAID_INLINE int whole_steps(const float*, int n_keys) { return n_keys; }  // that all rows of a tile can share

#if defined(__AVX512BF16__)
// Lanes 2i and 2i + 1 of a row as bfloat16 in one word, for kLanes words.
template <DType type>
BRAID_INLINE U load_pairs(const void* row, int64_t d) {
  if constexpr (type == DType::kBF16) return load_as<U>(static_cast<const uint16_t*>(row) + d);
  const U16 both = load_as<U16>(static_cast<const uint8_t*>(row) + d);  // float8: exact in bfloat16
  const F even = from_e4m3_bits(__builtin_convertvector(both & 0xff, U8)),
          odd = from_e4m3_bits(__builtin_convertvector(both >> 8, U8));
  return (U)even >> 16 | ((U)odd & 0xffff0000u);
}
template <DType type>
BRAID_INLINE uint32_t load_half(const void* row, int64_t d) {  // one lane as bfloat16
  return __builtin_bit_cast(uint32_t, load_lane(row, type, d)) >> 16;
}
template <DType type>
BRAID_INLINE U load_halves(const void* row, int64_t d) {
  if constexpr (type == DType::kBF16) return widen(load_as<U16>(static_cast<const uint16_t*>(row) + d));
  return (U)load_lanes(row, type, d) >> 16;
}

// keys[d / 2][j] = lanes d and d + 1 of rows[j].
template <DType type>
BRAID_INLINE void transpose_pairs(uint32_t* keys, int64_t stride, const void* const* rows, int n_keys, int lanes) {
  constexpr int size = type == DType::kBF16 ? 2 : 1;
  for (int j = 0; j < n_keys; j += kLanes) {
    const RowsOfVector in = rows_of_vector(rows, j, n_keys), next = rows_of_vector(rows, j + kLanes, n_keys);
    int d = 0;
    for (; d + 2 * kLanes <= lanes; d += 2 * kLanes) {
      F r[kLanes];
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) {
        r[l] = (F)load_pairs<type>(in.row[l], d);
        __builtin_prefetch(static_cast<const char*>(next.row[l]) + d * size);
      }
      transpose(r);
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) store_as<F>(keys + (d / 2 + l) * stride + j, r[l]);
    }
    for (; d < lanes; d += 2) {
      for (int l = 0; l < kLanes; ++l) {
        const uint32_t odd = d + 1 < lanes ? load_half<type>(in.row[l], d + 1) : 0;
        keys[d / 2 * stride + j + l] = load_half<type>(in.row[l], d) | odd << 16;
      }
    }
  }
}
template <DType type>
void load_key_pairs(const AttentionArgs& a, const void* const* rows, int n_keys, int first, int lanes) {
  transpose_pairs<type>(static_cast<uint32_t*>(a.keys) + first / 2 * kKeyTile, kKeyTile, rows, n_keys, lanes);
}

constexpr int kRowsAhead = 8;  // rows are short: the processor's own prefetching starts late in each

template <DType type>
void load_value_pairs(const AttentionArgs& a, const void* const* rows, int n_keys) {
  constexpr int size = type == DType::kBF16 ? 2 : 1;
  for (int j = 0; j < n_keys; j += 2) {
    auto* const to = static_cast<uint32_t*>(a.values) + j / 2 * a.state.stride;
    const void *even = rows[j], *odd = rows[j + 1 < n_keys ? j + 1 : j];  // half a pair is masked where it is read
    const int ahead = j + kRowsAhead < n_keys ? j + kRowsAhead : n_keys - 1,
              behind = ahead + 1 < n_keys ? ahead + 1 : ahead;
    const auto *soon = static_cast<const char*>(rows[ahead]), *then = static_cast<const char*>(rows[behind]);
    int d = 0;
    for (; d + kLanes <= a.dv; d += kLanes) {
      store_as<U>(to + d, load_halves<type>(even, d) | load_halves<type>(odd, d) << 16);
      __builtin_prefetch(soon + d * size);
      __builtin_prefetch(then + d * size);
    }
    if (d == a.dv) continue;
    U rest{};
    for (int i = 0; d + i < a.dv; ++i) rest[i] = load_half<type>(even, d + i) | load_half<type>(odd, d + i) << 16;
    store_as<U>(to + d, rest);
  }
}

void load_keys_bf16(const AttentionArgs& a, const void* const* rows, int n_keys, int first, int lanes, DType type) {
  if (type == DType::kF8E4M3) return load_key_pairs<DType::kF8E4M3>(a, rows, n_keys, first, lanes);
  load_key_pairs<DType::kBF16>(a, rows, n_keys, first, lanes);
}
void load_values_bf16(const AttentionArgs& a, const void* const* rows, int n_keys, DType type) {
  if (type == DType::kF8E4M3) return load_value_pairs<DType::kF8E4M3>(a, rows, n_keys);
  load_value_pairs<DType::kBF16>(a, rows, n_keys);
}

template <int NV>
BRAID_INLINE void rest_of_row(F (&acc)[NV], const uint16_t* p, const uint32_t* values, int64_t stride, int begin,
                              int end) {
  for (int j = begin; j < end; j += 2) {
    const bool half = j + 1 == end;  // the other half is a key that this row must not see
    const uint32_t pair = p[j] | (half ? 0u : static_cast<uint32_t>(p[j + 1]) << 16), mask = half ? 0xffffu : ~0u;
    const __m512bh x = (__m512bh)(U{} + pair);
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      acc[v] = _mm512_dpbf16_ps(acc[v], x, (__m512bh)(load_as<U>(values + j / 2 * stride + v * kLanes) & mask));
    }
  }
}
BRAID_INLINE int whole_steps(const uint16_t*, int n_keys) { return n_keys / 2 * 2; }
#endif

template <int R, int NV, typename X, typename W>
__attribute__((noinline)) void score_rows(const AttentionArgs& a, int row, int column) {
  F acc[R][NV];
  clear(acc);
  const X* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = static_cast<const X*>(a.q[row + r]);
  product_tile<R, NV>(acc, x, static_cast<const W*>(a.keys) + column, kKeyTile, a.dk);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) store(a.scores + (row + r) * kKeyTile + column + v * kLanes, acc[r][v]);
  }
}

template <int R, int NV, typename X, typename W>
__attribute__((noinline)) void value_rows(const AttentionArgs& a, int row, int column) {
  F acc[R][NV];
  clear(acc);
  const X* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = reinterpret_cast<const X*>(a.scores + (row + r) * kKeyTile);
  const W* values = static_cast<const W*>(a.values) + column;
  const int shared = whole_steps(x[0], a.n_keys[row]);
  product_tile<R, NV>(acc, x, values, a.state.stride, shared);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    rest_of_row<NV>(acc[r], x[r], values, a.state.stride, shared, a.n_keys[row + r]);
    const F rescale = broadcast(a.rescale[row + r]);
#pragma GCC unroll 8
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
// first_row(column) is the first row that wants the columns from there on.
template <typename First, typename F_>
BRAID_INLINE void for_tiles(First first_row, int end, int vectors, F_ f) {
  int v = 0;
  for (; v + kTileVectors <= vectors; v += kTileVectors) {
    with_rows<kTileVectors>(first_row(v * kLanes), end, v * kLanes, f);
  }
  const int column = v * kLanes;
  switch (vectors - v) {
    case 1:
      return with_rows<1>(first_row(column), end, column, f);
    case 2:
      return with_rows<2>(first_row(column), end, column, f);
    case 3:
      return with_rows < kTileVectors == 4 ? 3 : 1 > (first_row(column), end, column, f);
    default:
      return;
  }
}

// 2^d for a whole d <= 0; 0 where that is no normal number, and for NaN, which is what -infinity - -infinity gives.
BRAID_INLINE float power_of_two(float d) {
  const int bits = d >= -126.0f ? (static_cast<int>(d) + 127) << 23 : 0;
  return __builtin_bit_cast(float, bits);
}

// 2^x as probability j, and what was kept of it.
BRAID_INLINE F keep_probability(float* p, int j, F x) {
  const F kept = exp2(x);
  store(p + j, kept);
  return kept;
}
#if defined(__AVX512BF16__)
// What is added to the weight is what is multiplied with the value.
BRAID_INLINE F keep_probability(uint16_t* p, int j, F x) {
  const U16 bits = (U16)_mm512_cvtneps_pbh(rough_exp2(x));
  store_as<U16>(p + j, bits);
  return from_bf16_bits(bits);
}
#endif

// Scores become probabilities in place; X is their type, no wider than a score.
template <typename X>
BRAID_INLINE void softmax_row(const AttentionArgs& a, int row, int n_keys) {
  float* s = a.scores + row * kKeyTile;
  I lane;
  for (int l = 0; l < kLanes; ++l) lane[l] = l;
  const F none = broadcast(kMinusInfinity), scale = broadcast(a.scale_log2);
  F most = none;
  int j = 0;
  for (; j + kLanes <= n_keys; j += kLanes) most = max(load(s + j), most);
  if (j < n_keys) {
    const F rest = lane < n_keys - j ? load(s + j) : none;
    store(s + j, rest);
    most = max(rest, most);
  }
  const float before = a.state.k[row], top = __builtin_ceilf(max_lanes(most) * a.scale_log2);
  const float k = before > top ? before : top;
  F sum{};
  for (j = 0; j < n_keys; j += kLanes) {
    sum += keep_probability(reinterpret_cast<X*>(s), j, fma(load(s + j), scale, broadcast(-k)));
  }
  a.rescale[row] = power_of_two(before - k);
  a.state.k[row] = k;
  a.state.weight[row] = a.state.weight[row] * a.rescale[row] + sum_lanes(sum);
}

template <typename X, typename W>
void tile(const AttentionArgs& a, int begin, int end) {
  int sees = begin;  // ascending with the column: rows before see nothing of it
  auto first_row = [&](int column) {
    while (a.n_keys[sees] <= column) ++sees;
    return sees;
  };
  for_tiles(first_row, end, (a.n_keys[end - 1] + kLanes - 1) / kLanes,
            [&]<int R, int NV>(int row, int column) { score_rows<R, NV, X, W>(a, row, column); });
  for (int row = begin; row < end; ++row) softmax_row<X>(a, row, a.n_keys[row]);
  for_tiles([&](int) { return begin; }, end, static_cast<int>(a.state.stride / kLanes),
            [&]<int R, int NV>(int row, int column) { value_rows<R, NV, X, W>(a, row, column); });
}

#if defined(__AVX512BF16__)
void pack_queries(const AttentionArgs& a, int rows) {
  transpose_pairs<DType::kBF16>(static_cast<uint32_t*>(a.keys), kLanes, a.q, rows, a.dk);
}

constexpr int kKeyGroup = 8;  // keys whose sums are in registers at once

template <int R>
__attribute__((noinline)) void score_keys(const AttentionArgs& a, const void* const* keys, float* scores) {
  F acc[R][1];
  clear(acc);
  const uint16_t* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = static_cast<const uint16_t*>(keys[r]);
  product_tile<R, 1>(acc, x, static_cast<const uint32_t*>(a.keys), kLanes, a.dk);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) store(scores + r * kLanes, acc[r][0]);
}

// Scores [key][head] become probabilities [head][key]; the sum over keys in softmax_row's order: key j adds to sum
// j % kLanes, these in sum_lanes' tree.
void softmax_in_lanes(const AttentionArgs& a, const float* scores, int rows, int n_keys) {
  alignas(64) float before[kLanes], after[kLanes], total[kLanes];
  F most = broadcast(kMinusInfinity);
  for (int j = 0; j < n_keys; ++j) most = max(load(scores + j * kLanes), most);
  for (int r = 0; r < kLanes; ++r) before[r] = r < rows ? a.state.k[r] : kMinusInfinity;
  const F scale = broadcast(a.scale_log2), old = load(before);
  const F top = (F)_mm512_maskz_roundscale_ps(0xffff, most * scale, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
  const F k = old > top ? old : top;
  F sum[kLanes] = {};
  for (int j = 0; j < n_keys; j += 2 * kLanes) {
    F pairs[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      U bits[2];
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int key = j + 2 * i + half;
        bits[half] = U{};
        if (key >= n_keys) continue;
        const F p = rough_exp2(fma(load(scores + key * kLanes), scale, -k));
        bits[half] = widen((U16)_mm512_cvtneps_pbh(p));
        sum[(2 * i + half) % kLanes] += (F)(bits[half] << 16);
      }
      pairs[i] = (F)(bits[0] | bits[1] << 16);
    }
    transpose(pairs);
    for (int r = 0; r < rows; ++r) store_as<F>(reinterpret_cast<uint32_t*>(a.scores + r * kKeyTile) + j / 2, pairs[r]);
  }
  for (int step = kLanes / 2; step >= 1; step /= 2) {
    for (int m = 0; m < step; ++m) sum[m] += sum[m + step];
  }
  store(after, k);
  store(total, sum[0]);
  for (int r = 0; r < rows; ++r) {
    a.rescale[r] = power_of_two(before[r] - after[r]);
    a.state.k[r] = after[r];
    a.state.weight[r] = a.state.weight[r] * a.rescale[r] + total[r];
  }
}

void tile_in_lanes(const AttentionArgs& a, const void* const* keys, int rows, int n_keys) {
  float* const scores = static_cast<float*>(a.keys) + (a.dk + 1) / 2 * kLanes;  // behind the queries
  int j = 0;
  for (; j + kKeyGroup <= n_keys; j += kKeyGroup) score_keys<kKeyGroup>(a, keys + j, scores + j * kLanes);
  for (; j < n_keys; ++j) score_keys<1>(a, keys + j, scores + j * kLanes);
  softmax_in_lanes(a, scores, rows, n_keys);
  for_tiles([](int) { return 0; }, rows, static_cast<int>(a.state.stride / kLanes),
            [&]<int R, int NV>(int row, int column) { value_rows<R, NV, uint16_t, uint32_t>(a, row, column); });
}
#endif

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
  table.attention_f32 = {load_keys_f32, load_values_f32, tile<float, float>, nullptr, nullptr};
#if defined(__AVX512BF16__)
  table.attention_bf16 = {load_keys_bf16, load_values_bf16, tile<uint16_t, uint32_t>, pack_queries, tile_in_lanes};
#endif
  table.attention_merge = merge;
  table.attention_finish = finish;
}

}  // namespace braid::BRAID_LEVEL
