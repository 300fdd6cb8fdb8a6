#include "base/error.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/exchange.h"

namespace braid {

void CudaBackend::pack_results(Tensor messages, Tensor values, Tensor lse, int64_t lse_offset) {
  if (!values.dense() || !lse.dense()) return Backend::pack_results(messages, values, lse, lse_offset);
  cuda::PackArgs a;
  a.messages = static_cast<char*>(messages.data);
  a.values = static_cast<const char*>(values.data);
  a.lse = lse.as<float>();
  a.ranks = messages.dim(0);
  a.tokens = values.dim(0);
  a.heads = values.dim(1) / a.ranks;
  a.head_bytes = values.dim(2) * size_of(values.dtype);
  a.message_bytes = messages.stride[0];
  a.lse_offset = lse_offset;
  BRAID_CHECK(lse_offset % 4 == 0 && a.message_bytes % 4 == 0, "messages of {} bytes, lse at {}", a.message_bytes, lse_offset);
  cuda::pack_results(stream_, a);
}

}  // namespace braid
