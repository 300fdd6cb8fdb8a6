// What the conformance list does not ask of a GPU: sampling like the host's, and the promises of the reproducible mode.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "ops/conformance_cases.h"

namespace braid {
namespace {

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU is usable here";
  }
};

std::vector<uint8_t> bytes_of(Backend& backend, const Tensor& x) {
  std::vector<uint8_t> bytes(static_cast<size_t>(x.n_bytes()));
  backend.download(bytes.data(), x);
  return bytes;
}

TEST_F(Cuda, ADeviceThatIsNotThereIsTheUsersFault) {
  EXPECT_THROW(make_cuda_backend({cuda_device_count(), false}), std::runtime_error);
}

TEST_F(Cuda, ScratchIsReusedAndCounted) {
  const std::unique_ptr<Backend> cuda = make_cuda_backend({});
  cuda->begin_step();
  const Tensor a = cuda->scratch(DType::kF32, {100});
  void* inner = nullptr;
  {
    const ScratchScope scope(*cuda);
    inner = cuda->scratch(DType::kF32, {int64_t{50} << 20}).data;
  }
  EXPECT_EQ(cuda->scratch(DType::kF32, {10}).data, inner);
  EXPECT_EQ(cuda->bytes(MemoryKind::kScratch), 400 + (int64_t{200} << 20));
  cuda->begin_step();
  EXPECT_EQ(cuda->scratch(DType::kF32, {1}).data, a.data);
}

TEST_F(Cuda, SamplesAsTheHostDoes) {
  const std::unique_ptr<Backend> cuda = make_cuda_backend({});
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  int drawn = 0;
  for (const int vocabulary : {5, 1000, 32768, 102400}) {
    std::vector<int32_t> prompt(20), generated(30), banned{1, 3};
    for (int32_t& id : prompt) id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary));
    for (int32_t& id : generated) id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary));
    const std::vector<std::pair<int32_t, float>> bias{{0, 2.0f}, {2, -3.0f}, {4, 100.0f}};
    std::vector<uint32_t> allowed(static_cast<size_t>(vocabulary + 31) / 32);
    for (uint32_t& word : allowed) word = static_cast<uint32_t>(random());
    allowed[0] |= 1u;
    std::vector<SamplingRow> rows(48);
    for (size_t i = 0; i < rows.size(); ++i) {
      SamplingRow& r = rows[i];
      r.temperature = i % 6 == 0 ? 0.0f : 0.25f * static_cast<float>(i % 6);
      r.top_k = i % 4 == 1 ? 3 : i % 4 == 2 ? 500 : 0;
      r.top_p = i % 3 == 1 ? 0.9f : i % 3 == 2 ? 0.05f : 1.0f;
      r.min_p = i % 5 == 4 ? 0.1f : 0.0f;
      r.seed = 1000 + i;
      r.position = static_cast<int64_t>(i) << 33;
      if (i % 7 == 3) r.repetition_penalty = 1.3f, r.presence_penalty = 0.5f, r.frequency_penalty = 0.1f;
      r.prompt = prompt;
      r.generated = generated;
      if (i % 7 == 4) r.logit_bias = bias;
      if (i % 7 == 5) r.banned = banned;
      if (i % 7 == 6) r.allowed = allowed;
      r.n_top_logprobs = i % 2 ? 0 : static_cast<int>(i % 8);
    }
    const auto n = static_cast<int64_t>(rows.size());
    std::vector<float> logits(rows.size() * static_cast<size_t>(vocabulary));
    for (float& x : logits) x = 3.0f * normal(random);
    for (int i = 0; i < vocabulary; ++i) {
      logits[static_cast<size_t>(8 * vocabulary + i)] = static_cast<float>(i % 7);  // many ties
      logits[static_cast<size_t>(9 * vocabulary + i)] = 1.0f;
    }
    logits[static_cast<size_t>(10 * vocabulary + 2)] = std::nanf("");
    for (int i = 0; i < vocabulary; ++i) logits[static_cast<size_t>(11 * vocabulary + i)] = -INFINITY;
    logits[static_cast<size_t>(12 * vocabulary + 1)] = INFINITY;

    const std::unique_ptr<Backend> host = make_reference_backend();
    std::vector<SampleResult> want(rows.size()), got(rows.size());
    Tensor on_host = host->alloc(MemoryKind::kWorkspace, DType::kF32, {n, vocabulary});
    Tensor on_gpu = cuda->alloc(MemoryKind::kWorkspace, DType::kF32, {n, vocabulary});
    host->upload(on_host, logits.data());
    cuda->upload(on_gpu, logits.data());
    host->sample(want, on_host, rows);
    cuda->begin_step();
    cuda->sample(got, on_gpu, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "row " << i << " of " << vocabulary << " logits");
      EXPECT_EQ(got[i].bad, want[i].bad);
      EXPECT_EQ(got[i].token, want[i].token);
      EXPECT_NEAR(got[i].logprob, want[i].logprob, 1e-5);
      ASSERT_EQ(got[i].top.size(), want[i].top.size());
      for (size_t j = 0; j < got[i].top.size(); ++j) {
        EXPECT_EQ(got[i].top[j].first, want[i].top[j].first);
        EXPECT_NEAR(got[i].top[j].second, want[i].top[j].second, 1e-5);
      }
      drawn += !want[i].bad;
    }
  }
  EXPECT_GT(drawn, 150);
}

// A row's bits do not depend on how many rows there are.
TEST_F(Cuda, ReproducibleProductsKeepARowsBits) {
  const std::unique_ptr<Backend> cuda = make_cuda_backend({0, true});
  for (const DType type : {DType::kBF16, DType::kF32}) {
    for (const int slices : {1, 8}) {
      Inputs in(*cuda, 3);
      const Tensor x = in.normals(type, {300, 512});
      const LinearWeight w = cuda->pack_linear(in.normals(type, {200, 512}, 0.1f), {}, slices);
      const Tensor y = in.poisoned(DType::kF32, {300, 200});
      cuda->linear(y, x, w);
      for (const int64_t rows : {1, 2, 16, 17, 64, 65}) {
        const Tensor some = in.poisoned(DType::kF32, {rows, 200});
        cuda->linear(some, x.rows(100, 100 + rows), w);
        EXPECT_EQ(bytes_of(*cuda, some), bytes_of(*cuda, y.rows(100, 100 + rows))) << rows << " rows";
      }
    }
  }
}

// Nor on its batch, on the chunk it was computed in, or on how many ranks hold the keys.
TEST_F(Cuda, ReproducibleAttentionKeepsARowsBits) {
  const std::unique_ptr<Backend> cuda = make_cuda_backend({0, true});
  constexpr int kHeads = 16, kDk = 96, kDv = 64;
  const AttentionSpec spec{0.1f, 8};
  for (const DType compute : {DType::kBF16, DType::kF32}) {
    for (const DType kept : {compute, DType::kF8E4M3}) {
      auto run = [&](const std::vector<SequenceLengths>& sequences, int ranks, int last_rows) {
        Inputs in(*cuda, 5);
        int n_blocks = 0;
        int64_t t = 0;
        for (const SequenceLengths& s : sequences) t += s.fresh;
        std::vector<float> q(static_cast<size_t>(t * kHeads * kDk));  // queries depend on the row from the end only
        std::mt19937 random(9);
        std::normal_distribution<float> normal;
        for (size_t i = q.size(); i-- > 0;) q[i] = normal(random);
        const Tensor queries = cuda->alloc(MemoryKind::kWorkspace, compute, {t, kHeads, kDk});
        in.put(queries, q);
        const Tensor sums = in.poisoned(DType::kF32, {ranks, t, kHeads, kDv});
        const Tensor weights = in.poisoned(DType::kF32, {ranks, t, kHeads}), ks = in.poisoned(DType::kF32, {ranks, t, kHeads});
        const Tensor y = in.poisoned(compute, {t, kHeads, kDv});
        for (int r = 0; r < ranks; ++r) {
          const BatchMeta batch = make_batch(in, sequences, {ranks, 2, 4, r}, &n_blocks);
          const KvCache cache = make_cache(in, kept, batch, n_blocks, 1, kDk, kDv, true);
          if (ranks == 1) {
            cuda->attention(y, {}, queries, cache, spec, batch);
          } else {
            cuda->attention_partial(sums.rows(r, r + 1).view({t, kHeads, kDv}), weights.rows(r, r + 1).view({t, kHeads}),
                                    ks.rows(r, r + 1).view({t, kHeads}), queries, cache, spec, batch);
          }
        }
        if (ranks > 1) cuda->merge_partials(y, {}, sums, weights, ks, 1.0f);
        return bytes_of(*cuda, y.rows(t - last_rows, t));
      };
      // make_cache() gives the first sequence the same rows each time.
      const auto alone = run({{699, 1}}, 1, 1);
      EXPECT_EQ(alone, run({{620, 80}}, 1, 1));
      EXPECT_EQ(alone, run({{0, 700}}, 1, 1));
      for (const int ranks : {2, 4, 8}) {
        EXPECT_EQ(alone, run({{699, 1}}, ranks, 1)) << ranks << " ranks";
        EXPECT_EQ(alone, run({{650, 50}}, ranks, 1)) << ranks << " ranks";
      }
    }
  }
}

// Shapes of real models, where tiles are full.
TEST_F(Cuda, RealHeadSizesEqualTheReference) {
  struct Case {
    int heads, kv_heads, dk, dv;
    bool latent;
    DType compute, kept;
    std::vector<SequenceLengths> sequences;
  };
  constexpr DType kBF16 = DType::kBF16, kF8 = DType::kF8E4M3, kF32 = DType::kF32;
  for (const Case& c : {Case{16, 1, 576, 512, true, kBF16, kBF16, {{900, 1}, {40, 2}}},
                        Case{128, 1, 576, 512, true, kBF16, kF8, {{130, 1}}},
                        Case{16, 1, 576, 512, true, kF32, kF32, {{200, 2}}},
                        Case{16, 1, 576, 512, true, kF32, kF8, {{100, 1}}},
                        Case{32, 8, 128, 128, false, kBF16, kBF16, {{500, 1}, {0, 60}}},
                        Case{32, 8, 128, 128, false, kBF16, kF8, {{300, 2}}},
                        Case{8, 8, 256, 256, false, kF32, kF32, {{70, 3}}}}) {
    const std::unique_ptr<Backend> cuda = make_cuda_backend({}), reference = make_reference_backend();
    std::vector<float> results[2];
    for (Backend* backend : {reference.get(), cuda.get()}) {
      Inputs in(*backend, 11);
      int n_blocks = 0;
      backend->begin_step();
      const BatchMeta batch = make_batch(in, c.sequences, {1, 1, 16, 0}, &n_blocks);
      const KvCache cache = make_cache(in, c.kept, batch, n_blocks, c.kv_heads, c.dk, c.dv, c.latent, c.kept == kF8 ? 0.5f : 1.0f);
      const Tensor q = in.normals(c.compute, {batch.n_tokens, c.heads, c.dk});
      const Tensor y = in.poisoned(c.compute, {batch.n_tokens, c.heads, c.dv});
      const Tensor lse = in.poisoned(kF32, {batch.n_tokens, c.heads});
      backend->attention(y, lse, q, cache, {0.06f, 1}, batch);
      const Tensor wide = in.poisoned(kF32, {batch.n_tokens, c.heads, c.dv});
      backend->copy(wide, y);
      std::vector<float>& values = results[backend == cuda.get()];
      values.resize(static_cast<size_t>(wide.n_elements() + lse.n_elements()));
      backend->download(values.data(), wide);
      backend->download(values.data() + wide.n_elements(), lse);
    }
    double difference = 0.0, size = 0.0;
    for (size_t i = 0; i < results[0].size(); ++i) {
      difference += std::pow(results[1][i] - results[0][i], 2.0);
      size += std::pow(results[0][i], 2.0);
    }
    EXPECT_LT(std::sqrt(difference / size), c.compute == kF32 ? 1e-5 : 5e-3) << c.heads << " heads of " << c.dk;
  }
}

}  // namespace
}  // namespace braid
