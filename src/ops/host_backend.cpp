#include "ops/host_backend.h"

#include <cstring>

#include "base/error.h"
#include "ops/element.h"

namespace braid {
namespace {

// Calls f(offset of the innermost row in a, in b) for every innermost row of two tensors of one shape.
template <typename F>
void for_each_row(const Tensor& a, const Tensor& b, F f) {
  BRAID_CHECK(a.rank == b.rank && a.rank >= 1);
  for (int i = 0; i < a.rank; ++i) BRAID_CHECK(a.dim(i) == b.dim(i), "dimension {}: {} and {}", i, a.dim(i), b.dim(i));
  int64_t n_rows = 1;
  for (int i = 0; i + 1 < a.rank; ++i) n_rows *= a.dim(i);
  for (int64_t r = 0; r < n_rows; ++r) {
    int64_t rest = r, in_a = 0, in_b = 0;
    for (int i = a.rank - 2; i >= 0; --i) {
      in_a += rest % a.dim(i) * a.stride_of(i);
      in_b += rest % a.dim(i) * b.stride_of(i);
      rest /= a.dim(i);
    }
    f(in_a, in_b);
  }
}

char* at(const Tensor& t, int64_t offset) { return static_cast<char*>(t.data) + offset * size_of(t.dtype); }

}  // namespace

void HostBackend::upload(Tensor device, const void* host) {
  if (device.n_elements() == 0) return;
  if (!device.dense()) {
    Tensor from = device;  // the same rows one behind the other
    BRAID_CHECK(device.rank == 2);
    from.stride[0] = device.dim(1);
    from.data = const_cast<void*>(host);
    return copy(device, from);
  }
  std::memcpy(device.data, host, static_cast<size_t>(device.n_bytes()));
}

void HostBackend::download(void* host, Tensor device) {
  if (device.n_elements() == 0) return;
  BRAID_CHECK(device.dense());
  std::memcpy(host, device.data, static_cast<size_t>(device.n_bytes()));
}

void HostBackend::copy(Tensor to, Tensor from) {
  for_each_row(to, from, [&](int64_t in_to, int64_t in_from) {
    const int64_t n = to.dim(-1);
    if (to.dtype == from.dtype) {
      std::memcpy(at(to, in_to), at(from, in_from), static_cast<size_t>(n * size_of(to.dtype)));
    } else {
      for (int64_t i = 0; i < n; ++i) store_element(to, in_to + i, load_element(from, in_from + i));
    }
  });
}

void HostBackend::fill_zero(Tensor x) {
  for_each_row(x, x, [&](int64_t offset, int64_t) {
    std::memset(at(x, offset), 0, static_cast<size_t>(x.dim(-1) * size_of(x.dtype)));
  });
}

void HostBackend::sample(std::span<SampleResult> out, Tensor logits, std::span<const SamplingRow> rows) {
  BRAID_CHECK(out.size() == rows.size() && logits.dim(0) == static_cast<int64_t>(rows.size()));
  const auto n = static_cast<size_t>(logits.dim(1));
  for (size_t r = 0; r < rows.size(); ++r) {
    out[r] = sample_row({logits.row<float>(static_cast<int64_t>(r)), n}, rows[r]);
  }
}

}  // namespace braid
