#include "model/layers/row_attention.h"

namespace braid {
namespace {

// [first, first + 1) of the outermost dimension of [2, T, N, ...], without it.
Tensor half_of(const Tensor& pair, int64_t which) {
  Tensor t = pair.rows(which, which + 1);
  t.rank = pair.rank - 1;
  for (int i = 0; i < t.rank; ++i) {
    t.shape[static_cast<size_t>(i)] = pair.dim(i + 1);
    t.stride[static_cast<size_t>(i)] = pair.stride_of(i + 1);
  }
  return t;
}

// Rows [begin, end) of the second dimension.
Tensor inner_rows(const Tensor& pair, int64_t begin, int64_t end) {
  Tensor t = pair;
  t.data = static_cast<char*>(t.data) + begin * t.stride[1] * size_of(t.dtype);
  t.shape[1] = end - begin;
  return t;
}

}  // namespace

void attend_rows(Backend& backend, Tensor y, Tensor q, const RowKeys& fresh, const KvCache& cache, const StepPart& part,
                 const RowSource& source, float scale) {
  if (part.windows.empty()) return backend.attention_rows(y, {}, q, fresh.k, fresh.k_rope, fresh.v, part.fresh, scale);
  const int64_t n = y.dim(0), heads = y.dim(1), d = y.dim(2);
  const ScratchScope temporaries(backend);
  // The result so far, and a window's.
  const Tensor values = backend.scratch(y.dtype, {2, n, heads, d}), lses = backend.scratch(DType::kF32, {2, n, heads});
  const Tensor whole = half_of(values, 0), whole_lse = half_of(lses, 0);
  backend.attention_rows(whole, whole_lse, q, fresh.k, fresh.k_rope, fresh.v, part.fresh, scale);
  for (const ContextWindow& w : part.windows) {
    const ScratchScope of_window(backend);
    const int64_t begin = w.first_row, end = w.first_row + w.n_rows;
    const RowKeys keys = source.of_window(cache, w);
    const Tensor pair = inner_rows(values, begin, end), pair_lse = inner_rows(lses, begin, end);
    backend.attention_rows(half_of(pair, 1), half_of(pair_lse, 1), q.rows(begin, end), keys.k, keys.k_rope, keys.v, w.spans, scale);
    const Tensor merged = backend.scratch(y.dtype, {w.n_rows, heads, d}), merged_lse = backend.scratch(DType::kF32, {w.n_rows, heads});
    backend.merge_results(merged, merged_lse, pair, pair_lse, 0);
    backend.copy(half_of(pair, 0), merged);
    backend.copy(half_of(pair_lse, 0), merged_lse);
  }
  backend.copy(y, whole);
}

Tensor gather_window(Backend& backend, Comm& group, std::initializer_list<KvCache> caches, const ContextWindow& w, DType compute) {
  const KvCache& first = *caches.begin();
  const int64_t heads = first.k.dim(1), d = first.k.dim(2), all = heads * static_cast<int64_t>(caches.size());
  const bool alone = group.size() == 1;
  // This rank's rows, in the order of the window where it is alone.
  const Tensor own = backend.scratch(alone ? compute : first.k.dtype, {w.rank_rows, all, d});
  int64_t head = 0;
  for (KvCache cache : caches) {
    if (!alone) cache.scale = 1.0f;  // as stored
    const Tensor part = own.view({w.rank_rows, all * d}).columns(head * d, (head + heads) * d).split_last(heads, d);
    backend.gather_cache(part, cache, w.slots);
    head += heads;
  }
  if (alone) return own;
  KvCache gathered;
  gathered.k = backend.scratch(first.k.dtype, {group.size() * w.rank_rows, all, d});
  gathered.scale = first.scale;
  group.all_gather(gathered.k, own, "dcp_context");
  const Tensor rows = backend.scratch(compute, {w.n_tokens, all, d});
  backend.gather_cache(rows, gathered, w.order);
  return rows;
}

}  // namespace braid
