#include "ops/cuda/attention_mma.cuh"

namespace braid::cuda {

void attention_mma(cudaStream_t stream, const AttentionArgs& a) {
  a.cache_type == DType::kF8E4M3 ? attention_mma_float8(stream, a) : attention_mma_of<BFloat16>(stream, a);
}

}  // namespace braid::cuda
