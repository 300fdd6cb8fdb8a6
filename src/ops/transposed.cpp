#include "ops/transposed.h"

#include "base/error.h"

namespace braid {
namespace {

template <typename T>
void transpose(const Tensor& to, const Tensor& from) {
  const int64_t heads = from.dim(0), k = from.dim(1), n = from.dim(2);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < k; ++i) {
      const T* row = from.as<T>() + h * from.stride[0] + i * from.stride[1];
      for (int64_t j = 0; j < n; ++j) to.as<T>()[(h * n + j) * k + i] = row[j];
    }
  }
}

}  // namespace

HostTensor transposed_heads(Tensor w) {
  BRAID_CHECK(w.rank == 3);
  HostTensor t;
  t.bytes.reset(new std::byte[static_cast<size_t>(w.n_bytes())]);
  t.tensor = Tensor(t.bytes.get(), w.dtype, {w.dim(0), w.dim(2), w.dim(1)});
  w.dtype == DType::kBF16 ? transpose<BFloat16>(t.tensor, w) : transpose<float>(t.tensor, w);
  return t;
}

}  // namespace braid
