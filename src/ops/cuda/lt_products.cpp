#include "ops/cuda/lt_products.h"

#include "base/error.h"

namespace braid {
namespace {

void lt_check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw RuntimeFailure(fmt::format("cuBLASLt failed: {} gave {}", what, cublasLtGetStatusString(status)));
  }
}
#define LT_CHECK(call) lt_check((call), #call)

bool divides_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Column major, as cuBLASLt counts: `rows` contiguous.
cublasLtMatrixLayout_t make_layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride, int batches,
                                   int64_t batch_stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  LT_CHECK(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride));
  if (batches > 1) {
    const int32_t count = batches;
    LT_CHECK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
    LT_CHECK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
                                              sizeof(batch_stride)));
  }
  return layout;
}

}  // namespace

LtProducts::LtProducts(void* workspace, int64_t workspace_bytes)
    : workspace_(workspace), workspace_bytes_(workspace_bytes) {
  LT_CHECK(cublasLtCreate(&handle_));
}

LtProducts::~LtProducts() {
  for (const auto& [shape, plan] : plans_) {
    cublasLtMatmulDescDestroy(plan.product);
    cublasLtMatrixLayoutDestroy(plan.w);
    cublasLtMatrixLayoutDestroy(plan.x);
    cublasLtMatrixLayoutDestroy(plan.y);
  }
  cublasLtDestroy(handle_);
}

bool LtProducts::takes(const cuda::ProductArgs& a) {
  const int64_t y_lanes = 16 / size_of(a.y_type);
  return a.x_type == DType::kBF16 && a.w_type == DType::kBF16 && !a.bias && a.k_slices == 1 && !a.gated &&
         !a.groups.n_tiles && divides_16(a.x) && divides_16(a.w) && divides_16(a.y) && a.k % 8 == 0 &&
         a.n % y_lanes == 0 && a.x_stride % 8 == 0 && a.y_stride % y_lanes == 0 && a.x_batch % 8 == 0 &&
         a.y_batch % y_lanes == 0;
}

LtProducts::Plan LtProducts::make_plan(const cuda::ProductArgs& a) const {
  Plan p;
  LT_CHECK(cublasLtMatmulDescCreate(&p.product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  LT_CHECK(cublasLtMatmulDescSetAttribute(p.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
  const cudaDataType_t y_type = a.y_type == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
  p.w = make_layout(CUDA_R_16BF, a.k, a.n, a.k, a.batches, a.n * a.k);
  p.x = make_layout(CUDA_R_16BF, a.k, a.m, a.x_stride, a.batches, a.x_batch);
  p.y = make_layout(y_type, a.n, a.m, a.y_stride, a.batches, a.y_batch);
  cublasLtMatmulPreference_t preference = nullptr;
  LT_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const auto bytes = static_cast<uint64_t>(workspace_bytes_);
  LT_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, p.product, p.w, p.x, p.y, p.y, preference, 1, &best, &found);
  cublasLtMatmulPreferenceDestroy(preference);
  LT_CHECK(status);
  if (found == 0) throw RuntimeFailure(fmt::format("cuBLASLt has no product of {} x {} x {}", a.m, a.n, a.k));
  p.algorithm = best.algo;
  return p;
}

void LtProducts::operator()(cudaStream_t stream, const cuda::ProductArgs& a) {
  const Shape shape{a.m, a.n, a.k, a.x_stride, a.y_stride, a.x_batch, a.y_batch, a.batches, a.y_type};
  auto at = plans_.find(shape);
  if (at == plans_.end()) at = plans_.emplace(shape, make_plan(a)).first;
  const Plan& p = at->second;
  const float one = 1.0f, zero = 0.0f;
  LT_CHECK(cublasLtMatmul(handle_, p.product, &one, a.w, p.w, a.x, p.x, &zero, a.y, p.y, a.y, p.y, &p.algorithm,
                          workspace_, static_cast<size_t>(workspace_bytes_), stream));
}

}  // namespace braid
