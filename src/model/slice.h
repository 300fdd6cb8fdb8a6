// Walking a slice of a dense row-major tensor row by row, with the place of each row in the tensor and in the output.
// Shared by the sources of weights.
#pragma once
#include <cstdint>
#include <string>

#include "model/checkpoint.h"

namespace braid {

class SliceWalk {
 public:
  // Checks the part against the shape: ranges inside, output of the slice's extents and of a type that weights have.
  SliceWalk(const std::string& name, const Shape& shape, const Part& part);

  int64_t row_size() const { return extents_.back(); }
  int64_t n_elements() const;
  const Slice& slice() const { return slice_; }

  // f(first, out): `first` is the row's first element as an index into the whole tensor, `out` one into the output.
  template <typename F>
  void rows(F&& f) const {
    if (n_elements() == 0) return;
    std::vector<int64_t> at(slice_.size(), 0);
    for (;;) {
      int64_t first = 0, out = 0;
      for (size_t d = 0; d < at.size(); ++d) {
        first = first * shape_[d] + slice_[d].begin + at[d];
        out += at[d] * out_strides_[d];
      }
      f(first, out);
      size_t d = at.size() - 1;  // the innermost dimension is the row itself
      while (d > 0 && ++at[d - 1] == extents_[d - 1]) at[--d] = 0;
      if (d == 0) return;
    }
  }

 private:
  Shape shape_, extents_, out_strides_;
  Slice slice_;
};

// Scale factors of an fp8 tensor that a slice of it needs: those of the blocks that it touches.
int64_t scales_of(const Slice& slice, int64_t block_rows, int64_t block_columns);

}  // namespace braid
