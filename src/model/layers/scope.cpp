#include "model/layers/scope.h"

#include <algorithm>

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

WeightFormat Scope::kept_format(int64_t in, int n_slices) const {
  const WeightRule& rule = context_->weights;
  if (context_->reader.info(path_ + ".weight").dtype != DType::kF8E4M3 || !rule.keep_float8) return rule.rounded;
  const int64_t block = config().fp8_block_columns;
  const int group = static_cast<int>(std::min<int64_t>(block, WeightFormat::kMaxGroup));
  if (groups_fit_blocks({0, in}, n_slices, group, block)) return {DType::kF8E4M3, group};
  context_->reader.note_widened(path_);
  return {};
}

Scope::HostMatrix Scope::empty_matrix(DType stored, int64_t n, int64_t k, int k_slices, const WeightFormat& kept) const {
  HostMatrix m;
  m.kept = kept.scaled() ? kept : WeightFormat(stored);
  m.values = host_tensor(backend(), stored, {n, k});
  if (stored == DType::kF8E4M3) m.scales = host_tensor(backend(), DType::kF32, {n, kept.scales(k, k_slices)});
  return m;
}

void Scope::read_matrix(const HostMatrix& to, int64_t first_row, int64_t out, int64_t in, Range rows, Range columns, int k_slices) const {
  const int64_t end = first_row + rows.size();
  braid::Part part{{rows, columns}, to.values.tensor.rows(first_row, end)};
  if (to.scales.tensor) {
    part.scales = to.scales.tensor.rows(first_row, end);
    part.kept = to.kept;
    part.k_slices = k_slices;
  }
  context_->reader.read(path_ + ".weight", {out, in}, {&part, 1});
}

// Float8 weights that stay as they are come as they are; all others come wide, to be rounded by the backend.
DType Scope::host_type(const WeightFormat& kept) const {
  const bool float8 = context_->reader.info(path_ + ".weight").dtype == DType::kF8E4M3;
  return float8 && kept.type == DType::kF8E4M3 && kept.scaled() ? DType::kF8E4M3 : stored();
}

Scope::HostMatrix Scope::host_matrix(int64_t out, int64_t in, Range rows, Range columns, int k_slices, const WeightFormat& kept) const {
  HostMatrix m = empty_matrix(host_type(kept), rows.size(), columns.size(), k_slices, kept);
  read_matrix(m, 0, out, in, rows, columns, k_slices);
  return m;
}

LinearWeight Scope::linear(const std::vector<Part>& parts, int64_t in, bool bias) const {
  WeightFormat kept = (*this / parts[0].child).kept_format(in);
  for (const Part& p : parts) {  // one product has one format
    if ((*this / p.child).kept_format(in) != kept) kept = {};
  }
  return load_linear(parts, in, bias, kept);
}

LinearWeight Scope::load_linear(const std::vector<Part>& parts, int64_t in, bool bias, const WeightFormat& kept) const {
  int64_t n = 0;
  DType stored = (*this / parts[0].child).host_type(kept);
  for (const Part& p : parts) {
    n += held(parallel().place(p.role, p.kv_heads), p.out).size();
    const DType other = (*this / p.child).host_type(kept);
    if (other != stored) stored = DType::kF32;
  }
  const HostMatrix weight = empty_matrix(stored, n, in, 1, kept);
  HostWeight biases = host_tensor(backend(), DType::kF32, {n});
  int64_t row = 0;
  for (const Part& p : parts) {
    const Scope child = *this / p.child;
    const Range rows = held(parallel().place(p.role, p.kv_heads), p.out);
    child.read_matrix(weight, row, p.out, in, rows, {0, in}, 1);
    if (bias) context_->reader.read(child.path_ + ".bias", {p.out}, {rows}, biases.tensor.rows(row, row + rows.size()));
    row += rows.size();
  }
  return backend().pack_linear(weight.matrix(), bias ? biases.tensor : Tensor());
}

LinearWeight Scope::row_parallel(Role role, int64_t out, int64_t in) const {
  const Placement place = parallel().place(role);
  const int k_slices = parallel().k_slices();
  const HostMatrix m = host_matrix(out, in, {0, out}, held(place, in), k_slices, kept_format(in, place.parts * k_slices));
  return backend().pack_linear(m.matrix(), {}, k_slices);
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
