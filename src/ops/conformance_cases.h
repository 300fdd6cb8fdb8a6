// One list of small problems that covers every operation of the backend: the conformance test compares each backend's
// results with the reference on it, the benchmark times it. Adding an operation: add its cases to
// conformance_cases.cpp.
#pragma once
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/backend.h"

namespace braid {

// A case set up on one backend. run() may be called repeatedly; `outputs` are compared after the first call.
struct PreparedCase {
  std::function<void()> run;
  std::vector<Tensor> outputs;
  double flops = 0.0, bytes = 0.0;  // of one run: arithmetic, and what must be read or written at least
};

struct ConformanceCase {
  std::string name;
  double tolerance;  // |difference| allowed, in units of the largest |reference| of the output
  std::function<PreparedCase(Backend&)> prepare;
  bool host_only = false;  // eight-bit weights, which GPUs do not multiply
};

std::vector<ConformanceCase> conformance_cases();  // small and odd: correctness
std::vector<ConformanceCase> benchmark_cases();    // large: speed

// Inputs of a case: the same numbers on every backend, since they depend on the seed and the order of calls only.
class Inputs {
 public:
  Inputs(Backend& backend, uint32_t seed) : backend_(backend), random_(seed) {}

  Backend& backend() { return backend_; }
  Tensor choices(int64_t rows, int k, int of);  // int32 [rows, k]: different numbers below `of`, ascending
  int uniform(int below) { return static_cast<int>(random_() % static_cast<uint32_t>(below)); }
  float normal() { return normal_(random_); }

  Tensor zeros(DType, std::initializer_list<int64_t> shape);
  Tensor normals(DType, std::initializer_list<int64_t> shape, float scale = 1.0f, float mean = 0.0f);
  // Normal numbers to be kept in a format; every backend rounds them to eight bits by itself.
  WeightMatrix weight(const WeightFormat&, std::initializer_list<int64_t> shape, float scale = 1.0f);
  Tensor ints(const std::vector<int32_t>& values);
  // A result: NaN before the operation writes it; for integers -77.
  Tensor poisoned(DType, std::initializer_list<int64_t> shape);
  // The first `columns` of rows that are wider by 5 elements.
  Tensor narrowed(Tensor wide, int64_t columns) { return wide.columns(0, columns); }
  void put(const Tensor&, const std::vector<float>& values);  // dense, converted to its type

 private:
  Backend& backend_;
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
};

// `context` tokens in the cache already, `fresh` new ones behind them.
struct SequenceLengths {
  int context = 0, fresh = 1;
};
// Block tables with shuffled ids, positions, slots of this rank.
BatchMeta make_batch(Inputs&, const std::vector<SequenceLengths>&, const SequenceShard&, int* n_blocks);

// A cache that holds normal numbers in every row that some token of the batch may see and NaN everywhere else.
// Values that several shards share are equal: a row depends on its sequence and global position.
KvCache make_cache(Inputs&, DType, const BatchMeta&, int n_blocks, int n_heads, int dk, int dv, bool latent,
                   float scale = 1.0f);

}  // namespace braid
