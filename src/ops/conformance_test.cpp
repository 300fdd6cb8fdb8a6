// Every operation against the reference: on the cpu backend, at every instruction-set level this machine runs and with
// one and several threads, and on a GPU where there is one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "ops/conformance_cases.h"
#include "ops/element.h"

namespace braid {
namespace {

// Downloads a dense copy as float32.
std::vector<float> floats_of(Backend& backend, const Tensor& x) {
  Tensor dense = x.rank == 2   ? backend.alloc(MemoryKind::kWorkspace, DType::kF32, {x.dim(0), x.dim(1)})
                 : x.rank == 3 ? backend.alloc(MemoryKind::kWorkspace, DType::kF32, {x.dim(0), x.dim(1), x.dim(2)})
                               : backend.alloc(MemoryKind::kWorkspace, DType::kF32, {x.dim(0)});
  backend.copy(dense, x);
  std::vector<float> values(static_cast<size_t>(dense.n_elements()));
  backend.download(values.data(), dense);
  return values;
}

void expect_same_ints(Backend& a, const Tensor& x, Backend& b, const Tensor& y) {
  std::vector<int32_t> in_a(static_cast<size_t>(x.n_elements())), in_b(in_a.size());
  a.download(in_a.data(), x);
  b.download(in_b.data(), y);
  EXPECT_EQ(in_a, in_b);
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0.0, worst = 0.0;
  for (const float v : want) {
    if (std::isfinite(v)) largest = std::max(largest, std::fabs(static_cast<double>(v)));
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isinf(want[i]) || std::isinf(got[i])) {
      ASSERT_EQ(got[i], want[i]) << "element " << i;
    } else {
      ASSERT_FALSE(std::isnan(got[i])) << "element " << i << " of " << want.size();
      ASSERT_FALSE(std::isnan(want[i])) << "the reference, element " << i;
      worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - want[i]));
    }
  }
  EXPECT_LE(worst, tolerance * largest) << "largest value " << largest;
}

void expect_same_results(Backend& got_on, const PreparedCase& got, Backend& want_on, const PreparedCase& want,
                         double tolerance) {
  ASSERT_EQ(got.outputs.size(), want.outputs.size());
  for (size_t i = 0; i < want.outputs.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "output " << i);
    const Tensor &x = got.outputs[i], &y = want.outputs[i];
    if (x.dtype == DType::kI32) {
      expect_same_ints(got_on, x, want_on, y);
    } else {
      expect_near(floats_of(got_on, x), floats_of(want_on, y), tolerance);
    }
  }
}

class Conformance : public testing::TestWithParam<std::string> {};

TEST_P(Conformance, EqualsReference) {
  const std::vector<ConformanceCase> cases = conformance_cases();
  ASSERT_GT(cases.size(), 200u);
  for (const ConformanceCase& c : cases) {
    SCOPED_TRACE(c.name);
    const std::unique_ptr<Backend> reference = make_reference_backend();
    const PreparedCase want = c.prepare(*reference);
    want.run();
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(testing::Message() << threads << " threads");
      const std::unique_ptr<Backend> cpu = make_cpu_backend({threads, GetParam()});
      cpu->begin_step();
      const PreparedCase got = c.prepare(*cpu);
      got.run();
      expect_same_results(*cpu, got, *reference, want, c.tolerance);
    }
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryLevel, Conformance, testing::ValuesIn(cpu_levels()),
                         [](const auto& level) { return level.param; });

// The first words of the cases' names, so that a family can be run alone (under compute-sanitizer, say).
class CudaConformance : public testing::TestWithParam<const char*> {};

constexpr const char* kFamilies[] = {"linear ", "linear_rows", "head_linear", "moe", "rms_norm", "add_rms_norm", "silu_mul", "embed", "add,",
                                     "gqa_rope_cache", "mla_rope_cache", "attention ", "attention_partial",
                                     "attention_rows", "gather_cache", "merge_results", "pack_results", "route"};

TEST_P(CudaConformance, EqualsReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU is usable here";
  int n = 0;
  for (const bool reproducible : {false, true}) {
    const std::unique_ptr<Backend> cuda = make_cuda_backend({0, reproducible});
    for (const ConformanceCase& c : conformance_cases()) {
      if (c.host_only || !c.name.starts_with(GetParam())) continue;
      ++n;
      SCOPED_TRACE(c.name + (reproducible ? " (reproducible)" : ""));
      const std::unique_ptr<Backend> reference = make_reference_backend();
      const PreparedCase want = c.prepare(*reference);
      want.run();
      cuda->begin_step();
      const PreparedCase got = c.prepare(*cuda);
      got.run();
      expect_same_results(*cuda, got, *reference, want, c.tolerance);
    }
  }
  EXPECT_GT(n, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, CudaConformance, testing::ValuesIn(kFamilies), [](const auto& family) {
  std::string name = family.param;
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
});

TEST(CudaConformance, FamiliesCoverEveryCase) {
  for (const ConformanceCase& c : conformance_cases()) {
    EXPECT_TRUE(std::any_of(std::begin(kFamilies), std::end(kFamilies), [&](const char* f) { return c.name.starts_with(f); }))
        << c.name;
  }
}

TEST(CpuLevels, AnUnknownLevelIsTheUsersFault) { EXPECT_THROW(make_cpu_backend({1, "v9"}), Error); }

}  // namespace
}  // namespace braid
