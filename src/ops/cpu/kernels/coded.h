// The register tile on eight-bit weights (see CodeBook and panels.h): codes become bfloat16 or float32 on their way
// into the registers, or, for many rows, once per group into a buffer of bfloat16 pairs that the ordinary tile reads. A
// group's products are one chain from 0; its sum times the column's scale is added to the slice's in ascending order of
// groups. Both ways give the same bits.
#pragma once
#include "ops/cpu/code_book.h"
#include "ops/cpu/kernels/product.h"

namespace braid::BRAID_LEVEL {

inline constexpr int kCodeBlock = 4 * kLanes;  // bytes of four k of a vector of columns

#if defined(__AVX512VBMI__)

// A look-up of 64 bytes is one instruction per table. Interleaving the bytes of its two results by halves of every 128
// bits gives the pairs of the first two k and of the last two, if the codes lie so:
BRAID_INLINE int code_place(int k, int lane) { return lane / 4 * 16 + k / 2 * 8 + lane % 4 * 2 + k % 2; }

struct CodeReader {
  __m512i high[2], low[2], sign;
  BRAID_INLINE CodeReader of(const CodeBook& b) {
    return {{_mm512_load_si512(b.high), _mm512_load_si512(b.high + 64)},
            {_mm512_load_si512(b.low), _mm512_load_si512(b.low + 64)},
            _mm512_set1_epi8(static_cast<char>(0x80))};
  }
};

BRAID_INLINE void read_codes(U (&w)[2], const uint8_t* p, const CodeReader& r) {
  const __m512i codes = _mm512_loadu_si512(p);
  const __m512i low = _mm512_permutex2var_epi8(r.low[0], codes, r.low[1]);
  __m512i high = _mm512_permutex2var_epi8(r.high[0], codes, r.high[1]);
  high = _mm512_ternarylogic_epi64(high, codes, r.sign, 0xf8);  // high | (codes & sign)
  w[0] = (U)_mm512_unpacklo_epi8(low, high);
  w[1] = (U)_mm512_unpackhi_epi8(low, high);
}
BRAID_INLINE void read_codes(F (&w)[4], const uint8_t* p, const CodeReader& r) {
  U pairs[2];
  read_codes(pairs, p, r);
  for (int i = 0; i < 2; ++i) {
    w[2 * i] = (F)(pairs[i] << 16);
    w[2 * i + 1] = (F)(pairs[i] & 0xffff0000u);
  }
}

#else

BRAID_INLINE int code_place(int k, int lane) { return k * kLanes + lane; }

#if defined(__F16C__)

// By way of halves, which the processor converts.
typedef int16_t Halves __attribute__((vector_size(kLanes * 4)));

struct CodeReader {
  Halves factor, mask;
  BRAID_INLINE CodeReader of(const CodeBook& b) {
    return {b.factor - Halves{}, static_cast<int16_t>(b.mask) - Halves{}};
  }
};

BRAID_INLINE void read_codes(F (&w)[4], const uint8_t* p, const CodeReader& r) {
  for (int i = 0; i < 4; i += 2, p += 2 * kLanes) {
#if defined(__AVX512F__)
    const auto codes = (Halves)_mm512_maskz_cvtepi8_epi16(~0u, load_as<__m256i>(p));
    const auto halves = (__m512i)((codes * r.factor) & r.mask);
    w[i] = (F)_mm512_maskz_cvtph_ps(0xffff, __builtin_shufflevector(halves, halves, 0, 1, 2, 3));
    w[i + 1] = (F)_mm512_maskz_cvtph_ps(0xffff, __builtin_shufflevector(halves, halves, 4, 5, 6, 7));
#else
    const auto codes = (Halves)_mm256_cvtepi8_epi16(load_as<__m128i>(p));
    const auto halves = (__m256i)((codes * r.factor) & r.mask);
    w[i] = (F)_mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    w[i + 1] = (F)_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
#endif
  }
}

#else

struct CodeReader {
  const float* number;
  BRAID_INLINE CodeReader of(const CodeBook& b) { return {b.number}; }
};

BRAID_INLINE void read_codes(F (&w)[4], const uint8_t* p, const CodeReader& r) {
  for (int i = 0; i < 4; ++i) {
    F numbers{};
    for (int lane = 0; lane < kLanes; ++lane) numbers[lane] = r.number[p[i * kLanes + lane]];
    w[i] = numbers;
  }
}

#endif

BRAID_INLINE void read_codes(U (&w)[2], const uint8_t* p, const CodeReader& r) {
  F numbers[4];
  read_codes(numbers, p, r);
  for (int i = 0; i < 2; ++i) w[i] = (U)numbers[2 * i] >> 16 | ((U)numbers[2 * i + 1] & 0xffff0000u);
}

#endif

// `n` of the four k at i, of which there are no more than that.
template <int R, int NV>
BRAID_INLINE void coded_step(F (&acc)[R][NV], const float* const (&x)[R], int64_t i, int n, const uint8_t* codes,
                             const CodeReader& reader) {
#pragma GCC unroll 8
  for (int v = 0; v < NV; ++v) {
    F w[4];
    read_codes(w, codes + v * kCodeBlock, reader);
#pragma GCC unroll 4
    for (int j = 0; j < n; ++j) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][v] = fma(broadcast(x[r][i + j]), w[j], acc[r][v]);
    }
  }
}

#if defined(__AVX512BF16__)
template <int R, int NV>
BRAID_INLINE void coded_step(F (&acc)[R][NV], const uint16_t* const (&x)[R], int64_t i, int n, const uint8_t* codes,
                             const CodeReader& reader) {
  __m512bh pairs[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      int pair = 0;
      if (2 * j + 1 < n) {
        __builtin_memcpy(&pair, x[r] + i + 2 * j, 4);
      } else if (2 * j < n) {
        pair = x[r][i + 2 * j];
      }
      pairs[r][j] = (__m512bh)_mm512_set1_epi32(pair);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < NV; ++v) {
    U w[2];
    read_codes(w, codes + v * kCodeBlock, reader);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      if (2 * j >= n) continue;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], pairs[r][j], (__m512bh)w[j]);
    }
  }
}
#endif

// acc[r][v] += sum over the k of one group of x[r][k] * number of its code.
template <int R, int NV, typename X>
BRAID_INLINE void coded_tile(F (&acc)[R][NV], const X* const (&x)[R], const uint8_t* codes, int64_t k,
                             const CodeReader& reader) {
  int64_t i = 0;
  for (; i + 4 <= k; i += 4, codes += NV * kCodeBlock) coded_step(acc, x, i, 4, codes, reader);
  if (i < k) coded_step(acc, x, i, static_cast<int>(k - i), codes, reader);
}

// A group's codes as a panel of bfloat16 pairs: [ceil(k / 4) * 2][vectors * kLanes].
BRAID_INLINE void widen_codes(uint32_t* to, const uint8_t* codes, int vectors, int64_t k, const CodeReader& reader) {
  const int64_t blocks = (k + 3) / 4, width = int64_t{vectors} * kLanes;
  for (int64_t b = 0; b < blocks; ++b, to += 2 * width) {
    for (int v = 0; v < vectors; ++v, codes += kCodeBlock) {
      U w[2];
      read_codes(w, codes, reader);
      store_as<U>(to + v * kLanes, w[0]);
      store_as<U>(to + width + v * kLanes, w[1]);
    }
  }
}

}  // namespace braid::BRAID_LEVEL
