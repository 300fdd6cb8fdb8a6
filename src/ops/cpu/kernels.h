// The table of kernels that one instruction-set level offers, as plain functions on plain arguments. Drivers in ../
// compute addresses, split work and hand rows over; kernels do arithmetic only. Keep standard-library templates out of
// the files under kernels/: an inline function compiled for a newer level must not be the copy that the linker keeps.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/cpu/code_book.h"
#include "tensor/tensor.h"

namespace braid {

// C[r, c] = sum over k of x[r][k] * panel[k][c], for all rows and one panel of columns, in one chain per element from
// k = 0. With k_slices > 1 every slice has its own chain from 0 and the slices are added in a balanced binary tree.
// Eight-bit weights: a chain per group of k from 0, its sum times the column's scale, added in ascending order.
struct ProductArgs {
  const void* const* x = nullptr;  // [rows] pointers to k consecutive elements
  int rows = 0;
  const void* panel = nullptr;  // float32 [k][width], or bfloat16 [slices][ceil(k / slices / 2)][width][2]
  int width = 0;                // columns stored, a multiple of the level's lanes, at most one panel
  int64_t k = 0;
  int k_slices = 1;
  int group = 0;  // of eight-bit weights; then `panel` is as panels.h says
  const CodeBook* codes = nullptr;

  int columns = 0;           // columns wanted
  void* const* y = nullptr;  // [rows] pointers to where the first column goes
  DType y_type = DType::kF32;
  const float* bias = nullptr;        // [columns], for Store
  const float* row_weight = nullptr;  // [rows], for Accumulate
};

// One tile of at most kKeyTile cached rows against a block of query rows.
inline constexpr int kKeyTile = 128;
inline constexpr int kMaxSlices = 8;

// A partial softmax sum per row, relative to 2^k with k an integer: acc = sum of 2^(score - k) v, weight = sum of
// 2^(score - k), scores in units of log2. k is -infinity where nothing was seen; acc and weight are 0 then.
struct PartialRows {
  float* acc = nullptr;  // [rows, stride]
  float* weight = nullptr;
  float* k = nullptr;
  int64_t stride = 0;  // dv rounded up to a whole number of vectors
};

// Two forms: float32 throughout, or bfloat16 queries, keys, values and probabilities with float32 sums, where two
// neighbours (lanes of a key, keys of a value) share 32 bits.
struct AttentionArgs {
  const void* const* q = nullptr;  // [rows] pointers to dk elements
  int dk = 0, dv = 0;
  float scale_log2 = 1.0f;      // score * scale_log2 is in units of log2
  void* keys = nullptr;         // the tile transposed: [dk][kKeyTile], or pairs [ceil(dk / 2)][kKeyTile]
  void* values = nullptr;       // [kKeyTile][stride], or pairs [kKeyTile / 2][stride]
  float* scores = nullptr;      // [rows][kKeyTile]
  float* rescale = nullptr;     // [rows]
  const int* n_keys = nullptr;  // [rows] how many of the tile's keys each row sees, ascending
  PartialRows state;
};

struct Kernels {
  const char* level;
  int lanes;
  int panel;  // columns of a packed panel

  // Products. `store` writes y (+ bias); `gated` takes a panel whose vectors alternate gate and up and writes
  // silu(gate) * up; `accumulate` does y += row_weight * C in float32. The bf16 forms of x need a bf16 panel.
  struct Products {
    void (*store)(const ProductArgs&);
    void (*gated)(const ProductArgs&);
    void (*accumulate)(const ProductArgs&);
  };
  Products x_f32_w_f32, x_f32_w_bf16, x_f32_coded;
  Products x_bf16_w_bf16, x_bf16_coded;  // empty where the level has no such instruction
  uint8_t code_places[4 * 16];           // [4][lanes] where a block of codes has the one of a k and lane

  // One form of attention. A tile's keys may be loaded in parts, each `lanes` lanes from an even `first` on.
  struct Attention {
    void (*load_keys)(const AttentionArgs&, const void* const* rows, int n_keys, int first, int lanes, DType);
    void (*load_values)(const AttentionArgs&, const void* const* rows, int n_keys, DType);
    void (*tile)(const AttentionArgs&, int begin, int end);  // rows [begin, end) against the loaded tile
    // The same bits for the few heads of one token, a vector of them at most, which all see the first n_keys keys:
    // heads lie in lanes and keys are read where they are, as bfloat16. `keys` holds the queries instead. Or null.
    void (*pack_queries)(const AttentionArgs&, int rows);
    void (*tile_in_lanes)(const AttentionArgs&, const void* const* keys, int rows, int n_keys);
  };
  Attention attention_f32, attention_bf16;  // the last is empty where the level has no such instruction
  void (*attention_merge)(const PartialRows& into, const PartialRows& from, int rows);
  // y[r] = acc / weight * scale; lse (or null): natural log of the sum of exponentials.
  void (*attention_finish)(const PartialRows&, int rows, int dv, float scale, void* const* y, DType, float* const* lse);

  // Rows as float32. Lengths are free; no function reads or writes beyond n.
  void (*to_float)(float* y, const void* x, DType, int64_t n);
  void (*from_float)(void* y, DType, const float* x, int64_t n, float factor);  // y = x * factor
  void (*norm)(float* x, const float* w, int64_t n, float eps, DType compute);  // in place; w null: no weight
  void (*add)(float* y, const float* x, int64_t n);
  void (*add_scaled)(float* y, const float* x, float factor, int64_t n);  // y += factor * x as `accumulate` does it
  void (*silu_mul)(float* y, const float* gate, const float* up, int64_t n);
  void (*rotate)(float* x, const float* cos_sin, int d, bool interleaved);
  void (*round)(float* x, int64_t n, DType compute);
  void (*softmax)(float* y, const float* x, int64_t n);
  void (*sigmoid)(float* y, const float* x, int64_t n);
  // The largest value, its first index, sum of e^(x - largest); index -1 where a NaN or only -infinity was found.
  struct Summary {
    int64_t best;
    float largest, sum;
  };
  Summary (*summarise)(const float* x, int64_t n);

  // For benchmarks: loops of n rounds that do nothing but multiply and add, and return the operations done; a read of
  // n floats.
  struct Ceilings {
    int64_t (*float32_flops)(int64_t n, float* sink);
    int64_t (*bf16_flops)(int64_t n, float* sink);
    void (*read)(const float* from, int64_t n, float* sink);
  } ceilings;
};

std::vector<const Kernels*> supported_levels();  // that this machine runs, worst first

namespace cpu_v2 {
const Kernels& kernels();
}  // namespace cpu_v2
namespace cpu_v3 {
const Kernels& kernels();
}  // namespace cpu_v3
namespace cpu_v4 {
const Kernels& kernels();
}  // namespace cpu_v4
namespace cpu_v4_bf16 {
const Kernels& kernels();
}  // namespace cpu_v4_bf16

}  // namespace braid
