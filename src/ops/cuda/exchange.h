// Messages of a context-parallel exchange (Backend::pack_results).
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace braid::cuda {

struct PackArgs {
  char* messages = nullptr;
  const char* values = nullptr;  // [T, W N, head_bytes], dense
  const float* lse = nullptr;    // [T, W N], dense
  int64_t ranks = 0, tokens = 0, heads = 0;  // W, T, N
  int64_t head_bytes = 0, message_bytes = 0, lse_offset = 0;
};
void pack_results(cudaStream_t stream, const PackArgs& args);

}  // namespace braid::cuda
