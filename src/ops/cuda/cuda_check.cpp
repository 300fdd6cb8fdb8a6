#include "ops/cuda/cuda_check.h"

#include "base/error.h"

namespace braid {

void cuda_failed(const char* what, const char* error, const char* file, int line) {
  throw RuntimeFailure(fmt::format("the GPU failed: {} ({}, {}:{})", error, what, file, line));
}

}  // namespace braid
