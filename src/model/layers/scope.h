// A path in the checkpoint together with the rank that loads from it. `scope / "self_attn"` walks names exactly as the
// checkpoint spells them; a layer's constructor is its weight loading: it names roles, and takes this rank's slice from
// the mapped file straight into the backend's layout.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint.h"
#include "model/config.h"
#include "ops/backend.h"
#include "parallel/placement.h"

namespace braid {

// How products keep their weights, as far as the run decides it. Embedding, head, router, norms and the per-head weights of
// latent attention are never in eight bits.
struct WeightRule {
  WeightFormat rounded;         // eight-bit format that wider weights are rounded to; without scales: they stay as they are
  bool keep_float8 = false;     // a float8 checkpoint's weights stay as they are
};

struct LoadContext {
  Backend& backend;
  const Parallel& parallel;
  CheckpointReader& reader;
  const ModelConfig& config;
  DType compute;  // activation type of the run
  WeightRule weights;
};

class Scope {
 public:
  explicit Scope(const LoadContext& context, std::string path = "") : context_(&context), path_(std::move(path)) {}
  Scope operator/(std::string_view child) const;
  Scope operator/(int64_t index) const { return *this / std::to_string(index); }

  const LoadContext& context() const { return *context_; }
  Backend& backend() const { return context_->backend; }
  const Parallel& parallel() const { return context_->parallel; }
  const ModelConfig& config() const { return context_->config; }

  // One weight of a stack: child.weight [out, in], cut by its role.
  struct Part {
    std::string child;  // "q_proj"; empty: this scope itself
    Role role;
    int64_t out;
    int64_t kv_heads = 0;  // for Role::kKvHeads
  };
  // Weights that read the same input, as one product whose outputs follow one another. Biases if `bias`.
  LinearWeight linear(const std::vector<Part>& parts, int64_t in, bool bias = false) const;
  LinearWeight linear(Role role, int64_t out, int64_t in) const { return linear({{"", role, out}}, in); }
  // The same, never in eight bits.
  LinearWeight wide_linear(Role role, int64_t out, int64_t in) const { return load_linear({{"", role, out}}, in, false, {}); }
  // weight [out, in] whose input columns are cut; partial results are float32 and must be summed.
  LinearWeight row_parallel(Role role, int64_t out, int64_t in) const;
  Tensor norm(int64_t n) const;                    // .weight, float32 [n], replicated
  Tensor vector(std::string_view name, int64_t n) const;  // any float32 [n], replicated

  // Rows and columns of this scope's .weight on the host, as `stored_dtype` keeps them.
  struct HostWeight {
    std::shared_ptr<std::byte[]> bytes;
    Tensor tensor;
  };
  HostWeight vocabulary_weight(Role role) const;  // this rank's rows of a [V, H] weight
  HostWeight host_weight(int64_t out, int64_t in, Range rows, Range columns) const;
  DType stored() const;  // element type that host_weight gives for this scope's .weight

  // The same on its way to a product, whose format is `kept` (as kept_format() says it) or, unscaled, the host's own.
  struct HostMatrix {
    HostWeight values, scales;
    WeightFormat kept;
    WeightMatrix matrix() const { return {values.tensor, scales.tensor, kept}; }
  };
  HostMatrix host_matrix(int64_t out, int64_t in, Range rows, Range columns, int k_slices, const WeightFormat& kept) const;
  // How products keep this scope's .weight, whose `in` columns the ranks cut into so many slices together: all ranks alike, so
  // that a slice does not depend on how many of them there are. Unscaled: as stored() says.
  WeightFormat kept_format(int64_t in, int n_slices = 1) const;

 private:
  LinearWeight load_linear(const std::vector<Part>& parts, int64_t in, bool bias, const WeightFormat& kept) const;
  DType host_type(const WeightFormat& kept) const;  // that this scope's .weight is read as
  HostMatrix empty_matrix(DType stored, int64_t n, int64_t k, int k_slices, const WeightFormat& kept) const;
  void read_matrix(const HostMatrix& to, int64_t first_row, int64_t out, int64_t in, Range rows, Range columns, int k_slices) const;

  const LoadContext* context_;
  std::string path_;
};

}  // namespace braid
