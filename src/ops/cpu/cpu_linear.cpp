// Products: linear layers, one product per head, mixtures of experts. Work is cut into (panel, chunk of rows) tasks;
// neither cut reaches an element's bits.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ops/cpu/cpu_backend.h"

namespace braid {
namespace {

constexpr int64_t kRowChunk = 96;  // rows of one task: a panel is read once for them
constexpr double kTaskNanoseconds = 4000.0;
constexpr double kFlopsPerNanosecond = 60.0, kBytesPerNanosecond = 20.0;  // for guesses of a task's length only

const void* element(const Tensor& t, int64_t offset) {
  return static_cast<const char*>(t.data) + offset * size_of(t.dtype);
}
void* element(Tensor& t, int64_t offset) { return static_cast<char*>(t.data) + offset * size_of(t.dtype); }

// The longer of computing and of reading the weights.
double product_nanoseconds(int64_t rows, const PanelLayout& l) {
  const auto weights = static_cast<double>(l.n * l.k);
  return std::max(2.0 * weights * static_cast<double>(rows) / kFlopsPerNanosecond,
                  weights * l.stored.bytes() / kBytesPerNanosecond);
}

// How many panels one task takes, so that tasks are not too short to hand out.
int64_t panels_per_task(double nanoseconds, int64_t n_tasks) {
  const double each = nanoseconds / static_cast<double>(std::max<int64_t>(1, n_tasks));
  return std::max<int64_t>(1, static_cast<int64_t>(kTaskNanoseconds / std::max(1.0, each)));
}

struct RowRange {
  int64_t begin, end;
};
// The i-th of n nearly equal parts of [0, rows).
RowRange part_of(int64_t rows, int64_t i, int64_t n) { return {rows * i / n, rows * (i + 1) / n}; }

}  // namespace

const Kernels::Products& CpuBackend::products(DType x, const WeightFormat& weights) const {
  if (weights.scaled()) return x == DType::kBF16 ? kernels_.x_bf16_coded : kernels_.x_f32_coded;
  if (x == DType::kBF16) return kernels_.x_bf16_w_bf16;
  return weights.type == DType::kBF16 ? kernels_.x_f32_w_bf16 : kernels_.x_f32_w_f32;
}

Tensor CpuBackend::readable(Tensor x, const WeightFormat& weights) {
  if (x.dtype == DType::kF32) return x;
  if (weights.type != DType::kF32 && kernels_.x_bf16_w_bf16.store) return x;
  if (x.rank == 3 && x.stride[1] == 0) {  // heads that share a row share its copy
    const Tensor shared = x;
    x = Tensor(x.data, x.dtype, {x.dim(0), x.dim(2)});
    x.stride[0] = shared.stride[0];
    x = readable(x, weights);
    Tensor y = shared;
    y.data = x.data;
    y.dtype = x.dtype;
    y.stride[0] = x.stride[0];
    return y;
  }
  Tensor y =
      x.rank == 2 ? scratch(DType::kF32, {x.dim(0), x.dim(1)}) : scratch(DType::kF32, {x.dim(0), x.dim(1), x.dim(2)});
  const int64_t inner = x.rank == 2 ? 1 : x.dim(1), n = x.dim(-1);
  for_rows(x.dim(0) * inner, static_cast<double>(n) / 8.0, [&](int64_t r, int) {
    const int64_t from = r / inner * x.stride[0] + (x.rank == 2 ? 0 : r % inner * x.stride[1]);
    kernels_.to_float(y.as<float>() + r * n, element(x, from), x.dtype, n);
  });
  return y;
}

void CpuBackend::linear(Tensor y, Tensor x, const LinearWeight& w) {
  BRAID_CHECK(x.dim(1) == w.k && y.dim(1) == w.n && x.dim(0) == y.dim(0));
  const ScratchScope temporary(*this);
  const PanelLayout l = layout(w.n, w.k, w.k_slices, w.stored);
  x = readable(x, w.stored);
  const auto store = products(x.dtype, w.stored).store;
  const int64_t rows = x.dim(0), chunks = (rows + kRowChunk - 1) / kRowChunk;
  const double nanoseconds = product_nanoseconds(rows, l);
  const int64_t group = panels_per_task(nanoseconds, l.n_panels() * chunks);
  const int64_t groups = (l.n_panels() + group - 1) / group;
  workers_.run(groups * chunks, nanoseconds, [&](int64_t task, int) {
    const RowRange r = part_of(rows, task % chunks, chunks);
    const void* in[kRowChunk];
    void* out[kRowChunk];
    for (int64_t i = r.begin; i < r.end; ++i) in[i - r.begin] = element(x, i * x.stride[0]);
    ProductArgs a;
    a.x = in;
    a.y = out;
    a.y_type = y.dtype;
    a.rows = static_cast<int>(r.end - r.begin);
    a.k = w.k;
    a.k_slices = w.k_slices;
    set_codes(a, w.stored);
    const int64_t first = task / chunks * group;
    for (int64_t p = first; p < std::min(first + group, l.n_panels()); ++p) {
      for (int64_t i = r.begin; i < r.end; ++i) out[i - r.begin] = element(y, i * y.stride[0] + p * l.panel);
      a.panel = element(w.packed, l.offset(p));
      a.width = l.width(p);
      a.columns = l.columns(p);
      a.bias = w.bias ? w.bias.as<float>() + p * l.panel : nullptr;
      store(a);
    }
  });
}

void CpuBackend::head_linear(Tensor y, Tensor x, const HeadWeight& w) {
  BRAID_CHECK(x.dim(1) == w.heads && x.dim(2) == w.k && y.dim(1) == w.heads && y.dim(2) == w.n && x.dim(0) == y.dim(0));
  const ScratchScope temporary(*this);
  const PanelLayout l = layout(w.n, w.k, 1, w.stored);
  x = readable(x, w.stored);
  const auto store = products(x.dtype, w.stored).store;
  const int64_t rows = x.dim(0), chunks = (rows + kRowChunk - 1) / kRowChunk;
  const double nanoseconds = product_nanoseconds(rows, l) * static_cast<double>(w.heads);
  const int64_t group = panels_per_task(nanoseconds, w.heads * chunks);  // of heads: one has few panels
  const int64_t groups = (w.heads + group - 1) / group;
  workers_.run(groups * chunks, nanoseconds, [&](int64_t task, int) {
    const RowRange r = part_of(rows, task % chunks, chunks);
    const void* in[kRowChunk];
    void* out[kRowChunk];
    ProductArgs a;
    a.x = in;
    a.y = out;
    a.y_type = y.dtype;
    a.rows = static_cast<int>(r.end - r.begin);
    a.k = w.k;
    const int64_t first = task / chunks * group;
    for (int64_t h = first; h < std::min(first + group, w.heads); ++h) {
      for (int64_t i = r.begin; i < r.end; ++i) in[i - r.begin] = element(x, i * x.stride[0] + h * x.stride[1]);
      for (int64_t p = 0; p < l.n_panels(); ++p) {
        for (int64_t i = r.begin; i < r.end; ++i) {
          out[i - r.begin] = element(y, i * y.stride[0] + h * y.stride[1] + p * l.panel);
        }
        a.panel = element(w.packed, h * l.size() + l.offset(p));
        a.width = l.width(p);
        a.columns = l.columns(p);
        store(a);
      }
    }
  });
}

}  // namespace braid
