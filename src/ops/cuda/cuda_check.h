// Every CUDA call is checked: a failure is a RuntimeFailure that names the call. Free of fmt, which nvcc does not take.
#pragma once
#include <cuda_runtime.h>

namespace braid {

[[noreturn]] void cuda_failed(const char* what, const char* error, const char* file, int line);

inline void cuda_check(cudaError_t status, const char* what, const char* file, int line) {
  if (status != cudaSuccess) cuda_failed(what, cudaGetErrorString(status), file, line);
}

}  // namespace braid

#define CUDA_CHECK(call) ::braid::cuda_check((call), #call, __FILE__, __LINE__)
// After each kernel launch: a launch that was refused (too many threads, too much shared memory) shows here only.
#define CUDA_CHECK_LAUNCH(kernel) ::braid::cuda_check(cudaGetLastError(), "launch of " kernel, __FILE__, __LINE__)
