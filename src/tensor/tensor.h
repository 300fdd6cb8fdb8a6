// A tensor is a view: pointer, element type, shape and strides. It owns nothing; arenas do. The innermost dimension is
// always contiguous; outer strides are free, so that a slice of columns (the rotary lanes of q, say) is a view too.
// Shared with .cu files: standard library only.
#pragma once
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/float_types.h"

namespace braid {

enum class DType : uint8_t { kF32, kBF16, kF16, kF8E4M3, kI8, kI32, kI64, kU8 };

constexpr int size_of(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kI64: return 8;
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kU8: return 1;
  }
  return 0;
}
const char* name_of(DType t);  // "float32", "bfloat16", ...

template <typename T>
constexpr DType dtype_of();
template <> constexpr DType dtype_of<float>() { return DType::kF32; }
template <> constexpr DType dtype_of<BFloat16>() { return DType::kBF16; }
template <> constexpr DType dtype_of<Half>() { return DType::kF16; }
template <> constexpr DType dtype_of<Float8E4M3>() { return DType::kF8E4M3; }
template <> constexpr DType dtype_of<int8_t>() { return DType::kI8; }
template <> constexpr DType dtype_of<int32_t>() { return DType::kI32; }
template <> constexpr DType dtype_of<int64_t>() { return DType::kI64; }
template <> constexpr DType dtype_of<uint8_t>() { return DType::kU8; }

struct Tensor {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> stride{};  // in elements; stride[rank - 1] is 1

  Tensor() = default;
  Tensor(void* d, DType t, std::initializer_list<int64_t> dims);  // dense, row major

  bool empty() const { return data == nullptr; }
  explicit operator bool() const { return data != nullptr; }
  int64_t dim(int i) const { return shape[static_cast<size_t>(i < 0 ? rank + i : i)]; }
  int64_t stride_of(int i) const { return stride[static_cast<size_t>(i < 0 ? rank + i : i)]; }
  int64_t n_elements() const;
  int64_t n_bytes() const { return n_elements() * size_of(dtype); }
  bool dense() const;

  template <typename T>
  T* as() const {
    assert(dtype == dtype_of<T>());
    return static_cast<T*>(data);
  }
  // First element of row i, where a row is one index of the outermost dimension.
  template <typename T>
  T* row(int64_t i) const {
    return as<T>() + i * stride[0];
  }

  Tensor rows(int64_t begin, int64_t end) const;     // slice of the outermost dimension
  Tensor columns(int64_t begin, int64_t end) const;  // slice of the innermost dimension
  Tensor view(std::initializer_list<int64_t> dims) const;  // same elements, new shape; this must be dense
  Tensor split_last(int64_t outer, int64_t inner) const;   // [..., outer * inner] -> [..., outer, inner], any strides
};

}  // namespace braid
