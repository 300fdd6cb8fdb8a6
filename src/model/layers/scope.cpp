#include "model/layers/scope.h"

#include "base/error.h"

namespace braid {
namespace {

Scope::HostWeight host_tensor(Backend& backend, DType dtype, std::initializer_list<int64_t> shape) {
  Tensor t(nullptr, dtype, shape);
  Scope::HostWeight w;
  w.bytes = backend.staging(t.n_bytes());
  t.data = w.bytes.get();
  w.tensor = t;
  return w;
}

Range held(const Placement& p, int64_t n) { return part_of(n, p.part, p.parts); }

}  // namespace

Scope Scope::operator/(std::string_view child) const {
  if (child.empty()) return *this;
  return Scope(*context_, path_.empty() ? std::string(child) : path_ + "." + std::string(child));
}

DType Scope::stored() const { return context_->reader.kept_dtype(path_ + ".weight"); }

Scope::HostWeight Scope::host_weight(int64_t out, int64_t in, Range rows, Range columns) const {
  HostWeight w = host_tensor(backend(), stored(), {rows.size(), columns.size()});
  context_->reader.read(path_ + ".weight", {out, in}, {rows, columns}, w.tensor);
  return w;
}

LinearWeight Scope::linear(const std::vector<Part>& parts, int64_t in, bool bias) const {
  int64_t n = 0;
  DType dtype = DType::kBF16;
  for (const Part& p : parts) {
    n += held(parallel().place(p.role, p.kv_heads), p.out).size();
    if ((*this / p.child).stored() == DType::kF32) dtype = DType::kF32;
  }
  HostWeight weight = host_tensor(backend(), dtype, {n, in});
  HostWeight biases = host_tensor(backend(), DType::kF32, {n});
  int64_t row = 0;
  for (const Part& p : parts) {
    const std::string name = (*this / p.child).path_;
    const Range rows = held(parallel().place(p.role, p.kv_heads), p.out);
    context_->reader.read(name + ".weight", {p.out, in}, {rows, {0, in}}, weight.tensor.rows(row, row + rows.size()));
    if (bias) context_->reader.read(name + ".bias", {p.out}, {rows}, biases.tensor.rows(row, row + rows.size()));
    row += rows.size();
  }
  return backend().pack_linear(weight.tensor, bias ? biases.tensor : Tensor());
}

LinearWeight Scope::row_parallel(Role role, int64_t out, int64_t in) const {
  const HostWeight w = host_weight(out, in, {0, out}, held(parallel().place(role), in));
  return backend().pack_linear(w.tensor, {}, parallel().k_slices());
}

Tensor Scope::vector(std::string_view name, int64_t n) const {
  HostWeight host = host_tensor(backend(), DType::kF32, {n});
  context_->reader.read((*this / name).path_, {n}, host.tensor);
  Tensor device = backend().alloc(MemoryKind::kWeights, DType::kF32, {n});
  backend().upload(device, host.tensor.data);
  return device;
}

Tensor Scope::norm(int64_t n) const { return vector("weight", n); }

Scope::HostWeight Scope::vocabulary_weight(Role role) const {
  return host_weight(config().vocab, config().hidden, held(parallel().place(role), config().vocab), {0, config().hidden});
}

}  // namespace braid
