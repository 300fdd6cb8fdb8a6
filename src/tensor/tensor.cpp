#include "tensor/tensor.h"

#include "base/error.h"

namespace braid {

const char* name_of(DType t) {
  switch (t) {
    case DType::kF32: return "float32";
    case DType::kBF16: return "bfloat16";
    case DType::kF16: return "float16";
    case DType::kF8E4M3: return "float8_e4m3";
    case DType::kI8: return "int8";
    case DType::kI32: return "int32";
    case DType::kI64: return "int64";
    case DType::kU8: return "uint8";
  }
  return "?";
}

Tensor::Tensor(void* d, DType t, std::initializer_list<int64_t> dims) : data(d), dtype(t) {
  BRAID_CHECK(dims.size() <= kMaxRank);
  for (int64_t n : dims) shape[static_cast<size_t>(rank++)] = n;
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    stride[static_cast<size_t>(i)] = step;
    step *= shape[static_cast<size_t>(i)];
  }
}

int64_t Tensor::n_elements() const {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= shape[static_cast<size_t>(i)];
  return n;
}

bool Tensor::dense() const {
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (dim(i) != 1 && stride_of(i) != step) return false;
    step *= dim(i);
  }
  return true;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  BRAID_CHECK(rank >= 1 && 0 <= begin && begin <= end && end <= shape[0], "rows [{}, {}) of {}", begin, end, shape[0]);
  Tensor t = *this;
  t.data = static_cast<char*>(data) + begin * stride[0] * size_of(dtype);
  t.shape[0] = end - begin;
  return t;
}

Tensor Tensor::columns(int64_t begin, int64_t end) const {
  BRAID_CHECK(rank >= 1 && 0 <= begin && begin <= end && end <= dim(-1), "columns [{}, {}) of {}", begin, end, dim(-1));
  Tensor t = *this;
  t.data = static_cast<char*>(data) + begin * size_of(dtype);
  t.shape[static_cast<size_t>(rank - 1)] = end - begin;
  return t;
}

Tensor Tensor::view(std::initializer_list<int64_t> dims) const {
  BRAID_CHECK(dense());
  Tensor t(data, dtype, dims);
  BRAID_CHECK(t.n_elements() == n_elements(), "{} elements viewed as {}", n_elements(), t.n_elements());
  return t;
}

Tensor Tensor::split_last(int64_t outer, int64_t inner) const {
  BRAID_CHECK(rank < kMaxRank && outer * inner == dim(-1), "{} lanes split as {} x {}", dim(-1), outer, inner);
  Tensor t = *this;
  t.rank = rank + 1;
  t.shape[static_cast<size_t>(rank - 1)] = outer;
  t.shape[static_cast<size_t>(rank)] = inner;
  t.stride[static_cast<size_t>(rank - 1)] = inner;
  t.stride[static_cast<size_t>(rank)] = 1;
  return t;
}

}  // namespace braid
