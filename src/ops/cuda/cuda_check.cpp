#include "ops/cuda/cuda_check.h"

#include "base/error.h"

namespace braid {

void cuda_failed(const char* what, const char* error, const char* file, int line) {
  throw RuntimeFailure(fmt::format("the GPU failed: {} ({}, {}:{})", error, what, file, line));
}

bool overlaps_launches() {
  static const bool yes = [] {
    int device = 0, major = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 9;
  }();
  return yes;
}

}  // namespace braid
