// What a build without CUDA says instead of a backend.
#include "base/error.h"
#include "ops/backend.h"

namespace braid {

int cuda_device_count() { return 0; }

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&) {
  throw Error("this braid was built without CUDA; the device to use here is cpu (or build it where nvcc is found)");
}

}  // namespace braid
