// Messages of a context-parallel exchange, laid out by one kernel.
#include <algorithm>

#include "ops/cuda/device.cuh"
#include "ops/cuda/exchange.h"

namespace braid::cuda {
namespace {

// Unit: as many bytes as divide a head's values and their addresses.
template <typename Unit>
__global__ void pack_results_kernel(PackArgs a) {
  begin_after_previous();
  const int64_t per_head = a.head_bytes / static_cast<int64_t>(sizeof(Unit)), all_heads = a.ranks * a.heads;
  const int64_t n = a.tokens * all_heads * (per_head + 1);  // the last piece of each head is its lse
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t piece = i % (per_head + 1), row = i / (per_head + 1), head = row % all_heads, token = row / all_heads;
    const int64_t rank = head / a.heads, to = token * a.heads + head % a.heads;
    char* message = a.messages + rank * a.message_bytes;
    if (piece < per_head) {
      reinterpret_cast<Unit*>(message)[to * per_head + piece] = reinterpret_cast<const Unit*>(a.values)[row * per_head + piece];
    } else {
      reinterpret_cast<float*>(message + a.lse_offset)[to] = a.lse[row];
    }
  }
}

template <typename Unit>
void pack_by(cudaStream_t stream, const PackArgs& a) {
  constexpr int kThreads = 256;
  const int64_t n = a.tokens * a.ranks * a.heads * (a.head_bytes / static_cast<int64_t>(sizeof(Unit)) + 1);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((n + kThreads - 1) / kThreads, 4096));
  launch(stream, pack_results_kernel<Unit>, blocks, kThreads, 0, a);
  CUDA_CHECK_LAUNCH("pack_results_kernel");
}

}  // namespace

void pack_results(cudaStream_t stream, const PackArgs& a) {
  if (a.tokens * a.ranks * a.heads == 0) return;
  const auto places = reinterpret_cast<uintptr_t>(a.messages) | reinterpret_cast<uintptr_t>(a.values) |
                      static_cast<uintptr_t>(a.message_bytes) | static_cast<uintptr_t>(a.head_bytes);
  if (places % 16 == 0) return pack_by<uint4>(stream, a);
  if (places % 4 == 0) return pack_by<uint32_t>(stream, a);
  pack_by<uint16_t>(stream, a);
}

}  // namespace braid::cuda
