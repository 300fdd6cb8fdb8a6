#include "ops/conformance_cases.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"

namespace braid {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
using Cases = std::vector<ConformanceCase>;

double tolerance(DType t) { return t == kBF16 ? 1.0 / 64.0 : t == DType::kF8E4M3 ? 1.0 / 7.0 : 2e-5; }
const char* short_name(DType t) { return t == kF32 ? "f32" : t == kBF16 ? "bf16" : t == DType::kI8 ? "int8" : "fp8"; }
std::string short_name(const WeightFormat& f) { return short_name(f.type) + (0 < f.group && f.group < 128 ? fmt::format("/{}", f.group) : ""); }

uint32_t seed_of(const std::string& name) {
  uint32_t h = 2166136261u;
  for (const char c : name) h = (h ^ static_cast<uint8_t>(c)) * 16777619u;
  return h;
}

void add_case(Cases& cases, std::string name, double tol, std::function<PreparedCase(Inputs&)> prepare) {
  const uint32_t seed = seed_of(name);
  cases.push_back({std::move(name), tol, [seed, prepare = std::move(prepare)](Backend& backend) {
                     Inputs in(backend, seed);
                     return prepare(in);
                   }});
}
void mark_host_only(Cases& cases, const WeightFormat& f) { cases.back().host_only = f.scaled(); }

void add_linear(Cases& cases, int64_t t, int64_t n, int64_t k, DType x_type, const WeightFormat& w_type, DType y_type, int slices,
                bool bias, bool strided) {
  std::string name =
      fmt::format("linear {}x{}x{} {} {} to {}{}{}{}", t, n, k, short_name(x_type), short_name(w_type),
                  short_name(y_type), slices > 1 ? " sliced" : "", bias ? " bias" : "", strided ? " strided" : "");
  add_case(cases, std::move(name), tolerance(y_type), [=](Inputs& in) {
    const int64_t gap = strided ? 5 : 0;
    const Tensor x = in.normals(x_type, {t, k + gap}).columns(0, k);
    const WeightMatrix w = in.weight(w_type, {n, k}, 0.1f);
    const Tensor b = bias ? in.normals(kF32, {n}) : Tensor{};
    const Tensor y = in.poisoned(y_type, {t, n + gap}).columns(0, n);
    Backend& be = in.backend();
    auto weight = std::make_shared<LinearWeight>(be.pack_linear(w, b, slices));
    const auto elements = static_cast<double>(n * k);
    return PreparedCase{[&be, x, y, weight] { be.linear(y, x, *weight); },
                        {y},
                        2.0 * elements * static_cast<double>(t),
                        w_type.bytes() * elements};
  });
  mark_host_only(cases, w_type);
}

// Outputs [begin, end) of a weight through linear_rows; 192 is a border of every layout.
void add_linear_rows(Cases& cases, int64_t n, int64_t begin, int64_t end, DType x_type, const WeightFormat& w_type) {
  add_case(cases, fmt::format("linear_rows [{}, {}) of {} {} {}", begin, end, n, short_name(x_type), short_name(w_type)), tolerance(x_type),
           [=](Inputs& in) {
             const Tensor x = in.normals(x_type, {7, 37}), y = in.poisoned(x_type, {7, end - begin});
             Backend& be = in.backend();
             const LinearWeight whole = be.pack_linear(in.weight(w_type, {n, 37}, 0.1f), in.normals(kF32, {n}));
             const LinearWeight cut = be.linear_rows(whole, begin, end);
             BRAID_CHECK(cut.packed, "{} cannot cut a weight at {} and {}", be.name(), begin, end);
             return PreparedCase{[=, &be] { be.linear(y, x, cut); }, {y}};
           });
  mark_host_only(cases, w_type);
}

void add_head_linear(Cases& cases, int64_t t, int64_t heads, int64_t n, int64_t k, DType x_type, DType w_type,
                     bool shared = false, bool transposed = false) {
  add_case(cases, fmt::format("head_linear {}x{}x{}x{} {} {}{}{}", t, heads, n, k, short_name(x_type), short_name(w_type), shared ? " shared" : "", transposed ? " transposed" : ""),
           tolerance(x_type), [=](Inputs& in) {
             Tensor x = in.normals(x_type, {t, heads, k + 3}).columns(0, k);
             if (shared) x.stride[1] = 0;
             const Tensor y = in.poisoned(x_type, {t, heads, n + 4}).columns(0, n);
             Backend& be = in.backend();
             Tensor weights = transposed ? in.normals(w_type, {heads, k + 2, n}, 0.2f) : in.normals(w_type, {heads, n, k}, 0.2f);
             weights.shape[1] = transposed ? k : n;  // the transposed heads lie apart
             auto w = std::make_shared<HeadWeight>(be.pack_heads(weights, transposed));
             const auto elements = static_cast<double>(heads * n * k);
             return PreparedCase{[&be, x, y, w] { be.head_linear(y, x, *w); },
                                 {y},
                                 2.0 * elements * static_cast<double>(t),
                                 elements * size_of(w_type)};
           });
}

void add_rows(Cases& cases, int64_t t, int64_t h, DType type) {
  const std::string what = fmt::format(" {}x{} {}", t, h, short_name(type));
  const double moved = static_cast<double>(2 * t * h) * size_of(type);
  add_case(cases, "rms_norm" + what, tolerance(type), [=](Inputs& in) {
    const Tensor x = in.normals(type, {t, h + 5}).columns(0, h), w = in.normals(kF32, {h}, 0.2f, 1.0f);
    const Tensor y = in.poisoned(type, {t, h});
    Backend& be = in.backend();
    return PreparedCase{[&be, x, y, w] { be.rms_norm(y, x, w, 1e-6f); }, {y}, 0.0, moved};
  });
  for (const DType added : {type, kF32}) {
    add_case(cases, fmt::format("add_rms_norm{} += {}", what, short_name(added)), tolerance(type), [=](Inputs& in) {
      const Tensor residual = in.normals(type, {t, h}), x = in.normals(added, {t, h});
      const Tensor w = in.normals(kF32, {h}, 0.2f, 1.0f), y = in.poisoned(type, {t, h});
      Backend& be = in.backend();
      return PreparedCase{[=, &be] { be.add_rms_norm(y, residual, x, w, 1e-5f); }, {y, residual}, 0.0, 2 * moved};
    });
  }
  add_case(cases, "silu_mul" + what, tolerance(type), [=](Inputs& in) {
    const Tensor x = in.normals(type, {t, 2 * h}, 4.0f), y = in.poisoned(type, {t, h});
    Backend& be = in.backend();
    return PreparedCase{[&be, x, y] { be.silu_mul(y, x); }, {y}, 0.0, moved * 1.5};
  });
  add_case(cases, "embed and gather_rows" + what, 0.0, [=](Inputs& in) {
    const Tensor table = in.normals(type, {40, h}), y = in.poisoned(kF32, {t, h}), z = in.poisoned(kF32, {t, h});
    std::vector<int32_t> ids(static_cast<size_t>(t)), rows(static_cast<size_t>(t));
    for (int32_t& id : ids) id = in.uniform(60);  // rows 10 to 49 are held, the rest is another rank's
    for (int32_t& row : rows) row = in.uniform(static_cast<int>(t));
    const Tensor id = in.ints(ids), row = in.ints(rows);
    Backend& be = in.backend();
    return PreparedCase{[=, &be] {
                          be.embed(y, id, table, 10);
                          be.gather_rows(z, y, row);
                        },
                        {y, z},
                        0.0,
                        moved};
  });
  add_case(cases, "add, copy and fill_zero" + what, 0.0, [=](Inputs& in) {
    const Tensor y = in.normals(kF32, {t, h}), x = in.normals(kF32, {t, h});
    const Tensor narrow = in.poisoned(type, {t, h + 2}), zero = in.poisoned(type, {t, h + 1});
    in.backend().fill_zero(narrow.columns(h, h + 2));
    in.backend().fill_zero(zero.columns(h, h + 1));
    Backend& be = in.backend();
    return PreparedCase{[=, &be] {
                          be.add(y, x);
                          be.copy(narrow.columns(0, h), y);
                          be.fill_zero(zero.columns(0, h));
                        },
                        {y, narrow, zero},
                        0.0,
                        moved};
  });
}

struct AttentionShape {
  int n_heads, n_kv, dk, dv;
  bool latent;
};

void add_attention(Cases& cases, const AttentionShape& s, const std::vector<SequenceLengths>& sequences, DType compute,
                   DType kept, int n_stripes, SequenceShard shard, const char* what) {
  std::string name = fmt::format("attention {} {}/{} heads {}/{} {} cache {} stripes {} rank {} of {} runs of {}", what,
                                 s.n_heads, s.n_kv, s.dk, s.dv, short_name(compute), short_name(kept), n_stripes,
                                 shard.rank, shard.n_ranks, shard.interleave);
  add_case(cases, std::move(name), 4 * tolerance(compute), [=](Inputs& in) {
    int n_blocks = 0;
    auto batch = std::make_shared<BatchMeta>(make_batch(in, sequences, shard, &n_blocks));
    const KvCache cache =
        make_cache(in, kept, *batch, n_blocks, s.n_kv, s.dk, s.dv, s.latent, kept == DType::kF8E4M3 ? 0.25f : 1.0f);
    const int64_t t = batch->n_tokens;
    const int behind = s.dk == 576 ? 0 : 3;  // queries of that size come without gaps, and have kernels that ask for it
    const Tensor q = in.normals(compute, {t, s.n_heads, s.dk + behind}).columns(0, s.dk);
    const Tensor y = in.poisoned(compute, {t, s.n_heads, s.dv}), lse = in.poisoned(kF32, {t, s.n_heads});
    AttentionSpec spec{0.2f, n_stripes};
    double pairs = 0.0, keys = 0.0;
    for (const SequenceLengths& l : sequences) {
      pairs += l.fresh * (l.context + 0.5 * (l.fresh + 1)) / shard.n_ranks;
      keys += static_cast<double>(l.context + l.fresh) / shard.n_ranks;
    }
    Backend& be = in.backend();
    return PreparedCase{[=, &be] { be.attention(y, lse, q, cache, spec, *batch); },
                        {y, lse},
                        2.0 * pairs * s.n_heads * (s.dk + s.dv),
                        keys * s.n_kv * (s.latent ? s.dk : s.dk + s.dv) * size_of(kept)};
  });
}

// Every rank's partials, then their merge; some rows are empty on some ranks.
void add_partials(Cases& cases, const AttentionShape& s, int ranks, int n_stripes, DType compute) {
  add_case(
      cases, fmt::format("attention_partial and merge {} ranks {} stripes {}", ranks, n_stripes, short_name(compute)),
      4 * tolerance(compute), [=](Inputs& in) {
        const std::vector<SequenceLengths> sequences{{0, 5}, {300, 1}, {1, 2}, {90, 3}};
        const int64_t t = 11;
        const Tensor q = in.normals(compute, {t, s.n_heads, s.dk}), y = in.poisoned(compute, {t, s.n_heads, s.dv});
        const Tensor lse = in.poisoned(kF32, {t, s.n_heads}), sums = in.poisoned(kF32, {ranks, t, s.n_heads, s.dv});
        const Tensor weights = in.poisoned(kF32, {ranks, t, s.n_heads}), ks = in.poisoned(kF32, {ranks, t, s.n_heads});
        std::vector<BatchMeta> batches;
        std::vector<KvCache> caches;
        for (int r = 0; r < ranks; ++r) {
          int n_blocks = 0;
          batches.push_back(make_batch(in, sequences, {ranks, 2, 4, r}, &n_blocks));
          caches.push_back(make_cache(in, compute, batches.back(), n_blocks, s.n_kv, s.dk, s.dv, s.latent, 2.0f));
        }
        Backend& be = in.backend();
        return PreparedCase{[=, &be] {
                              for (int r = 0; r < ranks; ++r) {
                                const auto i = static_cast<size_t>(r);
                                be.attention_partial(sums.rows(r, r + 1).view({t, s.n_heads, s.dv}),
                                                     weights.rows(r, r + 1).view({t, s.n_heads}),
                                                     ks.rows(r, r + 1).view({t, s.n_heads}), q, caches[i],
                                                     {0.1f, n_stripes}, batches[i]);
                              }
                              be.merge_partials(y, lse, sums, weights, ks, 2.0f);
                            },
                            {y, lse}};
      });
}

// Finished results of W ranks; one row is empty on every rank, one on all but the last, and empty values are poison.
void add_results(Cases& cases, int ranks, int first, int n_values, DType from, DType to) {
  add_case(cases,
           fmt::format("merge_results {} ranks, values of {} from {}, {} to {}", ranks, n_values, first,
                       short_name(from), short_name(to)),
           tolerance(to), [=](Inputs& in) {
             const int64_t t = 5, n = 3, dv = 23;
             const Tensor values = in.normals(from, {n_values, t, n, dv}), wide = in.normals(kF32, {ranks, t, n + 2}, 3.0f);
             const Tensor lses = wide.columns(0, n);  // as they lie in a message
             std::vector<float> host(static_cast<size_t>(wide.n_elements()));
             Backend& be = in.backend();
             be.download(host.data(), wide);
             for (int w = 0; w < ranks; ++w) {
               auto lse = [&](int64_t token, int64_t head) -> float& { return host[static_cast<size_t>((w * t + token) * (n + 2) + head)]; };
               lse(0, 0) = w % 2 ? NAN : -INFINITY;
               if (w + 1 < ranks) lse(1, 1) = w % 2 ? -INFINITY : INFINITY;
               if (w == 0) lse(2, 1) = -INFINITY;
             }
             be.upload(wide, host.data());
             if (first == 0) {  // what rank 0 leaves where it saw nothing must not matter
               const Tensor poison = in.poisoned(from, {dv});
               for (const auto& [token, head] : {std::pair{0, 0}, {2, 1}}) {
                 be.copy(values.rows(0, 1).view({t, n * dv}).rows(token, token + 1).columns(head * dv, (head + 1) * dv),
                         poison.view({1, dv}));
               }
             }
             const Tensor y = in.poisoned(to, {t, n, dv + 2}).columns(0, dv);
             const Tensor lse = n_values == ranks ? in.poisoned(kF32, {t, n + 1}).columns(0, n) : Tensor{};
             std::vector<Tensor> outputs{y};
             if (lse) outputs.push_back(lse);
             return PreparedCase{[=, &be] { be.merge_results(y, lse, values, lses, first); }, outputs};
           });
}

void add_messages(Cases& cases, int ranks, int d, DType type) {
  add_case(cases, fmt::format("pack_results {} ranks, {} x {}", ranks, d, short_name(type)), 0.0, [=](Inputs& in) {
    const int64_t t = 3, n = 5, size = size_of(type), lse_offset = (t * n * d * size + 15) / 16 * 16;
    const int64_t bytes = lse_offset + (t * n * 4 + 15) / 16 * 16;
    const Tensor values = in.normals(type, {t, ranks * n, d}), lse = in.normals(kF32, {t, ranks * n});
    Tensor messages = in.poisoned(kF32, {ranks, bytes / 4});
    std::vector<Tensor> outputs;
    for (int64_t r = 0; r < ranks; ++r) {
      char* message = static_cast<char*>(messages.data) + r * bytes;
      outputs.push_back(Tensor(message, type, {t, n, d}));
      outputs.push_back(Tensor(message + lse_offset, kF32, {t, n}));
    }
    messages = Tensor(messages.data, DType::kU8, {ranks, bytes});
    Backend& be = in.backend();
    return PreparedCase{[=, &be] { be.pack_results(messages, values, lse, lse_offset); }, outputs};
  });
}

Tensor rope_table(Inputs& in, int d) {
  std::vector<float> values;
  for (int position = 0; position < 400; ++position) {
    for (int i = 0; i < d / 2; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * i / d);
      values.push_back(static_cast<float>(std::cos(angle)));
      values.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  Tensor t = in.backend().alloc(MemoryKind::kWorkspace, kF32, {400, d / 2, 2});
  in.put(t, values);
  return t;
}

void add_rope_cache(Cases& cases, DType compute, DType kept, RopeLayout layout, bool norms, bool rope) {
  const std::string what = fmt::format(" {} cache {}{}{}", short_name(compute), short_name(kept),
                                       layout == RopeLayout::kInterleaved ? " interleaved" : " halves",
                                       rope ? (norms ? " with norms" : "") : " without rotation");
  const std::vector<SequenceLengths> sequences{{0, 7}, {30, 1}, {5, 4}};
  const SequenceShard shard{2, 1, 4, 1};  // every other token is another rank's
  const float scale = kept == DType::kF8E4M3 ? 0.5f : 1.0f;
  const double tol = std::max(tolerance(compute), tolerance(kept));
  add_case(cases, "gqa_rope_cache" + what, tol, [=](Inputs& in) {
    int n_blocks = 0;
    auto batch = std::make_shared<BatchMeta>(make_batch(in, sequences, shard, &n_blocks));
    const int64_t t = batch->n_tokens, slots = int64_t{n_blocks} * shard.block_size;
    // q, k and v as a fused product leaves them: one row per token.
    const Tensor qkv = in.normals(compute, {t, (6 + 2 + 2) * 24});
    const Tensor q = qkv.columns(0, 144).split_last(6, 24), k = qkv.columns(144, 192).split_last(2, 24);
    const Tensor v = qkv.columns(192, 240).split_last(2, 24);
    const Tensor qn = norms ? in.normals(kF32, {24}, 0.2f, 1.0f) : Tensor{};
    const Tensor kn = norms ? in.normals(kF32, {24}, 0.2f, 1.0f) : Tensor{};
    RopeTable table{rope ? rope_table(in, 16) : Tensor{}, layout};  // 16 of the 24 lanes
    KvCache cache{in.zeros(kept, {slots, 2, 24}), in.zeros(kept, {slots, 2, 24}), scale};
    Backend& be = in.backend();
    return PreparedCase{[=, &be] { be.gqa_rope_cache(q, k, v, qn, kn, 1e-6f, table, cache, *batch); },
                        {qkv, cache.k, cache.v}};
  });
  add_case(cases, "mla_rope_cache" + what, tol, [=](Inputs& in) {
    int n_blocks = 0;
    auto batch = std::make_shared<BatchMeta>(make_batch(in, sequences, shard, &n_blocks));
    const int64_t t = batch->n_tokens, slots = int64_t{n_blocks} * shard.block_size;
    const Tensor q = in.normals(compute, {t, 3, 40}), wide = in.zeros(compute, {t, 3, 50});
    const Tensor kv_a = in.normals(compute, {t, 36 + 16 + 1}).columns(0, 52);
    const Tensor norm = in.normals(kF32, {36}, 0.2f, 1.0f);
    RopeTable table{rope ? rope_table(in, 16) : Tensor{}, layout};
    KvCache cache;
    cache.k = in.zeros(kept, {slots, 1, 52});
    cache.v = cache.k.columns(0, 36);
    cache.scale = scale;
    Backend& be = in.backend();
    const Tensor q_in = q.columns(24, 40), q_out = wide.columns(34, 50);
    return PreparedCase{[=, &be] { be.mla_rope_cache(q_out, q_in, kv_a, norm, 1e-6f, table, cache, *batch); },
                        {wide, kv_a, cache.k}};
  });
  add_case(cases, "mla_rope_cache in place" + what, tol, [=](Inputs& in) {  // the query's rotated lanes stay where they are
    int n_blocks = 0;
    auto batch = std::make_shared<BatchMeta>(make_batch(in, sequences, shard, &n_blocks));
    const Tensor q = in.normals(compute, {batch->n_tokens, 3, 40}), kv_a = in.normals(compute, {batch->n_tokens, 52});
    const Tensor norm = in.normals(kF32, {36}, 0.2f, 1.0f);
    RopeTable table{rope ? rope_table(in, 16) : Tensor{}, layout};
    KvCache cache;
    cache.k = in.zeros(kept, {int64_t{n_blocks} * shard.block_size, 1, 52});
    cache.scale = scale;
    Backend& be = in.backend();
    const Tensor lanes = q.columns(24, 40);
    return PreparedCase{[=, &be] { be.mla_rope_cache(lanes, lanes, kv_a, norm, 1e-6f, table, cache, *batch); },
                        {q, kv_a, cache.k}};
  });
}

// Queries and keys of one sequence as they meet in attention_rows.
struct Meeting {
  int q_len = 0, kv_len = 0;
};
struct RowsShape {
  int n_heads, dn, dr, dv;
  bool shared;  // one key and value for all heads, by a stride of 0
};

RowSpans make_spans(Inputs& in, const std::vector<Meeting>& meetings, bool causal) {
  std::vector<int32_t> q_start{0}, kv_start{0};
  RowSpans spans;
  for (const Meeting& m : meetings) {
    q_start.push_back(q_start.back() + m.q_len);
    kv_start.push_back(kv_start.back() + m.kv_len);
    spans.max_q_len = std::max(spans.max_q_len, m.q_len);
    spans.max_kv_len = std::max(spans.max_kv_len, m.kv_len);
  }
  spans.n_seqs = static_cast<int>(meetings.size());
  spans.q_start = in.ints(q_start);
  spans.kv_start = in.ints(kv_start);
  spans.causal = causal;
  return spans;
}

// Strides of every operand are those of a wider row, by chance.
void add_attention_rows(Cases& cases, const RowsShape& s, const std::vector<Meeting>& meetings, bool causal, DType type,
                        bool with_lse, const char* what) {
  std::string name = fmt::format("attention_rows {} {} heads {}+{}/{} {}{}{}{}", what, s.n_heads, s.dn, s.dr, s.dv, short_name(type),
                                 causal ? " causal" : "", s.shared ? " shared" : "", with_lse ? " lse" : "");
  add_case(cases, std::move(name), 4 * tolerance(type), [=](Inputs& in) {
    auto spans = std::make_shared<RowSpans>(make_spans(in, meetings, causal));
    int64_t t = 0, j = 0;
    double pairs = 0.0;
    for (const Meeting& m : meetings) {
      t += m.q_len;
      j += m.kv_len;
      pairs += static_cast<double>(m.q_len) * (causal ? m.kv_len - 0.5 * (m.q_len - 1) : m.kv_len);
    }
    const int64_t heads = s.shared ? 1 : s.n_heads, before = in.uniform(4), between = in.uniform(6), behind = in.uniform(5);
    const Tensor q = in.normals(type, {t, s.n_heads, s.dn + s.dr + behind}).columns(0, s.dn + s.dr);
    const Tensor kv = in.normals(type, {j, heads, before + s.dn + between + s.dv});
    const Tensor latent = in.normals(type, {j, before + s.dr + behind});
    Tensor k = kv.columns(before, before + s.dn), v = kv.columns(before + s.dn + between, before + s.dn + between + s.dv);
    if (s.shared) {
      k.shape[1] = v.shape[1] = s.n_heads;
      k.stride[1] = v.stride[1] = 0;
    }
    const Tensor k_rope = s.dr > 0 ? latent.columns(before, before + s.dr) : Tensor{};
    const Tensor y = in.poisoned(type, {t, s.n_heads, s.dv + between}).columns(0, s.dv);
    const Tensor lse = with_lse ? in.poisoned(kF32, {t, s.n_heads + behind}).columns(0, s.n_heads) : Tensor{};
    std::vector<Tensor> outputs{y};
    if (lse) outputs.push_back(lse);
    Backend& be = in.backend();
    return PreparedCase{[=, &be] { be.attention_rows(y, lse, q, k, k_rope, v, *spans, 0.2f); }, outputs,
                        2.0 * pairs * s.n_heads * (s.dn + s.dr + s.dv),
                        static_cast<double>(j * heads * (s.dn + s.dv) + j * s.dr) * size_of(type)};
  });
}

void add_gather_cache(Cases& cases, DType kept, DType rows_type, float scale) {
  add_case(cases, fmt::format("gather_cache {} as {} scale {}", short_name(kept), short_name(rows_type), scale), tolerance(rows_type),
           [=](Inputs& in) {
             const int64_t n = 29, heads = 2, d = 21, gap = in.uniform(5);
             KvCache cache;
             cache.k = in.normals(kept, {40, heads, d + 3}).columns(0, d);
             cache.scale = scale;
             std::vector<int32_t> slots;
             for (int i = 0; i < n; ++i) slots.push_back(in.uniform(40) - (i % 5 == 0 ? 40 : 0) < 0 ? -1 : in.uniform(40));
             const Tensor slot = in.ints(slots), rows = in.poisoned(rows_type, {n, heads, d + gap}).columns(0, d);
             Backend& be = in.backend();
             return PreparedCase{[=, &be] { be.gather_cache(rows, cache, slot); }, {rows}, 0.0,
                                 static_cast<double>(n * heads * d) * (size_of(kept) + size_of(rows_type))};
           });
}

void add_route(Cases& cases, int64_t t, int64_t e, const RouterSpec& spec, bool bias, const char* what) {
  add_case(cases, fmt::format("route {} {}x{}", what, t, e), 2e-5, [=](Inputs& in) {
    const Tensor logits = in.normals(kF32, {t, e}), b = bias ? in.normals(kF32, {e}, 0.3f) : Tensor{};
    const Tensor ids = in.poisoned(DType::kI32, {t, spec.top_k}), weights = in.poisoned(kF32, {t, spec.top_k});
    Backend& be = in.backend();
    return PreparedCase{[=, &be] { be.route(ids, weights, logits, b, spec); }, {ids, weights}};
  });
}

// `shared`: width of a gated network beside the experts, or 0.
void add_moe(Cases& cases, int64_t t, int64_t h, int64_t f, int e, int k, int first, int count, DType x_type,
             const WeightFormat& w_type, int slices, int64_t shared = 0) {
  add_case(cases,
           fmt::format("moe{} {} tokens {}x{} experts [{}, {}) of {} top {} {} {}{}", shared > 0 ? fmt::format(" shared {}", shared) : "", t, h, f,
                       first, first + count, e, k, short_name(x_type), short_name(w_type), slices > 1 ? " sliced" : ""),
           tolerance(x_type), [=](Inputs& in) {
             const Tensor id = in.choices(t, k, e);
             const Tensor weights = in.normals(kF32, {t, k}), x = in.normals(x_type, {t, h + (h % 64 == 0 ? 8 : 3)}).columns(0, h);
             const Tensor y = in.poisoned(kF32, {t, h});
             Backend& be = in.backend();
             auto w = std::make_shared<ExpertWeights>(be.make_experts(first, count, h, f, w_type, slices));
             for (int i = first; i < first + count; ++i) {
               const WeightMatrix gate = in.weight(w_type, {f, h}, 0.2f), up = in.weight(w_type, {f, h}, 0.2f);
               be.pack_expert(*w, i, gate, up, in.weight(w_type, {h, f}, 0.2f));
             }
             const double pairs = static_cast<double>(t * k) * count / e, active = std::min<double>(pairs, count);
             GatedWeights beside;
             if (shared > 0) {
               beside.gate_up = be.pack_linear(in.weight(w_type, {2 * shared, h}, 0.2f), {}, 1);
               beside.down = be.pack_linear(in.weight(w_type, {h, shared}, 0.2f), {}, slices);
             }
             const double elements = static_cast<double>(h * f), more = static_cast<double>(h * shared);
             return PreparedCase{[=, &be] { shared > 0 ? be.moe_with_shared(y, x, id, weights, *w, beside) : be.moe(y, x, id, weights, *w); }, {y},
                                 6.0 * (pairs * elements + static_cast<double>(t) * more),
                                 3.0 * (active * elements + more) * w_type.bytes()};
           });
  mark_host_only(cases, w_type);
}

}  // namespace

Cases conformance_cases() {
  Cases cases;
  for (const auto& [x, w] : {std::pair{kF32, kF32}, {kF32, kBF16}, {kBF16, kBF16}, {kBF16, kF32}}) {
    for (const int64_t t : {0, 1, 2, 5, 7, 13, 200}) add_linear(cases, t, 70, 37, x, w, x, 1, false, false);
    for (const int64_t n : {1, 15, 16, 17, 33, 64, 129}) add_linear(cases, 9, n, 64, x, w, kF32, 1, true, true);
    add_linear(cases, 9, 40, 1, x, w, x, 1, false, false);
    add_linear(cases, 11, 80, 48, x, w, kF32, 8, false, true);
    add_linear(cases, 11, 80, 40, x, w, kF32, 8, false, true);  // slices of 5: pairs do not line up
    add_linear(cases, 3, 80, 12, x, w, kF32, 4, true, false);
    for (const int64_t t : {0, 1, 19}) add_head_linear(cases, t, 3, 32, 48, x, w);
    add_head_linear(cases, 4, 5, 70, 33, x, w);
    add_head_linear(cases, 30, 5, 70, 33, x, w, true);
    add_linear_rows(cases, 600, 192, 384, x, w);
    add_linear_rows(cases, 600, 192, 600, x, w);
    add_linear_rows(cases, 600, 0, 600, x, w);
    add_head_linear(cases, 5, 3, 40, 24, x, w, false, true);
    for (const int64_t t : {0, 1, 40}) add_moe(cases, t, 70, 24, 8, 3, 0, 8, x, w, 1);
    add_moe(cases, 40, 64, 48, 8, 3, 2, 3, x, w, 8);
    add_moe(cases, 300, 40, 20, 6, 2, 0, 6, x, w, 4);
    for (const int64_t rows : {1, 3, 8, 13, 16, 17}) {  // up to 16 rows of wide enough weights have kernels of their own
      add_moe(cases, rows, 192, 64, 24, 6, 0, 24, x, w, 1);
      add_moe(cases, rows, 192, 64, 24, 6, 5, 9, x, w, 1, 128);
      add_moe(cases, rows, 256, 128, 8, 8, 0, 8, x, w, 1, 128);
    }
    add_moe(cases, 7, 128, 64, 8, 2, 0, 8, x, w, 1, 96);  // the shared width is no whole number of experts
  }
  for (const DType type : {DType::kF8E4M3, DType::kI8}) {
    const WeightFormat coarse(type, 128), fine(type, 16);
    for (const DType x : {kF32, kBF16}) {
      for (const int64_t t : {0, 1, 2, 3, 4, 5, 6, 7, 13, 200}) add_linear(cases, t, 70, 37, x, coarse, kF32, 1, false, false);
      for (const int64_t n : {1, 15, 16, 17, 33, 64, 129}) add_linear(cases, 9, n, 64, x, fine, kF32, 1, true, true);
      for (const int64_t k : {1, 2, 3, 127, 128, 129, 300}) add_linear(cases, 3, 40, k, x, coarse, kF32, 1, false, false);
      for (const int64_t t : {2, 60}) {
        add_linear(cases, t, 80, 8 * 150, x, coarse, kF32, 8, true, true);  // a slice's second group is short
        add_linear(cases, t, 80, 4 * 17, x, fine, x, 4, false, true);
      }
      add_linear_rows(cases, 600, 192, 384, x, coarse);
      for (const int64_t t : {0, 1, 40}) add_moe(cases, t, 70, 24, 8, 3, 0, 8, x, coarse, 1);
      add_moe(cases, 40, 150, 48, 8, 3, 2, 3, x, fine, 8);
      add_moe(cases, 300, 40, 20, 6, 2, 0, 6, x, coarse, 4);
    }
  }
  for (const DType t : {kF32, kBF16}) {
    for (const auto& [rows, h] : {std::pair{1, 192}, {3, 1}, {5, 17}, {50, 64}, {2, 333}}) add_rows(cases, rows, h, t);
    for (const DType kept : {t, DType::kF8E4M3}) {
      for (const RopeLayout layout : {RopeLayout::kHalfSplit, RopeLayout::kInterleaved}) {
        add_rope_cache(cases, t, kept, layout, true, true);
        add_rope_cache(cases, t, kept, layout, false, true);
      }
      add_rope_cache(cases, t, kept, RopeLayout::kHalfSplit, false, false);
    }
    const AttentionShape grouped{6, 2, 24, 40, false}, latent{8, 1, 80, 64, true}, odd{5, 5, 19, 7, false};
    const std::vector<SequenceLengths> mixed{{0, 70}, {200, 1}, {63, 2}, {64, 1}, {0, 1}, {130, 40}};
    for (const int stripes : {1, 8}) {
      for (const int run : {1, 4}) {
        for (const AttentionShape& shape : {grouped, latent, odd}) {
          add_attention(cases, shape, mixed, t, t, stripes, {1, run, 8, 0}, "mixed");
        }
        add_attention(cases, latent, mixed, t, t, stripes, {2, run, 8, 1}, "mixed");
        add_attention(cases, latent, mixed, t, t, stripes, {8, run, 4, 5}, "mixed");
      }
      if (stripes == 1) add_partials(cases, grouped, 3, stripes, t);
      add_attention(cases, grouped, mixed, t, DType::kF8E4M3, stripes, {1, 1, 16, 0}, "mixed");
      add_attention(cases, latent, mixed, t, DType::kF8E4M3, stripes, {4, 2, 16, 2}, "mixed");
      for (const int ranks : {1, 2, 8}) add_partials(cases, latent, ranks, stripes, t);
      add_partials(cases, odd, 4, stripes, t);
      add_attention(cases, latent, {}, t, t, stripes, {1, 1, 16, 0}, "empty");
      const AttentionShape absorbed{5, 1, 576, 512, true};  // DeepSeek's sizes, a few new tokens
      for (const DType kept : {t, DType::kF8E4M3}) {
        add_attention(cases, absorbed, {{70, 1}, {0, 1}, {130, 3}, {1, 2}}, t, kept, stripes, {2, 2, 16, 1}, "decode");
      }
      add_attention(cases, grouped, {{2500, 1}}, t, t, stripes, {1, 1, 16, 0}, "long");
      add_attention(cases, latent, {{1500, 30}, {0, 3}}, t, t, stripes, {1, 1, 16, 0}, "long");
    }
  }
  for (const DType t : {kF32, kBF16}) {
    for (const int ranks : {1, 2, 3, 8}) add_results(cases, ranks, 0, ranks, t, t);
    add_results(cases, 4, 2, 1, t, kF32);
    add_results(cases, 4, 0, 1, t, kF32);
    for (const int ranks : {1, 2, 3}) add_messages(cases, ranks, ranks == 3 ? 7 : 16, t);
  }
  for (const DType t : {kF32, kBF16}) {
    const RowsShape latent{3, 40, 24, 33, false}, plain{4, 19, 0, 7, false}, shared{5, 32, 0, 32, true};
    const std::vector<Meeting> fresh{{1, 1}, {150, 150}, {0, 0}, {7, 7}, {130, 300}, {0, 5}};
    const std::vector<Meeting> context{{3, 200}, {140, 0}, {2, 1}, {0, 9}, {65, 64}, {1, 129}};
    const std::vector<Meeting> short_of_keys{{5, 2}, {9, 0}, {200, 70}};  // the first queries see nothing
    for (const RowsShape& shape : {latent, plain, shared}) {
      for (const bool lse : {true, false}) {
        add_attention_rows(cases, shape, fresh, true, t, lse, "fresh");
        add_attention_rows(cases, shape, context, false, t, lse, "context");
      }
      add_attention_rows(cases, shape, short_of_keys, true, t, true, "short of keys");
      add_attention_rows(cases, shape, {}, true, t, true, "empty");
    }
    add_attention_rows(cases, {128, 128, 64, 128, false}, {{3, 70}}, false, t, true, "wide");
    add_gather_cache(cases, t, t, 1.0f);
    add_gather_cache(cases, t, t, 0.5f);
    add_gather_cache(cases, DType::kF8E4M3, t, 0.25f);
  }
  add_gather_cache(cases, kBF16, kF32, 1.0f);
  add_gather_cache(cases, DType::kF8E4M3, DType::kF8E4M3, 1.0f);
  RouterSpec v3{RouterScore::kSigmoid, GroupScore::kTopTwoSum, 4, 2, 4, true, 2.5f};
  RouterSpec v2{RouterScore::kSoftmax, GroupScore::kMax, 8, 3, 6, false, 16.0f};
  RouterSpec qwen{RouterScore::kSoftmax, GroupScore::kNone, 1, 1, 8, true, 1.0f};
  add_route(cases, 33, 16, v3, true, "v3");
  add_route(cases, 0, 16, v3, true, "v3");
  add_route(cases, 9, 160, v2, false, "v2");
  add_route(cases, 300, 128, qwen, false, "qwen");
  return cases;
}

Cases benchmark_cases() {
  Cases cases;
  for (const int64_t t : {1, 8, 64, 512}) {
    add_linear(cases, t, 2048, 2048, kF32, kBF16, kF32, 1, false, false);
    add_linear(cases, t, 2048, 2048, kBF16, kBF16, kBF16, 1, false, false);
    for (const DType type : {DType::kF8E4M3, DType::kI8}) {
      for (const DType x : {kF32, kBF16}) add_linear(cases, t, 2048, 2048, x, {type, 128}, x, 1, false, false);
    }
  }
  for (const WeightFormat& w : {WeightFormat(kBF16), WeightFormat(DType::kF8E4M3, 128), WeightFormat(DType::kI8, 128)}) {
    for (const DType x : {kF32, kBF16}) add_linear(cases, 1, 16384, 4096, x, w, x, 1, false, false);  // beyond the caches
  }
  for (const int64_t t : {1, 512}) {
    add_linear(cases, t, 2048, 2048, kF32, kF32, kF32, 1, false, false);
    add_linear(cases, t, 512, 192, kF32, kBF16, kF32, 1, false, false);
    add_linear(cases, t, 192, 256, kF32, kBF16, kF32, 8, false, false);
    add_head_linear(cases, t, 8, 64, 32, kF32, kBF16);
    add_moe(cases, t, 192, 48, 16, 4, 0, 16, kF32, kBF16, 1);
    add_moe(cases, t, 192, 48, 16, 4, 0, 16, kF32, kBF16, 8);
    for (const WeightFormat& w : {WeightFormat(kBF16), WeightFormat(DType::kF8E4M3, 128)}) add_moe(cases, t, 1024, 512, 32, 4, 0, 32, kBF16, w, 1);
    add_rows(cases, t, 1024, kF32);
  }
  const AttentionShape demo{8, 1, 80, 64, true}, half{4, 1, 80, 64, true}, mla{16, 1, 576, 512, true};
  for (const int stripes : {1, 8}) {
    add_attention(cases, demo, {{0, 512}}, kF32, kF32, stripes, {1, 1, 16, 0}, "prefill");
    add_attention(cases, demo, {{4096, 512}}, kF32, kF32, stripes, {1, 1, 16, 0}, "chunk");
    add_attention(cases, half, {{4096, 512}}, kF32, kF32, stripes, {1, 1, 16, 0}, "chunk");
    add_attention(cases, demo, {{4096, 1}}, kF32, kF32, stripes, {1, 1, 16, 0}, "decode");
    add_attention(cases, mla, {{0, 512}}, kBF16, kBF16, stripes, {1, 1, 64, 0}, "prefill");
    add_attention(cases, mla, {{8192, 1}}, kBF16, kBF16, stripes, {1, 1, 64, 0}, "decode");
  }
  const RowsShape demo_rows{8, 32, 16, 32, false}, expanded{16, 128, 64, 128, false};
  add_attention_rows(cases, demo_rows, {{512, 512}}, true, kF32, true, "fresh");
  add_attention_rows(cases, demo_rows, {{512, 4096}}, false, kF32, true, "context");
  add_attention_rows(cases, expanded, {{512, 512}}, true, kBF16, true, "fresh");
  add_attention_rows(cases, expanded, {{512, 4096}}, false, kBF16, true, "context");
  return cases;
}

}  // namespace braid
