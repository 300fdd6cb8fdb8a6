#include "ops/cuda/attention_mma.cuh"

namespace braid::cuda {

void attention_mma_float8(cudaStream_t stream, const AttentionArgs& a) { attention_mma_of<Float8E4M3>(stream, a); }

}  // namespace braid::cuda
