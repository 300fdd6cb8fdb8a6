// The kernels of the CUDA backend as plain functions: each puts work on the stream and returns. Shapes are those of
// ops/backend.h and have been checked; nothing here is called for empty results.
#pragma once
#include <cuda_runtime.h>

#include "ops/backend.h"

namespace braid::cuda {

// rows.cu
void embed(cudaStream_t, Tensor y, Tensor ids, Tensor table, int64_t first_row);
void rms_norm(cudaStream_t, Tensor y, Tensor x, Tensor w, float eps);
void add_rms_norm(cudaStream_t, Tensor y, Tensor residual, Tensor add, Tensor w, float eps);
void add(cudaStream_t, Tensor y, Tensor x);
void silu_mul(cudaStream_t, Tensor y, Tensor gate_up);
void gather_rows(cudaStream_t, Tensor y, Tensor x, Tensor rows);
void copy(cudaStream_t, Tensor to, Tensor from);
void fill_zero(cudaStream_t, Tensor x);

// rope.cu
void gqa_rope_cache(cudaStream_t, Tensor q, Tensor k, Tensor v, Tensor q_norm, Tensor k_norm, float eps,
                    const RopeTable&, const KvCache&, const BatchMeta&);
void mla_rope_cache(cudaStream_t, Tensor q_out, Tensor q_in, Tensor kv_a, Tensor norm, float eps, const RopeTable&,
                    const KvCache&, const BatchMeta&);
void gather_cache(cudaStream_t, Tensor rows, const KvCache&, Tensor slots);

// route.cu
void route(cudaStream_t, Tensor ids, Tensor weights, Tensor logits, Tensor bias, const RouterSpec&);

}  // namespace braid::cuda
