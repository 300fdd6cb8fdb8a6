// Choice of level, and weights.
#include "ops/cpu/cpu_backend.h"

#include <cstring>

#include "base/error.h"
#include "ops/quantise.h"
#include "ops/transposed.h"

namespace braid {
namespace {

const Kernels& choose_level(const std::string& wanted) {
  const std::vector<const Kernels*> levels = supported_levels();
  if (levels.empty()) throw Error("this processor lacks x86-64-v2 (SSE4.2), the least that the cpu backend runs on");
  if (wanted.empty()) return *levels.back();
  for (const Kernels* k : levels) {
    if (wanted == k->level) return *k;
  }
  throw Error("cpu level {} is not one that this machine runs; the best here is {}", wanted, levels.back()->level);
}

CodedColumn coded_column(const KeptMatrix& w, int64_t row) {
  return {static_cast<const uint8_t*>(w.values.data) + row * w.values.stride[0], w.scales.row<float>(row)};
}

// The rows `row_of(column)` of the matrix that `matrix_of(column)` names; a negative row is one of zeros.
template <typename MatrixOf, typename RowOf>
void pack(const PanelLayout& layout, const uint8_t* places, Tensor to, int64_t offset, const MatrixOf& matrix_of,
          const RowOf& row_of) {
  auto rows = [&]<typename T>(T*) {
    return
        [&](int64_t c) -> const T* { return row_of(c) < 0 ? nullptr : matrix_of(c).values.template row<T>(row_of(c)); };
  };
  if (layout.stored.scaled()) {
    pack_codes(to.as<uint8_t>() + offset, layout, code_book(layout.stored.type), places,
               [&](int64_t c) { return row_of(c) < 0 ? CodedColumn{} : coded_column(matrix_of(c), row_of(c)); });
  } else if (layout.stored.type == DType::kBF16) {
    pack_panels(to.as<BFloat16>() + offset, layout, rows(static_cast<BFloat16*>(nullptr)));
  } else {
    pack_panels(to.as<float>() + offset, layout, rows(static_cast<float*>(nullptr)));
  }
}

void pack_rows(const PanelLayout& layout, const uint8_t* places, Tensor to, int64_t offset, const WeightMatrix& w) {
  BRAID_CHECK(w.kept == layout.stored, "weights are {}, the packed form {}", name_of(w.kept.type),
              name_of(layout.stored.type));
  const KeptMatrix kept = as_kept(w, layout.k_slices);
  pack(
      layout, places, to, offset, [&](int64_t) -> const KeptMatrix& { return kept; }, [](int64_t c) { return c; });
}

}  // namespace

std::vector<const Kernels*> supported_levels() {
  std::vector<const Kernels*> levels;
  if (__builtin_cpu_supports("x86-64-v2")) levels.push_back(&cpu_v2::kernels());
  if (__builtin_cpu_supports("x86-64-v3")) levels.push_back(&cpu_v3::kernels());
  if (__builtin_cpu_supports("x86-64-v4")) {
    levels.push_back(&cpu_v4::kernels());
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi"))
      levels.push_back(&cpu_v4_bf16::kernels());
  }
  return levels;
}

std::vector<std::string> cpu_levels() {
  std::vector<std::string> names;
  for (const Kernels* k : supported_levels()) names.emplace_back(k->level);
  return names;
}

CpuBackend::CpuBackend(const CpuOptions& options)
    : kernels_(choose_level(options.level)), workers_(options.n_threads), name_(std::string("cpu ") + kernels_.level) {}

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) { return std::make_unique<CpuBackend>(options); }

PanelLayout CpuBackend::layout(int64_t n, int64_t k, int k_slices, const WeightFormat& stored) const {
  BRAID_CHECK(stored.type == DType::kF32 || stored.type == DType::kBF16 ||
                  (0 < stored.group && stored.group <= WeightFormat::kMaxGroup),
              "weights in {}, groups of {}", name_of(stored.type), stored.group);
  BRAID_CHECK(1 <= k_slices && k_slices <= kMaxSlices && k % k_slices == 0, "K {} in {} slices", k, k_slices);
  return {n, k, k_slices, stored, kernels_.panel, kernels_.lanes};
}

// Vectors of gate and up columns alternate, so that a tile holds both halves of what it multiplies.
PanelLayout CpuBackend::gate_up_layout(const ExpertWeights& e) const {
  const int64_t padded = (e.ffn + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes;
  return layout(2 * padded, e.hidden, 1, e.stored);
}
PanelLayout CpuBackend::down_layout(const ExpertWeights& e) const {
  return layout(e.hidden, e.ffn, e.k_slices, e.stored);
}

LinearWeight CpuBackend::pack_linear(const WeightMatrix& w, Tensor bias, int k_slices) {
  const PanelLayout l = layout(w.values.dim(0), w.values.dim(1), k_slices, w.kept);
  LinearWeight packed{l.n, l.k, k_slices, w.kept, alloc(MemoryKind::kWeights, l.element(), {l.size()}), {}, {}};
  pack_rows(l, kernels_.code_places, packed.packed, 0, w);
  if (bias) {
    packed.bias = alloc(MemoryKind::kWeights, DType::kF32, {l.n});
    std::memcpy(packed.bias.data, bias.as<float>(), static_cast<size_t>(l.n) * sizeof(float));
  }
  return packed;
}

LinearWeight CpuBackend::linear_rows(const LinearWeight& w, int64_t begin, int64_t end) const {
  const PanelLayout l = layout(w.n, w.k, w.k_slices, w.stored);
  LinearWeight cut{end - begin, w.k, w.k_slices, w.stored, {}, {}, {}};
  if (begin % l.panel != 0 || (end % l.panel != 0 && end != w.n)) return cut;
  const int64_t first = l.offset(begin / l.panel);
  cut.packed = w.packed.rows(first, first + layout(cut.n, w.k, w.k_slices, w.stored).size());
  if (w.bias) cut.bias = w.bias.rows(begin, end);
  return cut;
}

HeadWeight CpuBackend::pack_heads(Tensor w, bool transposed) {
  if (transposed) return pack_heads(transposed_heads(w).tensor, false);
  const PanelLayout l = layout(w.dim(1), w.dim(2), 1, w.dtype);
  HeadWeight packed{w.dim(0), l.n, l.k, w.dtype, alloc(MemoryKind::kWeights, w.dtype, {w.dim(0), l.size()})};
  for (int64_t h = 0; h < w.dim(0); ++h) {
    Tensor head = w.rows(h, h + 1);
    head.rank = 2;
    head.shape = {l.n, l.k};
    head.stride = {w.stride[1], 1};
    pack_rows(l, kernels_.code_places, packed.packed, h * l.size(), head);
  }
  return packed;
}

ExpertWeights CpuBackend::make_experts(int first, int count, int64_t hidden, int64_t ffn, const WeightFormat& stored,
                                       int k_slices) {
  ExpertWeights e{first, count, hidden, ffn, k_slices, stored, {}, {}, {}, {}};
  e.gate_up = alloc(MemoryKind::kWeights, gate_up_layout(e).element(), {count, gate_up_layout(e).size()});
  e.down = alloc(MemoryKind::kWeights, down_layout(e).element(), {count, down_layout(e).size()});
  return e;
}

void CpuBackend::pack_expert(ExpertWeights& e, int expert, const WeightMatrix& gate, const WeightMatrix& up,
                             const WeightMatrix& down) {
  BRAID_CHECK(e.first <= expert && expert < e.first + e.count);
  const int64_t i = expert - e.first;
  const int64_t lanes = kernels_.lanes;
  const PanelLayout l = gate_up_layout(e);
  BRAID_CHECK(gate.kept == e.stored && up.kept == e.stored, "experts are {}", name_of(e.stored.type));
  const KeptMatrix halves[] = {as_kept(gate, 1), as_kept(up, 1)};
  pack(
      l, kernels_.code_places, e.gate_up, i * l.size(),
      [&](int64_t c) -> const KeptMatrix& { return halves[c / lanes % 2]; },
      [&](int64_t c) {
        const int64_t row = c / (2 * lanes) * lanes + c % lanes;
        return row < e.ffn ? row : -1;
      });
  pack_rows(down_layout(e), kernels_.code_places, e.down, i * down_layout(e).size(), down);
}

}  // namespace braid
