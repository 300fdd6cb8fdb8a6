// Element-wise and row-wise arithmetic on float32 rows, and their conversion from and to the stored types.
#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/table.h"
#include "ops/cpu/kernels/vec.h"

namespace braid::BRAID_LEVEL {
namespace {

// The last n < kLanes elements of a row, the other lanes zero.
BRAID_INLINE F load_part(const float* p, int64_t n) {
  F v{};
  for (int l = 0; l < n; ++l) v[l] = p[l];
  return v;
}
template <typename V, typename T>
BRAID_INLINE void store_part(T* p, V v, int64_t n) {
  for (int l = 0; l < n; ++l) p[l] = v[l];
}

// y[i] = f(i-th vector's lanes) over n elements; f(offset, lanes) returns the vector.
template <typename T, typename G>
BRAID_INLINE void for_vectors(T* y, int64_t n, G f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    auto v = f(i, kLanes);
    store_as<decltype(v)>(y + i, v);
  }
  if (i < n) store_part(y + i, f(i, n - i), n - i);
}
BRAID_INLINE F load_n(const float* p, int64_t n) { return n == kLanes ? load(p) : load_part(p, n); }

void to_float(float* y, const void* x, DType type, int64_t n) {
  if (type == DType::kF32) {
    __builtin_memcpy(y, x, static_cast<size_t>(n) * 4);
  } else if (type == DType::kBF16) {
    const auto* from = static_cast<const uint16_t*>(x);
    for_vectors(y, n, [&](int64_t i, int64_t lanes) {
      U16 bits{};
      if (lanes == kLanes) {
        bits = load_as<U16>(from + i);
      } else {
        for (int l = 0; l < lanes; ++l) bits[l] = from[i + l];
      }
      return from_bf16_bits(bits);
    });
  } else {
    const auto* from = static_cast<const uint8_t*>(x);
    for_vectors(y, n, [&](int64_t i, int64_t lanes) {
      U8 bits{};
      for (int l = 0; l < lanes; ++l) bits[l] = from[i + l];
      return from_e4m3_bits(bits);
    });
  }
}

void from_float(void* y, DType type, const float* x, int64_t n, float factor) {
  auto value = [&](int64_t i, int64_t lanes) { return load_n(x + i, lanes) * factor; };
  if (type == DType::kF32) {
    for_vectors(static_cast<float*>(y), n, value);
  } else if (type == DType::kBF16) {
    for_vectors(static_cast<uint16_t*>(y), n, [&](int64_t i, int64_t lanes) { return to_bf16_bits(value(i, lanes)); });
  } else {
    for_vectors(static_cast<uint8_t*>(y), n, [&](int64_t i, int64_t lanes) { return to_e4m3_bits(value(i, lanes)); });
  }
}

void round_row(float* x, int64_t n, DType compute) {
  if (compute == DType::kF32) return;
  for_vectors(x, n, [&](int64_t i, int64_t lanes) { return round_bf16(load_n(x + i, lanes)); });
}

// Four running sums whatever n is, so that the order depends on n alone.
float sum_of_squares(const float* x, int64_t n) {
  F sum[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const F v = load(x + i + j * kLanes);
      sum[j] = fma(v, v, sum[j]);
    }
  }
  for (int j = 0; i < n; i += kLanes, ++j) {
    const F v = load_n(x + i, n - i < kLanes ? n - i : kLanes);
    sum[j] = fma(v, v, sum[j]);
  }
  return sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

void norm(float* x, const float* w, int64_t n, float eps, DType compute) {
  const float factor = 1.0f / __builtin_sqrtf(sum_of_squares(x, n) / static_cast<float>(n) + eps);
  const bool round = compute != DType::kF32;
  for_vectors(x, n, [&](int64_t i, int64_t lanes) {
    F v = load_n(x + i, lanes) * factor;
    if (round) v = round_bf16(v);
    if (w) v = v * load_n(w + i, lanes);
    return round ? round_bf16(v) : v;
  });
}

void add(float* y, const float* x, int64_t n) {
  for_vectors(y, n, [&](int64_t i, int64_t lanes) { return load_n(y + i, lanes) + load_n(x + i, lanes); });
}

void add_scaled(float* y, const float* x, float factor, int64_t n) {
  const F f = broadcast(factor);
  for_vectors(y, n, [&](int64_t i, int64_t lanes) { return fma(f, load_n(x + i, lanes), load_n(y + i, lanes)); });
}

void silu_mul(float* y, const float* gate, const float* up, int64_t n) {
  for_vectors(y, n, [&](int64_t i, int64_t lanes) { return silu(load_n(gate + i, lanes)) * load_n(up + i, lanes); });
}

void rotate(float* x, const float* cos_sin, int d, bool interleaved) {
  const int half = d / 2;
  for (int i = 0; i < half; ++i) {
    float* a = interleaved ? x + 2 * i : x + i;
    float* b = interleaved ? a + 1 : a + half;
    const float a0 = *a, b0 = *b, c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
    *a = a0 * c - b0 * s;
    *b = b0 * c + a0 * s;
  }
}

void sigmoid(float* y, const float* x, int64_t n) {
  for_vectors(y, n, [&](int64_t i, int64_t lanes) { return 1.0f / (1.0f + exp(-load_n(x + i, lanes))); });
}

void softmax(float* y, const float* x, int64_t n) {
  float most = x[0];
  for (int64_t i = 1; i < n; ++i) most = x[i] > most ? x[i] : most;
  F sum{};
  for_vectors(y, n, [&](int64_t i, int64_t lanes) {
    const F p = exp(load_n(x + i, lanes) - most);
    if (lanes == kLanes) {
      sum += p;
    } else {
      F part{};
      for (int l = 0; l < lanes; ++l) part[l] = p[l];
      sum += part;
    }
    return p;
  });
  const float factor = 1.0f / sum_lanes(sum);
  for_vectors(y, n, [&](int64_t i, int64_t lanes) { return load_n(y + i, lanes) * factor; });
}

Kernels::Summary summarise(const float* x, int64_t n) {
  F most = broadcast(-__builtin_inff());
  I nan{};
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t lanes = n - i < kLanes ? n - i : kLanes;
    F v = load_n(x + i, lanes);
    for (int l = static_cast<int>(lanes); l < kLanes; ++l) v[l] = x[i];
    nan |= v != v;
    most = max(v, most);
  }
  const float largest = max_lanes(most);
  bool usable = largest > -__builtin_inff();
  for (int l = 0; l < kLanes; ++l) usable = usable && nan[l] == 0;
  if (!usable) return {-1, -__builtin_inff(), 0.0f};
  int64_t best = 0;
  while (x[best] != largest) ++best;
  F sum[4] = {};
  for (int64_t i = 0, j = 0; i < n; i += kLanes, j = (j + 1) % 4) {
    const int64_t lanes = n - i < kLanes ? n - i : kLanes;
    F p = exp(load_n(x + i, lanes) - largest);
    for (int l = static_cast<int>(lanes); l < kLanes; ++l) p[l] = 0.0f;
    sum[j] += p;
  }
  return {best, largest, sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]))};
}

}  // namespace

void add_rows(Kernels& table) {
  table.to_float = to_float;
  table.from_float = from_float;
  table.norm = norm;
  table.add = add;
  table.add_scaled = add_scaled;
  table.silu_mul = silu_mul;
  table.rotate = rotate;
  table.round = round_row;
  table.softmax = softmax;
  table.sigmoid = sigmoid;
  table.summarise = summarise;
}

}  // namespace braid::BRAID_LEVEL
