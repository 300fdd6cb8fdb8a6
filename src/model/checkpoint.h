// Weights by name, however they are stored: a WeightSource is what all ranks share (mapped files, or dummy values); a
// CheckpointReader is one rank's view of it, which knows what that rank has read. Slices are converted on the way into
// the caller's buffer, so that a rank touches only the bytes of its own slices.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "model/config.h"
#include "model/safetensors.h"
#include "ops/backend.h"
#include "parallel/layout.h"
#include "tensor/tensor.h"

namespace braid {

// Element type in which a stored tensor is kept: bfloat16 stays; float32 compute keeps all else exactly, as float32;
// bfloat16 compute rounds all else to bfloat16. Throws Error for types that hold no weights.
DType stored_dtype(DType file, DType compute);

using Shape = std::vector<int64_t>;

using Slice = std::vector<Range>;  // one range per dimension; empty: the whole tensor

// One piece of a tensor and where it goes: float32 or bfloat16, of the slice's extents (extents of 1 may be left out),
// rows at any stride. A float8 matrix may also go as it is, to a float8 `out` and `scales`, float32 [rows, scales of k]: one
// for each group of `kept` in each of k_slices slices, none of which may reach into a second block of the checkpoint's.
struct Part {
  Slice slice;
  Tensor out;
  Backend* maker = nullptr;  // makes dummy values; none: the caller's thread
  Tensor scales = {};
  WeightFormat kept = {};
  int k_slices = 1;
};

// Whether groups of `group` columns, counted from the start of each of k_slices parts of `columns`, stay within blocks.
bool groups_fit_blocks(Range columns, int k_slices, int group, int64_t block);

struct TensorInfo {
  DType dtype = DType::kF32;  // as stored
  Shape shape;                // empty: the source has any shape
  std::string file;
};

struct StoredName {
  std::string name, file;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual bool has(const std::string& name) const = 0;
  // Throws Error with the nearest names where the tensor is missing.
  virtual TensorInfo info(const std::string& name) const = 0;
  // Fills part.out from a tensor whose whole shape must be `shape`; returns the bytes of the file that were needed. Any
  // number of threads may read.
  virtual int64_t read(const std::string& name, const Shape& shape, const Part& part) const = 0;
  virtual std::vector<StoredName> names() const = 0;  // what somebody must read or skip, sorted; none for dummy weights
};

// A folder with model.safetensors or model.safetensors.index.json, or one .safetensors file. fp8 tensors X come with
// X_scale_inv, one factor per block; the two may lie in different shards.
std::unique_ptr<WeightSource> open_checkpoint(const std::string& path, int64_t fp8_block_rows = 128,
                                              int64_t fp8_block_columns = 128);

// Every weight as a pure function of (seed, name, element), so that layouts and backends agree: matrices have standard
// deviation 1/sqrt(columns), norms are near 1, other vectors near 0.
std::unique_ptr<WeightSource> make_dummy_source(uint64_t seed, DType dtype);

// What one rank reads. Not thread-safe; the source is.
class CheckpointReader {
 public:
  // `maker`: makes dummy weights, in the memory that its staging() gives.
  CheckpointReader(const WeightSource& source, DType compute, Backend* maker = nullptr)
      : source_(&source), compute_(compute), maker_(maker) {}

  bool has(const std::string& name) const { return source_->has(name); }
  TensorInfo info(const std::string& name) const { return source_->info(name); }
  DType kept_dtype(const std::string& name) const { return stored_dtype(source_->info(name).dtype, compute_); }
  DType compute_dtype() const { return compute_; }

  // All that this rank wants of a tensor, in one call: a second call with the same name is an Error, since a weight
  // that is loaded into two places is a mistake in a model file.
  void read(const std::string& name, const Shape& shape, std::span<const Part> parts);
  void read(const std::string& name, const Shape& shape, const Slice& slice, Tensor out);
  void read(const std::string& name, const Shape& shape, Tensor out) { read(name, shape, {}, out); }

  // Float8 weights that a product could not keep, since its slices cut the checkpoint's blocks.
  void note_widened(const std::string& name) { widened_.insert(name); }
  int64_t n_widened() const { return static_cast<int64_t>(widened_.size()); }
  int64_t bytes_read() const { return bytes_read_; }  // of the files, scale factors included
  const std::unordered_set<std::string>& consumed() const { return consumed_; }

 private:
  const WeightSource* source_;
  DType compute_;
  Backend* maker_;
  int64_t bytes_read_ = 0;
  std::unordered_set<std::string> widened_;
  std::unordered_set<std::string> consumed_;
};

// Tensors that a model leaves alone on purpose: names that begin with `prefix` and end with `suffix`.
struct SkipRule {
  std::string prefix, suffix, reason;
};
struct SkippedTensor {
  std::string name, reason;
};

bool is_skipped(const std::string& name, std::span<const SkipRule> rules);

// To be called when all ranks of this process have loaded; between them they must have read every tensor. Throws Error
// listing the tensors that nobody read and no rule covers; returns those that a rule does.
std::vector<SkippedTensor> finish_loading(const WeightSource& source, std::span<const CheckpointReader* const> readers,
                                          std::span<const SkipRule> rules);

}  // namespace braid
