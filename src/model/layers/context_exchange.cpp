#include "model/layers/context_exchange.h"

namespace braid {
namespace {

int64_t padded(int64_t bytes) { return (bytes + 15) / 16 * 16; }

// Heads [first, first + n) of x [T, heads, D].
Tensor heads_of(const Tensor& x, int64_t first, int64_t n) {
  const int64_t d = x.dim(2);
  return x.view({x.dim(0), x.dim(1) * d}).columns(first * d, (first + n) * d).split_last(n, d);
}

// W equal messages, each of some tensors one behind the other: a view of each lies `bytes` from the next rank's.
class Messages {
 public:
  explicit Messages(int64_t ranks) : ranks_(ranks) {}

  // The place of a tensor [T, N] or [T, N, D] in every message.
  int add(DType t, int64_t tokens, int64_t heads, int64_t d) {
    fields_[n_fields_] = {t, bytes_, tokens, heads, d};
    bytes_ += padded(tokens * heads * d * size_of(t));
    return n_fields_++;
  }
  Tensor allocate(Backend& backend) const { return backend.scratch(DType::kU8, {ranks_, bytes_}); }

  int64_t offset(int field) const { return fields_[field].offset; }
  // One message's tensor [T, N, D].
  Tensor one(const Tensor& buffer, int field, int64_t rank) const {
    const Field& f = fields_[field];
    return Tensor(static_cast<char*>(buffer.data) + rank * bytes_ + f.offset, f.dtype, {f.tokens, f.heads, f.d});
  }
  // The same of all messages, [W, T, N, D].
  Tensor all(const Tensor& buffer, int field) const {
    const Field& f = fields_[field];
    Tensor t(static_cast<char*>(buffer.data) + f.offset, f.dtype, {ranks_, f.tokens, f.heads, f.d});
    t.stride[0] = bytes_ / size_of(f.dtype);
    return t;
  }
  // The same of a tensor with one number per head, [W, T, N].
  Tensor all_scalars(const Tensor& buffer, int field) const {
    const Field& f = fields_[field];
    Tensor t(static_cast<char*>(buffer.data) + f.offset, f.dtype, {ranks_, f.tokens, f.heads});
    t.stride[0] = bytes_ / size_of(f.dtype);
    return t;
  }

 private:
  struct Field {
    DType dtype = DType::kF32;
    int64_t offset = 0, tokens = 0, heads = 0, d = 0;
  };
  int64_t ranks_, bytes_ = 0;
  Field fields_[3];
  int n_fields_ = 0;
};

}  // namespace

Tensor ContextExchange::gather_queries(Tensor q) const {
  if (group_size() == 1) return q;
  const int64_t ranks = group_size(), n = q.dim(0), heads = q.dim(1), d = q.dim(2);
  Tensor group = backend_->scratch(q.dtype, {n, ranks * heads, d});
  const ScratchScope temporaries(*backend_);
  const DType sent = parallel_->context().fp8_queries ? DType::kF8E4M3 : q.dtype;
  Tensor own = q;
  if (!q.dense() || sent != q.dtype) {
    own = backend_->scratch(sent, {n, heads, d});
    backend_->copy(own, q);
  }
  Tensor gathered = backend_->scratch(sent, {ranks, n, heads, d});
  parallel_->dcp().all_gather(gathered, own, "dcp_q");
  for (int64_t r = 0; r < ranks; ++r) {
    backend_->copy(heads_of(group, r * heads, heads), gathered.rows(r, r + 1).view({n, heads, d}));
  }
  return group;
}

void ContextExchange::attend(Tensor y, Tensor q, const KvCache& cache, const BatchMeta& b, int64_t value_dim,
                             const HeadWeight* project) const {
  if (group_size() == 1) return backend_->attention(y, {}, q, cache, spec_, b);
  const ScratchScope temporaries(*backend_);
  if (parallel_->reproducible()) return exchange_partials(y, q, cache, b);
  Tensor values = backend_->scratch(y.dtype, {q.dim(0), q.dim(1), value_dim});
  Tensor lse = backend_->scratch(DType::kF32, {q.dim(0), q.dim(1)});
  backend_->attention(values, lse, q, cache, spec_, b);
  if (project) {
    Tensor projected = backend_->scratch(y.dtype, {q.dim(0), q.dim(1), project->n});
    backend_->head_linear(projected, values, *project);
    values = projected;
  }
  if (parallel_->context().exchange == ContextOptions::Exchange::kGatherScatter) {
    gather_scatter(y, values, lse);
  } else {
    exchange_results(y, values, lse);
  }
}

void ContextExchange::exchange_results(Tensor y, Tensor values, Tensor lse) const {
  if (parallel_->dcp().merge_heads(y, values, lse, "dcp_merge")) return;
  const int64_t ranks = group_size(), n = y.dim(0), heads = y.dim(1), d = y.dim(2);
  Messages messages(ranks);
  const int value_field = messages.add(values.dtype, n, heads, d), lse_field = messages.add(DType::kF32, n, heads, 1);
  const Tensor out = messages.allocate(*backend_), in = messages.allocate(*backend_);
  backend_->pack_results(out, values, lse, messages.offset(lse_field));
  parallel_->dcp().all_to_all(in, out, "dcp_merge");
  backend_->merge_results(y, {}, messages.all(in, value_field), messages.all_scalars(in, lse_field), 0);
}

void ContextExchange::gather_scatter(Tensor y, Tensor values, Tensor lse) const {
  const int64_t ranks = group_size(), n = y.dim(0), heads = y.dim(1), d = y.dim(2);
  Comm& dcp = parallel_->dcp();
  Tensor lses = backend_->scratch(DType::kF32, {ranks, n, ranks * heads});
  dcp.all_gather(lses, lse, "dcp_lse");
  // What this rank adds to every head, sorted by the rank of the head.
  Tensor terms = backend_->scratch(DType::kF32, {ranks, n, heads, d}), sum = backend_->scratch(DType::kF32, {n, heads, d});
  for (int64_t r = 0; r < ranks; ++r) {
    const Tensor part = heads_of(values, r * heads, heads);
    Tensor one = part;  // [1, T, N, D]
    one.rank = 4;
    one.shape = {1, n, heads, d};
    one.stride = {0, part.stride[0], part.stride[1], 1};
    backend_->merge_results(terms.rows(r, r + 1).view({n, heads, d}), {}, one, lses.columns(r * heads, (r + 1) * heads), dcp.rank());
  }
  dcp.reduce_scatter(sum, terms, "dcp_merge");
  backend_->copy(y, sum);
}

void ContextExchange::exchange_partials(Tensor y, Tensor q, const KvCache& cache, const BatchMeta& b) const {
  const int64_t ranks = group_size(), n = y.dim(0), heads = y.dim(1), d = y.dim(2), all_heads = q.dim(1);
  const Tensor sum = backend_->scratch(DType::kF32, {n, all_heads, d});
  const Tensor weight = backend_->scratch(DType::kF32, {n, all_heads}), k = backend_->scratch(DType::kF32, {n, all_heads});
  backend_->attention_partial(sum, weight, k, q, cache, spec_, b);
  Comm& dcp = parallel_->dcp();
  if (parallel_->context().exchange == ContextOptions::Exchange::kGatherScatter) {
    // The order of a sum on the wire is not the order of the stripes, so whole partials are gathered and added here.
    const int64_t first = dcp.rank() * heads;
    const Tensor sums = backend_->scratch(DType::kF32, {ranks, n, all_heads * d});
    const Tensor weights = backend_->scratch(DType::kF32, {ranks, n, all_heads}), ks = backend_->scratch(DType::kF32, {ranks, n, all_heads});
    dcp.all_gather(sums, sum, "dcp_merge");
    dcp.all_gather(weights, weight, "dcp_weight");
    dcp.all_gather(ks, k, "dcp_lse");
    const Tensor own = sums.columns(first * d, (first + heads) * d).split_last(heads, d);
    return backend_->merge_partials(y, {}, own, weights.columns(first, first + heads), ks.columns(first, first + heads), cache.scale);
  }
  Messages messages(ranks);
  const int sum_field = messages.add(DType::kF32, n, heads, d), weight_field = messages.add(DType::kF32, n, heads, 1),
            k_field = messages.add(DType::kF32, n, heads, 1);
  const Tensor out = messages.allocate(*backend_), in = messages.allocate(*backend_);
  for (int64_t r = 0; r < ranks; ++r) {
    backend_->copy(messages.one(out, sum_field, r), heads_of(sum, r * heads, heads));
    backend_->copy(messages.one(out, weight_field, r).view({n, heads}), weight.columns(r * heads, (r + 1) * heads));
    backend_->copy(messages.one(out, k_field, r).view({n, heads}), k.columns(r * heads, (r + 1) * heads));
  }
  dcp.all_to_all(in, out, "dcp_merge");
  backend_->merge_partials(y, {}, messages.all(in, sum_field), messages.all_scalars(in, weight_field),
                           messages.all_scalars(in, k_field), cache.scale);
}

}  // namespace braid
