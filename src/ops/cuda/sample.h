// Sampling on the device, one block per row, by the rules of ops/sampling.h. Nothing is sorted: a cut (a logit and an
// id) is found so that exactly the wanted candidates are not below it. Probabilities are whole multiples of 2^-44, so that
// sums do not depend on their order.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/tensor.h"

namespace braid::cuda {

// What changes one logit, in this order: banned, bias, penalties.
struct LogitEdit {
  int32_t id = 0;
  int32_t banned = 0;
  int32_t count = -1;  // -1: not penalised; 0: in the prompt only; else how often it was generated
  float bias = 0.0f;
  float original = 0.0f;  // kept by the kernel
};

struct SampleRow {
  float temperature, top_p, min_p, presence, frequency, repetition;
  int32_t top_k, n_top;  // n_top: how many of the best unmodified logits are wanted
  int32_t first_edit, n_edits;
  int64_t mask;  // first word of the allowed mask, -1: everything is allowed
  double draw;   // uniform in [0, 1)
};

// What a part of a row's logits holds: they are read by many blocks at first.
inline constexpr int kRowParts = 16;
struct RowPart {
  float max;   // -infinity: nothing above it
  int32_t id;  // the lowest with the largest logit; -1: the part holds a NaN
  double sum;  // of exp(logit - max)
};

struct SampleArgs {
  float* logits;  // [R, V], changed
  int64_t stride;
  int32_t n_rows, vocabulary;
  const SampleRow* rows;  // [R]
  LogitEdit* edits;
  const uint32_t* masks;
  uint64_t* list;    // [R, V] room for the candidates of one bin
  RowPart* parts;  // [R, kRowParts]
  int32_t* tokens;   // [R] -1: the row is bad
  float* logprobs;   // [R]
  int32_t* top_ids;  // [R, most_top]
  float* top_logprobs;
  int32_t most_top;
};

void sample(cudaStream_t, const SampleArgs&);

}  // namespace braid::cuda
