// The cpu backend against itself, bit for bit: a row's result must not depend on its batch, on chunking, threads or
// paging, nor, in the reproducible forms, on how the work is spread over ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <tuple>

#include "ops/conformance_cases.h"
#include "ops/element.h"

namespace braid {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;

std::string bits_of(Backend& backend, const Tensor& x) {
  std::string bytes(static_cast<size_t>(x.n_bytes()), '\0');
  backend.download(bytes.data(), x);
  return bytes;
}

class CpuBits : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend(int threads) const { return make_cpu_backend({threads, GetParam()}); }
};
INSTANTIATE_TEST_SUITE_P(EveryLevel, CpuBits, testing::ValuesIn(cpu_levels()),
                         [](const auto& level) { return level.param; });

struct Types {
  DType x;
  WeightFormat w;
};
constexpr WeightFormat kFine(DType::kF8E4M3, 16), kCoarse(DType::kI8, 128);
constexpr Types kTypes[] = {{kF32, kF32},  {kF32, kBF16},  {kBF16, kBF16},  {kBF16, kF32},
                            {kF32, kFine}, {kBF16, kFine}, {kF32, kCoarse}, {kBF16, kCoarse}};

// Calls f(begin, end) over [0, n) in pieces of uneven sizes.
template <typename F>
void in_pieces(Inputs& in, int n, const F& f) {
  for (int begin = 0; begin < n;) {
    const int end = std::min(n, begin + 1 + in.uniform(in.uniform(2) ? 5 : 60));
    f(begin, end);
    begin = end;
  }
}

// Sums of ranks as comm adds them: ((0+1)+(2+3))+...; into parts[0].
void add_in_tree(Backend& backend, std::vector<Tensor>& parts) {
  for (size_t step = 1; step < parts.size(); step *= 2) {
    for (size_t i = 0; i + step < parts.size(); i += 2 * step) backend.add(parts[i], parts[i + step]);
  }
}

TEST_P(CpuBits, LinearRowsDoNotDependOnTheirBatch) {
  const auto one = backend(1), three = backend(3);
  for (const Types& type : kTypes) {
    for (const int slices : {1, 8}) {
      Inputs in(*one, 1);
      const int t = 150;
      const int64_t n = 90, k = 8 * 13;
      const Tensor x = in.normals(type.x, {t, k}), w = in.weight(type.w, {n, k}).values;
      const Tensor whole = in.poisoned(kF32, {t, n}), pieces = in.poisoned(kF32, {t, n});
      const Tensor bias = in.normals(kF32, {n});
      one->linear(whole, x, one->pack_linear({w, type.w}, bias, slices));
      const LinearWeight packed =
          three->pack_linear({w, type.w}, bias, slices);  // host memory: one backend reads the other's
      in_pieces(in, t, [&](int b, int e) { three->linear(pieces.rows(b, e), x.rows(b, e), packed); });
      EXPECT_EQ(bits_of(*one, whole), bits_of(*three, pieces)) << slices << " slices";
    }
  }
}

TEST_P(CpuBits, LinearColumnsDoNotDependOnTheirShard) {
  const auto cpu = backend(1);
  for (const Types& type : kTypes) {
    Inputs in(*cpu, 3);
    const int64_t t = 7, n = 88, k = 50;
    const Tensor x = in.normals(type.x, {t, k}), w = in.weight(type.w, {n, k}).values,
                 whole = in.poisoned(kF32, {t, n});
    cpu->linear(whole, x, cpu->pack_linear({w, type.w}, {}));
    for (const int64_t ranks : {2, 4, 8}) {
      const Tensor sharded = in.poisoned(kF32, {t, n});
      for (int64_t r = 0; r < ranks; ++r) {
        const int64_t b = r * n / ranks, e = (r + 1) * n / ranks;
        cpu->linear(sharded.columns(b, e), x, cpu->pack_linear({w.rows(b, e), type.w}, {}));
      }
      EXPECT_EQ(bits_of(*cpu, whole), bits_of(*cpu, sharded)) << ranks << " ranks";
    }
  }
}

TEST_P(CpuBits, LinearSlicesAddUpToTheWhole) {
  const auto cpu = backend(1);
  for (const Types& type : kTypes) {
    for (const int64_t slice : {1, 6, 13}) {
      Inputs in(*cpu, 4);
      const int64_t t = 9, n = 70, k = 8 * slice;
      const Tensor x = in.normals(type.x, {t, k}), w = in.weight(type.w, {n, k}).values,
                   whole = in.poisoned(kF32, {t, n});
      cpu->linear(whole, x, cpu->pack_linear({w, type.w}, {}, 8));
      for (const int ranks : {1, 2, 4, 8}) {
        std::vector<Tensor> parts;
        for (int r = 0; r < ranks; ++r) {
          const int64_t b = r * k / ranks, e = (r + 1) * k / ranks;
          parts.push_back(in.poisoned(kF32, {t, n}));
          cpu->linear(parts.back(), x.columns(b, e), cpu->pack_linear({w.columns(b, e), type.w}, {}, 8 / ranks));
        }
        add_in_tree(*cpu, parts);
        EXPECT_EQ(bits_of(*cpu, whole), bits_of(*cpu, parts[0])) << ranks << " ranks, slices of " << slice;
      }
    }
  }
}

// Few rows take the codes straight into registers, many by way of a widened copy: both with the number that each stands
// for.
TEST_P(CpuBits, EveryEightBitCodeIsItsNumber) {
  const auto cpu = backend(1);
  for (const DType type : {DType::kF8E4M3, DType::kI8}) {
    for (const DType x_type : {kF32, kBF16}) {
      Inputs in(*cpu, 6);
      const Tensor codes = in.zeros(type, {256, 1}), scales = in.zeros(kF32, {256, 1});
      std::vector<float> want;
      for (int i = 0; i < 256; ++i) {
        static_cast<uint8_t*>(codes.data)[i] = static_cast<uint8_t>(type == DType::kI8 && i == 0x80 ? 0x81 : i);
        scales.as<float>()[i] = 0.5f * static_cast<float>(1 + i);
        want.push_back(load_element(codes, i) * scales.as<float>()[i]);
      }
      const LinearWeight w = cpu->pack_linear({codes, scales, {type, 128}}, {});
      for (const int64_t t : {1, 4, 5, 13}) {
        const Tensor x = in.normals(x_type, {t, 1}, 0.0f, 1.0f), y = in.poisoned(kF32, {t, 256});
        cpu->linear(y, x, w);
        for (int64_t r = 0; r < t; ++r) {
          for (int i = 0; i < 256; ++i) {
            const float expected = want[static_cast<size_t>(i)], got = y.row<float>(r)[i];
            ASSERT_TRUE(std::isnan(expected) ? std::isnan(got) : got == expected)
                << name_of(type) << " " << i << ": " << got;
          }
        }
      }
    }
  }
}

// A mixture of 6 experts, 2 per row, of which this rank holds [0, 6) with intermediate columns [f_begin, f_end).
struct Mixture {
  static constexpr int kExperts = 6, kTopK = 2;
  static constexpr int64_t kTokens = 140, kHidden = 40, kFfn = 48;

  Mixture(Backend& backend, const Types& type) : in(backend, 5), types(type) {
    std::vector<int32_t> values;
    for (int64_t t = 0; t < kTokens; ++t) {
      const int first = in.uniform(kExperts - 1);
      values.push_back(first);
      values.push_back(first + 1 + in.uniform(kExperts - 1 - first));
    }
    ids = in.ints(values).view({kTokens, kTopK});
    weights = in.normals(kF32, {kTokens, kTopK});
    x = in.normals(type.x, {kTokens, kHidden});
    for (int e = 0; e < kExperts; ++e) {
      gate.push_back(in.weight(type.w, {kFfn, kHidden}, 0.3f).values);
      up.push_back(in.weight(type.w, {kFfn, kHidden}, 0.3f).values);
      down.push_back(in.weight(type.w, {kHidden, kFfn}, 0.3f).values);
    }
  }

  ExpertWeights pack(Backend& backend, int64_t begin, int64_t end, int slices) const {
    ExpertWeights w = backend.make_experts(0, kExperts, kHidden, end - begin, types.w, slices);
    for (int e = 0; e < kExperts; ++e) {
      const auto i = static_cast<size_t>(e);
      backend.pack_expert(w, e, {gate[i].rows(begin, end), types.w}, {up[i].rows(begin, end), types.w},
                          {down[i].columns(begin, end), types.w});
    }
    return w;
  }

  Inputs in;
  Types types;
  Tensor ids, weights, x;
  std::vector<Tensor> gate, up, down;
};

TEST_P(CpuBits, MixtureRowsDoNotDependOnTheirBatch) {
  const auto one = backend(1), three = backend(3);
  for (const Types& type : kTypes) {
    for (const int slices : {1, 8}) {
      Mixture m(*one, type);
      const Tensor whole = m.in.poisoned(kF32, {m.kTokens, m.kHidden}),
                   pieces = m.in.poisoned(kF32, {m.kTokens, m.kHidden});
      one->moe(whole, m.x, m.ids, m.weights, m.pack(*one, 0, m.kFfn, slices));
      const ExpertWeights packed = m.pack(*three, 0, m.kFfn, slices);
      in_pieces(m.in, m.kTokens, [&](int b, int e) {
        three->moe(pieces.rows(b, e), m.x.rows(b, e), m.ids.rows(b, e), m.weights.rows(b, e), packed);
      });
      EXPECT_EQ(bits_of(*one, whole), bits_of(*one, pieces)) << slices << " slices";
    }
  }
}

TEST_P(CpuBits, MixtureSlicesAddUpToTheWhole) {
  const auto cpu = backend(1);
  for (const Types& type : kTypes) {
    Mixture m(*cpu, type);
    const Tensor whole = m.in.poisoned(kF32, {m.kTokens, m.kHidden});
    cpu->moe(whole, m.x, m.ids, m.weights, m.pack(*cpu, 0, m.kFfn, 8));
    for (const int ranks : {1, 2, 4, 8}) {
      std::vector<Tensor> parts;
      for (int r = 0; r < ranks; ++r) {
        parts.push_back(m.in.poisoned(kF32, {m.kTokens, m.kHidden}));
        const ExpertWeights w = m.pack(*cpu, r * m.kFfn / ranks, (r + 1) * m.kFfn / ranks, 8 / ranks);
        cpu->moe(parts.back(), m.x, m.ids, m.weights, w);
      }
      add_in_tree(*cpu, parts);
      EXPECT_EQ(bits_of(*cpu, whole), bits_of(*cpu, parts[0])) << ranks << " ranks";
    }
  }
}

// Attention over sequences that are known by a number, so that one row can be met in many batches.
struct Piece {
  int id = 0, context = 0, fresh = 1;
};
struct Setting {
  int threads = 1, ranks = 1, interleave = 1, block_size = 16, n_stripes = 8;
  int first_head = 0, n_heads = 4;
  DType compute = kF32;
  int nan_from = 1 << 30;  // keys and values from this position on are NaN
};
using RowKey = std::tuple<int, int, int>;  // sequence, position, head

class AttentionRows {
 public:
  static constexpr int kDk = 24, kDv = 20;

  AttentionRows(std::unique_ptr<Backend> backend, const Setting& s) : backend_(std::move(backend)), s_(s) {}

  // The bits of every row, with its lse.
  std::map<RowKey, std::string> operator()(const std::vector<Piece>& runs) {
    Inputs in(*backend_, 9);
    std::vector<float> queries;
    std::vector<RowKey> keys;
    for (const Piece& run : runs) {
      for (int p = run.context; p < run.context + run.fresh; ++p) {
        for (int h = s_.first_head; h < s_.first_head + s_.n_heads; ++h) {
          keys.emplace_back(run.id, p, h);
          for (int i = 0; i < kDk; ++i) queries.push_back(number(1, run.id, p, h * kDk + i));
        }
      }
    }
    const int64_t t = static_cast<int64_t>(keys.size()) / s_.n_heads, n = s_.n_heads;
    const Tensor q = backend_->alloc(MemoryKind::kWorkspace, s_.compute, {t, n, kDk});
    in.put(q, queries);
    const Tensor y = in.poisoned(s_.compute, {t, n, kDv}), lse = in.poisoned(kF32, {t, n});
    const Tensor sums = in.poisoned(kF32, {s_.ranks, t, n, kDv}), weights = in.poisoned(kF32, {s_.ranks, t, n});
    const Tensor ks = in.poisoned(kF32, {s_.ranks, t, n});
    for (int r = 0; r < s_.ranks; ++r) {
      std::vector<SequenceLengths> lengths;
      for (const Piece& run : runs) lengths.push_back({run.context, run.fresh});
      int n_blocks = 0;
      const BatchMeta batch = make_batch(in, lengths, {s_.ranks, s_.interleave, s_.block_size, r}, &n_blocks);
      const KvCache cache = fill_cache(in, runs, batch, n_blocks);
      if (s_.ranks == 1) {
        backend_->attention(y, lse, q, cache, {0.3f, s_.n_stripes}, batch);
      } else {
        backend_->attention_partial(sums.rows(r, r + 1).view({t, n, kDv}), weights.rows(r, r + 1).view({t, n}),
                                    ks.rows(r, r + 1).view({t, n}), q, cache, {0.3f, s_.n_stripes}, batch);
      }
    }
    if (s_.ranks > 1) backend_->merge_partials(y, lse, sums, weights, ks, 1.0f);
    std::map<RowKey, std::string> rows;
    const std::string values = bits_of(*backend_, y), lses = bits_of(*backend_, lse);
    const auto width = static_cast<size_t>(kDv * size_of(s_.compute));
    for (size_t i = 0; i < keys.size(); ++i) rows[keys[i]] = values.substr(i * width, width) + lses.substr(i * 4, 4);
    return rows;
  }

 private:
  static float number(uint32_t what, int id, int position, int lane) {
    uint32_t h = what * 2654435761u ^ static_cast<uint32_t>(id) * 40503u;
    for (const int v : {position, lane}) {
      h = (h ^ static_cast<uint32_t>(v)) * 2246822519u;
      h ^= h >> 15;
    }
    h *= 3266489917u;
    h ^= h >> 16;
    return static_cast<float>(h) / 2147483648.0f - 1.0f;
  }

  KvCache fill_cache(Inputs& in, const std::vector<Piece>& runs, const BatchMeta& batch, int n_blocks) {
    const int64_t slots = int64_t{n_blocks} * s_.block_size;
    std::vector<float> rows(static_cast<size_t>(slots * kDk), std::nanf(""));
    for (size_t s = 0; s < runs.size(); ++s) {
      for (int p = 0; p < runs[s].context + runs[s].fresh; ++p) {
        const TokenPos position(p);
        if (!batch.shard.owns(position)) continue;
        const int32_t block =
            batch.block_table.row<int32_t>(static_cast<int64_t>(s))[batch.shard.table_column(position)];
        const int64_t slot = batch.shard.slot(BlockId(block), batch.shard.local(position)).value;
        for (int i = 0; i < kDk; ++i) {
          rows[static_cast<size_t>(slot * kDk + i)] = p < s_.nan_from ? number(2, runs[s].id, p, i) : std::nanf("");
        }
      }
    }
    KvCache cache;
    cache.k = in.backend().alloc(MemoryKind::kCache, s_.compute, {slots, 1, kDk});
    in.put(cache.k, rows);
    cache.v = cache.k.columns(0, kDv);
    return cache;
  }

  std::unique_ptr<Backend> backend_;
  Setting s_;
};

class AttentionBits : public CpuBits {
 protected:
  // Every row of `part` has the bits that it has in `whole`.
  static void expect_within(const std::map<RowKey, std::string>& whole, const std::map<RowKey, std::string>& part) {
    ASSERT_FALSE(part.empty());
    int different = 0;
    for (const auto& [key, bits] : part) {
      ASSERT_TRUE(whole.contains(key));
      different += whole.at(key) != bits;
    }
    EXPECT_EQ(different, 0) << "of " << part.size() << " rows";
  }
  std::map<RowKey, std::string> rows(const Setting& s, const std::vector<Piece>& runs) const {
    return AttentionRows(backend(s.threads), s)(runs);
  }
};
INSTANTIATE_TEST_SUITE_P(EveryLevel, AttentionBits, testing::ValuesIn(cpu_levels()),
                         [](const auto& level) { return level.param; });

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const DType compute : {kF32, kBF16}) {
    for (const int stripes : {1, 8}) {
      for (const int run : {1, 4}) all.push_back({.interleave = run, .n_stripes = stripes, .compute = compute});
    }
  }
  all.push_back({.n_heads = 16, .compute = kBF16});  // a token's heads may lie in lanes
  return all;
}

TEST_P(AttentionBits, RowsDoNotDependOnBatchChunksThreadsOrPaging) {
  for (const Setting& base : settings()) {
    const auto whole = rows(base, {{0, 0, 300}, {1, 150, 80}, {2, 40, 1}});
    expect_within(whole, rows(base, {{1, 150, 80}}));
    expect_within(whole, rows(base, {{2, 40, 1}, {0, 299, 1}}));
    expect_within(whole, rows(base, {{0, 64, 1}, {0, 63, 1}, {0, 0, 1}}));
    for (int p = 0; p < 300; p += 37) expect_within(whole, rows(base, {{0, p, std::min(37, 300 - p)}}));
    Setting threads = base;
    threads.threads = 3;
    expect_within(whole, rows(threads, {{0, 0, 300}, {1, 150, 80}, {2, 40, 1}}));
    expect_within(whole, rows(threads, {{0, 256, 44}}));
    Setting paging = base;
    paging.block_size = 4;
    expect_within(whole, rows(paging, {{2, 40, 1}, {0, 100, 200}}));
    Setting heads = base;
    heads.first_head = 1;
    heads.n_heads = 2;
    expect_within(whole, rows(heads, {{0, 200, 100}, {1, 229, 1}}));
  }
}

TEST_P(AttentionBits, LaterKeysDoNotReachARow) {
  for (const Setting& base : settings()) {
    const auto whole = rows(base, {{0, 0, 200}});
    Setting poisoned = base;
    poisoned.nan_from = 130;
    auto seen = rows(poisoned, {{0, 0, 200}});
    std::erase_if(seen, [](const auto& row) { return std::get<1>(row.first) >= 130; });
    expect_within(whole, seen);
  }
}

TEST_P(AttentionBits, SegmentsOfLongSequencesDoNotDependOnThreads) {
  for (const int stripes : {1, 8}) {
    const Setting base{.n_stripes = stripes, .n_heads = 1};
    Setting threads = base;
    threads.threads = 3;
    const auto whole = rows(base, {{0, 9000, 40}});
    expect_within(whole, rows(threads, {{0, 9000, 40}}));
    expect_within(whole, rows(threads, {{0, 9020, 1}}));
    expect_within(whole, rows(base, {{0, 9039, 1}}));
  }
}

TEST_P(AttentionBits, RanksOfAContextParallelGroupAddUpToTheWhole) {
  for (const Setting& base : settings()) {
    if (base.n_stripes == 1) continue;
    const std::vector<Piece> runs{{0, 0, 90}, {1, 200, 3}, {2, 3, 1}};
    const auto whole = rows(base, runs);
    for (const int ranks : {2, 4, 8}) {
      Setting spread = base;
      spread.ranks = ranks;
      expect_within(whole, rows(spread, runs));
    }
  }
}

// Causal attention over rows: queries [begin, end) of a sequence against its first `end` keys, row by row.
std::string row_attention(Backend& backend, Inputs& in, const Tensor& q, const Tensor& k, const Tensor& k_rope,
                          const Tensor& v, int begin, int end) {
  const Tensor y = in.poisoned(q.dtype, {end - begin, v.dim(1), v.dim(2)});
  RowSpans spans{1, end - begin, end, in.ints({0, end - begin}), in.ints({0, end}), true};
  backend.attention_rows(y, {}, q.rows(begin, end), k.rows(0, end), k_rope.rows(0, end), v.rows(0, end), spans, 0.3f);
  return bits_of(backend, y);
}

TEST_P(CpuBits, AttentionOverRowsDoesNotDependOnItsBatchOrOnLaterKeys) {
  const auto one = backend(1), three = backend(3);
  for (const DType type : {kF32, kBF16}) {
    Inputs in(*one, 11);
    const int n = 700, heads = 2, poisoned_from = 333;
    const Tensor q = in.normals(type, {n, heads, 32}), k = in.normals(type, {n, heads, 24});
    const Tensor k_rope = in.normals(type, {n, 8}), v = in.normals(type, {n, heads, 20});
    const std::string whole = row_attention(*one, in, q, k, k_rope, v, 0, n);
    std::string pieces;
    in_pieces(in, n, [&](int b, int e) { pieces += row_attention(*three, in, q, k, k_rope, v, b, e); });
    EXPECT_EQ(whole, pieces);
    const std::vector<float> nan(static_cast<size_t>((n - poisoned_from) * heads * 24), std::nanf(""));
    in.put(k.rows(poisoned_from, n), nan);
    in.put(v.rows(poisoned_from, n),
           std::vector<float>(static_cast<size_t>((n - poisoned_from) * heads * 20), std::nanf("")));
    const size_t kept = whole.size() / n * poisoned_from;
    EXPECT_EQ(whole.substr(0, kept), row_attention(*one, in, q, k, k_rope, v, 0, n).substr(0, kept));
  }
}

// The checks above can fail: without slices the order of addition shows.
TEST_P(CpuBits, WithoutSlicesRanksWouldDiffer) {
  const auto cpu = backend(1);
  Inputs in(*cpu, 4);
  const int64_t t = 9, n = 70, k = 104;
  const Tensor x = in.normals(kF32, {t, k}), w = in.normals(kF32, {n, k}), whole = in.poisoned(kF32, {t, n});
  cpu->linear(whole, x, cpu->pack_linear(w, {}, 1));
  std::vector<Tensor> parts;
  for (int r = 0; r < 2; ++r) {
    parts.push_back(in.poisoned(kF32, {t, n}));
    cpu->linear(parts.back(), x.columns(r * 52, r * 52 + 52), cpu->pack_linear(w.columns(r * 52, r * 52 + 52), {}, 1));
  }
  add_in_tree(*cpu, parts);
  EXPECT_NE(bits_of(*cpu, whole), bits_of(*cpu, parts[0]));
}

}  // namespace
}  // namespace braid
