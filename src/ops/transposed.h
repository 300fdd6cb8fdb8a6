// For backends whose packing wants [heads, n, k]: a host copy of [heads, k, n], transposed head by head.
#pragma once
#include <cstddef>
#include <memory>

#include "tensor/tensor.h"

namespace braid {

struct HostTensor {
  std::unique_ptr<std::byte[]> bytes;
  Tensor tensor;
};

HostTensor transposed_heads(Tensor w /*[heads, k, n] on the host, outer strides free*/);

}  // namespace braid
