// Attention over a sequence whose rows are spread over a decode-context-parallel group. Every rank attends with the query
// heads of the whole group to the rows that it holds; what belongs to one head is then brought to the rank of that head and
// put together:
//
//   own q heads --gather--> the group's q heads --attention over local rows--> results + lse --exchange, merge--> own heads
//
// The exchange is one all-to-all of [values | lse], or an all-gather of lse and a reduce-scatter of the weighted values.
// In the reproducible mode partial sums travel instead of results, and the merge has the bits of one rank.
// W ranks of the group, T tokens, N query heads of a rank, D width of what is exchanged.
#pragma once
#include "model/layers/attention.h"
#include "parallel/placement.h"

namespace braid {

class ContextExchange {
 public:
  ContextExchange(Backend& backend, const Parallel& parallel, const AttentionSpec& spec)
      : backend_(&backend), parallel_(&parallel), spec_(spec) {}

  int group_size() const { return parallel_->dcp().size(); }
  int group_rank() const { return parallel_->dcp().rank(); }
  Comm& group() const { return parallel_->dcp(); }
  float scale() const { return spec_.scale; }
  bool replicates_queries() const { return group_size() > 1 && parallel_->context().replicate_queries; }
  bool projects_before_merge() const { return group_size() > 1 && parallel_->context().project_before_merge; }

  void count(ContextUse& use) const {
    use.layers += group_size() > 1;
    use.replicated_queries += replicates_queries();
    use.fp8_queries += group_size() > 1 && parallel_->context().fp8_queries;
    use.projected_before_merge += projects_before_merge();
  }

  // [T, W N, D]: the group's query heads in rank order; q itself in a group of one. With fp8_queries rounded to e4m3 on the
  // way, at a scale of 1.
  Tensor gather_queries(Tensor q /*[T, N, D], strides allowed*/) const;

  // Own heads of the attention of `q` [T, W N, Dk] over the group's rows. `project` (or null) is applied to every rank's
  // result before the exchange: y is then [T, N, project->n], and value_dim wide before it.
  void attend(Tensor y, Tensor q, const KvCache&, const BatchMeta&, int64_t value_dim, const HeadWeight* project) const;

 private:
  void exchange_results(Tensor y, Tensor values /*[T, W N, D]*/, Tensor lse /*float32 [T, W N]*/) const;
  void gather_scatter(Tensor y, Tensor values, Tensor lse) const;
  void exchange_partials(Tensor y, Tensor q, const KvCache&, const BatchMeta&) const;

  Backend* backend_;
  const Parallel* parallel_;
  AttentionSpec spec_;
};

}  // namespace braid
