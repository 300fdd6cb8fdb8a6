// Products of bfloat16 on the tensor cores: a block computes 16 or 64 rows by 64 columns, or 128 by 128, K in ascending
// order, 64 at a time through several stages of shared memory. Which of the tiles computes a row changes no bit.
#include "ops/cuda/mma.cuh"
#include "ops/cuda/product.cuh"

namespace braid::cuda {
namespace {

constexpr int kDepth = 64;
constexpr int kRowBytes = kDepth * 2;  // a row of a stage: eight chunks of 16 bytes, their order turned by the row

__device__ uint32_t chunk_offset(int row, int chunk) { return row * kRowBytes + (chunk ^ (row & 7)) * 16; }

// What one thread brings to every stage of kRows rows of 64 lanes of K: the same chunk of every eighth of its rows. Whole
// chunks travel asynchronously where rows are aligned, single elements otherwise.
template <int kRows, int kThreads>
class StageRows {
 public:
  template <typename RowAt>  // row_at(i): row i, or null
  __device__ explicit StageRows(const RowAt& row_at) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) from_[i] = row_at(row(i));
  }

  __device__ void load(char* stage, int64_t k0, int64_t k_end, bool aligned) const {
    const int chunk = threadIdx.x % 8;
    const int64_t k = k0 + chunk * 8;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      char* to = stage + chunk_offset(row(i), chunk);
      if (aligned) {
        const bool valid = from_[i] && k < k_end;
        copy_async(shared_address(to), valid ? from_[i] + k : from_[i], valid);
      } else {
        Pack<BFloat16, 8> p;
#pragma unroll
        for (int j = 0; j < 8; ++j) p.v[j] = from_[i] && k + j < k_end ? from_[i][k + j] : BFloat16{};
        *reinterpret_cast<Pack<BFloat16, 8>*>(to) = p;
      }
    }
  }

 private:
  static constexpr int kCount = kRows * 8 / kThreads;
  __device__ static int row(int i) { return (i * kThreads + static_cast<int>(threadIdx.x)) / 8; }
  const BFloat16* from_[kCount];
};

// A block's tile, and the warps that share it.
template <int M, int N, int WarpsM, int WarpsN, int Stages>
struct Shape {
  static constexpr int kTileM = M, kTileN = N, kWarpsM = WarpsM, kWarpsN = WarpsN, kStages = Stages;
  static constexpr int kThreads = WarpsM * WarpsN * kWarp, kStageBytes = (M + N) * kRowBytes;
};
using Low = Shape<16, 64, 1, 4, 4>;
using Middle = Shape<64, 64, 2, 2, 3>;
using Large = Shape<128, 128, 2, 4, 3>;

// Tiles of 16 x 8 results of one warp: kMI down, kNJ across, at these rows and columns of the block's tile.
template <typename S, bool gated>
struct WarpTile {
  static constexpr int kWarpsM = S::kWarpsM, kTileN = S::kTileN;
  static constexpr int kMI = S::kTileM / 16 / S::kWarpsM, kNJ = kTileN / 8 / S::kWarpsN;
  __device__ static int row(int i) { return (threadIdx.x / kWarp % kWarpsM * kMI + i) * 16; }
  // Gated: the first half of the columns are gates, the second half the matching up columns.
  __device__ static int column(int j) {
    const int warp = threadIdx.x / kWarp / kWarpsM;
    if (!gated) return (warp * kNJ + j) * 8;
    constexpr int half = kNJ / 2;
    return j / half * (kTileN / 2) + (warp * half + j % half) * 8;
  }
};

template <typename S, ProductKind kind>
__global__ __launch_bounds__(S::kThreads) void mma_kernel(ProductArgs a, bool aligned) {
  begin_after_previous();
  constexpr bool gated = kind == ProductKind::kGated;
  using Tile = WarpTile<S, gated>;
  constexpr int kMI = Tile::kMI, kNJ = Tile::kNJ, kStageBytes = S::kStageBytes, kStages = S::kStages;
  constexpr int kTileM = S::kTileM, kTileN = S::kTileN, kThreads = S::kThreads;
  extern __shared__ __align__(128) char memory[];
  const TileRows rows = tile_rows<kTileM>(a);
  if (rows.begin >= rows.end) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t n0 = int64_t{blockIdx.x} * (gated ? kTileN / 2 : kTileN);
  const BFloat16* w = static_cast<const BFloat16*>(a.w) + rows.batch * (gated ? 2 * a.n : a.n) * a.k;
  const StageRows<kTileM, kThreads> x_rows([&](int r) -> const BFloat16* {
    return rows.begin + r < rows.end ? x_row<BFloat16>(a, rows, rows.begin + r) : nullptr;
  });
  const StageRows<kTileN, kThreads> w_rows([&](int r) -> const BFloat16* {
    const int64_t n = n0 + (gated ? r % (kTileN / 2) : r);
    return n < a.n ? w + (n + (gated && r >= kTileN / 2 ? a.n : 0)) * a.k : nullptr;
  });
  const int64_t length = a.k / a.k_slices, padded = (length + kDepth - 1) / kDepth;
  const int per_slice = static_cast<int>(padded), steps = per_slice * a.k_slices;
  auto load = [&](int step) {
    if (step < steps) {
      char* stage = memory + step % kStages * kStageBytes;
      const int slice = kind == ProductKind::kSliced ? step / per_slice : 0;
      const int64_t k0 = slice * length + (step - slice * per_slice) * kDepth;
      x_rows.load(stage, k0, (slice + 1) * length, aligned);
      w_rows.load(stage + kTileM * kRowBytes, k0, (slice + 1) * length, aligned);
    }
    commit_copies();
  };

  float acc[kMI * kNJ * 4] = {};
  SliceTree<kMI * kNJ * 4> tree;
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) load(s);
  for (int step = 0; step < steps; ++step) {
    wait_copies<kStages - 2>();
    __syncthreads();
    load(step + kStages - 1);
    const uint32_t xs = shared_address(memory + step % kStages * kStageBytes), ws = xs + kTileM * kRowBytes;
#pragma unroll
    for (int half = 0; half < kDepth / 32; ++half) {
      uint32_t b[kNJ][4];
#pragma unroll
      for (int j = 0; j < kNJ; ++j) {
        load_matrices(b[j], ws + chunk_offset(Tile::column(j) + lane % 8, half * 4 + lane / 8));
      }
#pragma unroll
      for (int kk = 0; kk < 2; ++kk) {
#pragma unroll
        for (int i = 0; i < kMI; ++i) {
          uint32_t x[4];
          load_matrices(x, xs + chunk_offset(Tile::row(i) + lane % 16, (half * 2 + kk) * 2 + lane / 16));
#pragma unroll
          for (int j = 0; j < kNJ; ++j) mma_bf16(acc + (i * kNJ + j) * 4, x, b[j][2 * kk], b[j][2 * kk + 1]);
        }
      }
    }
    if constexpr (kind == ProductKind::kSliced) {
      if ((step + 1) % per_slice == 0) tree.add(acc, step / per_slice, step + 1 == steps);
    }
  }

#pragma unroll
  for (int i = 0; i < kMI; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t position = rows.begin + Tile::row(i) + lane / 4 + r * 8;
      if (position >= rows.end) continue;
      const int64_t offset = y_offset(a, rows, position);
      constexpr int stored = gated ? kNJ / 2 : kNJ;
#pragma unroll
      for (int j = 0; j < stored; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int64_t n = n0 + Tile::column(j) + lane % 4 * 2 + c;
          const float value = acc[(i * kNJ + j) * 4 + r * 2 + c];
          if (n >= a.n) continue;
          store_product(a, offset, n, gated ? gated_value(value, acc[(i * kNJ + (j + kNJ / 2) % kNJ) * 4 + r * 2 + c]) : value);
        }
      }
    }
  }
}

template <typename S>
void launch_tiles(cudaStream_t stream, const ProductArgs& a, bool aligned) {
  auto kernel = a.gated ? mma_kernel<S, ProductKind::kGated> : mma_kernel<S, ProductKind::kPlain>;
  if constexpr (S::kTileM <= 64) {  // sums of slices of larger tiles would not fit the registers
    if (a.k_slices > 1) kernel = mma_kernel<S, ProductKind::kSliced>;
  }
  const unsigned row_tiles = a.groups.n_tiles ? static_cast<unsigned>(a.groups.most_tiles) : blocks_for(a.m, S::kTileM);
  const dim3 grid(blocks_for(a.n, a.gated ? S::kTileN / 2 : S::kTileN), row_tiles, static_cast<unsigned>(a.batches));
  constexpr int shared = S::kStages * S::kStageBytes;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  launch(stream, kernel, grid, S::kThreads, shared, a, aligned);
  CUDA_CHECK_LAUNCH("product_mma");
}

bool divides_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

void product_mma(cudaStream_t stream, const ProductArgs& a) {
  const bool aligned = divides_16(a.x) && divides_16(a.w) && a.x_stride % 8 == 0 && a.x_batch % 8 == 0 &&
                       a.k % (8 * a.k_slices) == 0;
  const int rows = a.groups.n_tiles ? a.groups.tile_rows : product_tile_rows(a.x_type, a.w_type, a.k_slices, a.m);
  if (rows == Low::kTileM) {
    launch_tiles<Low>(stream, a, aligned);
  } else if (rows == Large::kTileM) {
    launch_tiles<Large>(stream, a, aligned);
  } else {
    launch_tiles<Middle>(stream, a, aligned);
  }
}

}  // namespace braid::cuda
