// cuBLASLt behind one call: products of bfloat16 with an algorithm chosen once per shape and kept.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <tuple>

#include "ops/cuda/product.h"

namespace braid {

class LtProducts {
 public:
  LtProducts(void* workspace, int64_t workspace_bytes);
  LtProducts(const LtProducts&) = delete;
  LtProducts& operator=(const LtProducts&) = delete;
  ~LtProducts();

  // Whether cuBLASLt takes it: bfloat16 throughout, 16-byte rows, no bias, slices, gates or groups.
  static bool takes(const cuda::ProductArgs&);
  void operator()(cudaStream_t, const cuda::ProductArgs&);

 private:
  struct Plan {
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
  };
  using Shape = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int, DType>;
  Plan make_plan(const cuda::ProductArgs&) const;

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_;
  int64_t workspace_bytes_;
  std::map<Shape, Plan> plans_;
};

}  // namespace braid
