// SliceWalk's checks. A wrong slice is a mistake in braid, not in a file, hence BRAID_CHECK.
#include "model/slice.h"

#include <algorithm>

#include "base/error.h"

namespace braid {

SliceWalk::SliceWalk(const std::string& name, const Shape& shape, const Part& part)
    : shape_(shape), slice_(part.slice) {
  BRAID_CHECK(!shape.empty(), "{}: a scalar has no slices", name);
  if (slice_.empty())
    for (const int64_t n : shape) slice_.push_back({0, n});
  BRAID_CHECK(slice_.size() == shape.size(), "{}: {} ranges for shape {}", name, slice_.size(), shape_text(shape));
  const Tensor& out = part.out;
  BRAID_CHECK(out.dtype == DType::kF32 || out.dtype == DType::kBF16 || (out.dtype == DType::kF8E4M3 && part.scales && out.rank == 2),
              "{} read as {}", name, name_of(out.dtype));
  extents_.resize(shape.size());
  out_strides_.assign(shape.size(), 0);
  int left = out.rank - 1;  // output dimensions not matched yet, from the innermost
  for (size_t d = shape.size(); d-- > 0;) {
    const Range r = slice_[d];
    BRAID_CHECK(0 <= r.begin && r.begin <= r.end && r.end <= shape[d], "{}: range [{}, {}) of {}", name, r.begin, r.end,
                shape[d]);
    extents_[d] = r.size();
    while (left >= 0 && out.dim(left) == 1 && r.size() != 1) --left;
    if (left >= 0 && out.dim(left) == r.size()) {
      out_strides_[d] = out.stride_of(left--);
    } else {
      BRAID_CHECK(r.size() == 1, "{}: extent {} of dimension {} has no place in the output", name, r.size(), d);
    }
  }
  for (; left >= 0; --left) BRAID_CHECK(out.dim(left) == 1, "{}: the output has more elements than the slice", name);
  BRAID_CHECK(extents_.back() <= 1 || out_strides_.back() == 1, "{}: rows of the output are not contiguous", name);
}

int64_t SliceWalk::n_elements() const {
  int64_t n = 1;
  for (const int64_t e : extents_) n *= e;
  return n;
}

bool groups_fit_blocks(Range columns, int k_slices, int group, int64_t block) {
  const int64_t slice = columns.size() / k_slices;
  for (int64_t begin = columns.begin; begin < columns.end; begin += slice) {
    for (int64_t at = begin; at < begin + slice; at += group) {
      if (at / block != (std::min(at + group, begin + slice) - 1) / block) return false;
    }
  }
  return true;
}

int64_t scales_of(const Slice& slice, int64_t block_rows, int64_t block_columns) {
  const auto blocks = [](Range r, int64_t block) { return r.size() == 0 ? 0 : (r.end - 1) / block - r.begin / block + 1; };
  int64_t n = blocks(slice.back(), block_columns) * blocks(slice[slice.size() - 2], block_rows);
  for (size_t d = 0; d + 2 < slice.size(); ++d) n *= slice[d].size();
  return n;
}

}  // namespace braid
