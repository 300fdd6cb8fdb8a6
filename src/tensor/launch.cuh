// Launches of kernels that overlap: on compute capability 9.0 and up a kernel's blocks may be placed while the kernel in
// front of it still runs, which takes most of a launch's cost out of a chain of short kernels (programmatic dependent
// launch). Header only, for every module that has kernels.
#pragma once
#include <cuda_runtime.h>

namespace braid {

// The next kernel may get its blocks ready once every block of this one has said so or has ended.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Returns when all that was asked for before this kernel is done.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The first thing nearly every kernel does (see launch()).
__device__ inline void begin_after_previous() {
  let_next_begin();
  wait_for_previous();
}

// Whether this process's devices can; the same for all of them.
inline bool overlaps_launches() {
  static const bool yes = [] {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
  }();
  return yes;
}

// Starts a kernel that keeps the order by begin_after_previous(). The caller asks cudaGetLastError() whether it was taken.
template <typename... P, typename... A>
void launch(cudaStream_t stream, void (*kernel)(P...), dim3 grid, int threads, size_t shared, A&&... args) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = overlaps_launches() ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, P(args)...);
}

}  // namespace braid
