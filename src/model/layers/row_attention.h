// Attention of new tokens to keys and values as rows: to each other, and to their sequences' cached context, which is
// brought together window by window and merged by log-sum-exp. See StepPart.
// T new tokens of the part, N query heads of this rank, J keys.
#pragma once
#include <initializer_list>

#include "ops/backend.h"
#include "parallel/placement.h"

namespace braid {

struct RowKeys {
  Tensor k;       // [J, N, Dn]
  Tensor k_rope;  // [J, Dr] behind them, shared by all heads; or empty
  Tensor v;       // [J, N, Dv]
};

// f(part, batch, begin, end) for rows [begin, end) of the step, which attend to rows as `part` says or, where it is null,
// through the cache.
template <typename F>
void for_parts(Backend& backend, const BatchMeta& b, const F& f) {
  if (!b.parts) return f(static_cast<const StepPart*>(nullptr), b, int64_t{0}, int64_t{b.n_tokens});
  for (const StepPart& part : *b.parts) {
    const ScratchScope temporaries(backend);
    f(part.from_rows ? &part : nullptr, part.batch, int64_t{part.first_row}, int64_t{part.first_row} + part.batch.n_tokens);
  }
}

// A layer's way from cached rows to keys and values.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual RowKeys of_window(const KvCache&, const ContextWindow&) const = 0;
};

void attend_rows(Backend&, Tensor y /*[T, N, Dv]*/, Tensor q /*[T, N, Dn + Dr]*/, const RowKeys& fresh, const KvCache&, const StepPart&,
                 const RowSource&, float scale);

// The window's rows of `caches`, each [slots, K, D], side by side as [J, caches K, D] in the type `compute`, from every rank
// of the group: rows travel as they are stored.
Tensor gather_window(Backend&, Comm& group, std::initializer_list<KvCache> caches, const ContextWindow&, DType compute);

}  // namespace braid
