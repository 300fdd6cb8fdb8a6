// Weights by name: every stored type, slices, shards, the account of what was read, and dummy weights.
#include "model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "model/test_files.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Owns the elements of tensors to be written.
class Writer {
 public:
  template <typename T>
  void add(const std::string& name, const Shape& shape, std::vector<T> values) {
    auto kept = std::make_shared<std::vector<T>>(std::move(values));
    Tensor t;
    if (shape.size() == 1) t = Tensor(kept->data(), dtype_of<T>(), {shape[0]});
    if (shape.size() == 2) t = Tensor(kept->data(), dtype_of<T>(), {shape[0], shape[1]});
    if (shape.size() == 3) t = Tensor(kept->data(), dtype_of<T>(), {shape[0], shape[1], shape[2]});
    ASSERT_EQ(static_cast<size_t>(t.n_elements()), kept->size());
    tensors_.push_back({name, t});
    alive_.push_back(std::move(kept));
  }
  void save(const std::string& path) const { write_safetensors(path, tensors_); }

 private:
  std::vector<NamedTensor> tensors_;
  std::vector<std::shared_ptr<void>> alive_;
};

template <typename T>
std::vector<T> ramp(int64_t n) {
  std::vector<T> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) store(&v[i], 0.37f * static_cast<float>(i) - 5.0f);
  return v;
}
// Every finite e4m3 code occurs.
std::vector<Float8E4M3> codes(int64_t n) {
  std::vector<Float8E4M3> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) {
    const uint8_t code = static_cast<uint8_t>(i * 7 + i / 256);
    v[i].bits = (code & 0x7f) == 0x7f ? 0x31 : code;
  }
  return v;
}

template <typename T>
std::vector<T> read_slice(const WeightSource& source, const std::string& name, const Shape& shape,
                          const Slice& slice = {}) {
  int64_t n = 1;
  for (size_t d = 0; d < shape.size(); ++d) n *= slice.empty() ? shape[d] : slice[d].size();
  std::vector<T> out(static_cast<size_t>(n));
  Tensor t(out.data(), dtype_of<T>(), {n});
  if (shape.size() == 2) t = slice.empty() ? t.view({shape[0], shape[1]}) : t.view({slice[0].size(), slice[1].size()});
  if (shape.size() == 3)
    t = slice.empty() ? t.view({shape[0], shape[1], shape[2]})
                      : t.view({slice[0].size(), slice[1].size(), slice[2].size()});
  source.read(name, shape, {slice, t});
  return out;
}

// A slice of a whole, the slow way.
template <typename T>
std::vector<T> cut(const std::vector<T>& whole, const Shape& shape, const Slice& slice) {
  std::vector<T> result;
  for (size_t i = 0; i < whole.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i);
    bool inside = true;
    for (size_t d = shape.size(); d-- > 0; rest /= shape[d])
      inside = inside && rest % shape[d] >= slice[d].begin && rest % shape[d] < slice[d].end;
    if (inside) result.push_back(whole[i]);
  }
  return result;
}

Slice random_slice(const Shape& shape) {
  Slice slice;
  for (const int64_t n : shape) {
    const int64_t begin = *rc::gen::inRange<int64_t>(0, n), end = *rc::gen::inRange<int64_t>(begin, n + 1);
    slice.push_back({begin, end});
  }
  return slice;
}

}  // namespace

TEST(Checkpoint, KeptTypes) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    EXPECT_EQ(stored_dtype(DType::kBF16, compute), DType::kBF16);
    for (const DType file : {DType::kF32, DType::kF16, DType::kF8E4M3}) EXPECT_EQ(stored_dtype(file, compute), compute);
  }
  EXPECT_THAT(error_of([] { stored_dtype(DType::kI64, DType::kF32); }), HasSubstr("can not be stored as int64"));
}

TEST(Checkpoint, EveryStoredTypeInBothKeptTypes) {
  const TempFolder folder;
  Writer w;
  w.add("f32", {3, 5}, ramp<float>(15));
  w.add("bf16", {3, 5}, ramp<BFloat16>(15));
  w.add("f16", {3, 5}, ramp<Half>(15));
  w.save(folder.file("model.safetensors"));
  const auto source = open_checkpoint(folder.path());
  const auto check = [&](const std::string& name, auto stored) {
    const auto f32 = read_slice<float>(*source, name, {3, 5});
    const auto bf16 = read_slice<BFloat16>(*source, name, {3, 5});
    for (size_t i = 0; i < stored.size(); ++i) {
      EXPECT_EQ(f32[i], to_float(stored[i])) << name << " " << i;
      EXPECT_EQ(bf16[i].bits, to_bfloat16(to_float(stored[i])).bits) << name << " " << i;
    }
  };
  check("f32", ramp<float>(15));
  check("bf16", ramp<BFloat16>(15));
  check("f16", ramp<Half>(15));
  EXPECT_EQ(source->info("f16").dtype, DType::kF16);
  EXPECT_EQ(source->info("f16").shape, (Shape{3, 5}));
}

// A ragged matrix of 3 x 3 blocks, the scales in another shard, against float64.
TEST(Checkpoint, Float8IsExactAgainstFloat64) {
  constexpr int64_t kRows = 300, kColumns = 260;
  const TempFolder folder;
  Writer weights, scales;
  const auto stored = codes(kRows * kColumns);
  std::vector<float> scale(9);
  for (size_t i = 0; i < 9; ++i) scale[i] = 0.001f * static_cast<float>(i + 1) / 3.0f;
  weights.add("x.weight", {kRows, kColumns}, stored);
  scales.add("x.weight_scale_inv", {3, 3}, scale);
  weights.save(folder.file("a.safetensors"));
  scales.save(folder.file("b.safetensors"));
  folder.write("model.safetensors.index.json",
               R"({"weight_map": {"x.weight": "a.safetensors", "x.weight_scale_inv": "b.safetensors"}})");
  const auto source = open_checkpoint(folder.path());
  const auto f32 = read_slice<float>(*source, "x.weight", {kRows, kColumns});
  const auto bf16 = read_slice<BFloat16>(*source, "x.weight", {kRows, kColumns});
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kColumns; ++c) {
      const size_t i = static_cast<size_t>(r * kColumns + c);
      const double exact = static_cast<double>(to_float(stored[i])) *
                           static_cast<double>(scale[static_cast<size_t>(r / 128 * 3 + c / 128)]);
      ASSERT_EQ(f32[i], static_cast<float>(exact)) << r << " " << c;
      ASSERT_EQ(bf16[i].bits, to_bfloat16(static_cast<float>(exact)).bits);
    }
  }
  // Rows [100, 260) lie in blocks 0 to 2, columns [120, 136) in blocks 0 and 1: six factors of four bytes.
  std::vector<float> out(160 * 16);
  const Part part{{{100, 260}, {120, 136}}, Tensor(out.data(), DType::kF32, {160, 16})};
  EXPECT_EQ(source->read("x.weight", {kRows, kColumns}, part), 160 * 16 + 6 * 4);
  EXPECT_EQ(out, cut(f32, {kRows, kColumns}, part.slice));
  // As it is: elements and one factor per group, of two slices [64, 124) and [124, 184) in groups of 4.
  constexpr int64_t kGroups = 2 * 15;
  std::vector<Float8E4M3> elements(160 * 120);
  std::vector<float> factors(160 * kGroups);
  Part kept{{{100, 260}, {64, 184}}, Tensor(elements.data(), DType::kF8E4M3, {160, 120})};
  kept.scales = Tensor(factors.data(), DType::kF32, {160, kGroups});
  kept.kept = {DType::kF8E4M3, 4};
  kept.k_slices = 2;
  EXPECT_EQ(source->read("x.weight", {kRows, kColumns}, kept), 160 * 120 + 6 * 4);
  for (int64_t r = 0; r < 160; ++r) {
    for (int64_t c = 0; c < 120; ++c) {
      const auto from = static_cast<size_t>((r + 100) * kColumns + c + 64);
      ASSERT_EQ(elements[static_cast<size_t>(r * 120 + c)].bits, stored[from].bits);
      const float factor = factors[static_cast<size_t>(r * kGroups + c / 60 * 15 + c % 60 / 4)];
      ASSERT_EQ(factor, scale[static_cast<size_t>((r + 100) / 128 * 3 + (c + 64) / 128)]) << r << " " << c;
    }
  }
}

TEST(Checkpoint, GroupsThatCutBlocks) {
  EXPECT_TRUE(groups_fit_blocks({0, 7168}, 1, 128, 128));
  EXPECT_TRUE(groups_fit_blocks({0, 576}, 1, 128, 128));  // the last group is short, as the last block is
  EXPECT_TRUE(groups_fit_blocks({0, 2048}, 8, 128, 128));
  EXPECT_TRUE(groups_fit_blocks({1024, 1536}, 2, 128, 256));
  EXPECT_TRUE(groups_fit_blocks({64, 128}, 8, 128, 128));  // slices of 8 in one block
  EXPECT_FALSE(groups_fit_blocks({0, 1536}, 8, 128, 128));  // slices of 192
  EXPECT_FALSE(groups_fit_blocks({96, 192}, 1, 128, 128));
  EXPECT_TRUE(groups_fit_blocks({0, 1536}, 8, 64, 64));
}

RC_GTEST_PROP(Checkpoint, SlicesEqualTheWhole, ()) {
  static const TempFolder folder;
  static const Shape matrix = {37, 41}, stack = {3, 19, 23}, vector = {50};
  static const auto source = [] {
    Writer w;
    w.add("f8", matrix, codes(37 * 41));
    w.add("f8_scale_inv", {5, 3}, ramp<float>(15));
    w.add("stack8", stack, codes(3 * 19 * 23));
    w.add("stack8_scale_inv", {3, 3, 2}, ramp<BFloat16>(18));
    w.add("bf16", matrix, ramp<BFloat16>(37 * 41));
    w.add("stack", stack, ramp<Half>(3 * 19 * 23));
    w.add("vector", vector, ramp<float>(50));
    w.save(folder.file("model.safetensors"));
    return open_checkpoint(folder.path(), 8, 16);
  }();
  static const std::pair<const char*, const Shape&> kAll[] = {
      {"f8", matrix}, {"stack8", stack}, {"bf16", matrix}, {"stack", stack}, {"vector", vector}};
  const auto& [name, shape] = *rc::gen::elementOf(std::vector(std::begin(kAll), std::end(kAll)));
  const Slice slice = random_slice(shape);
  RC_ASSERT(read_slice<float>(*source, name, shape, slice) ==
            cut(read_slice<float>(*source, name, shape), shape, slice));
}

TEST(Checkpoint, PartsGoToStridedRowsAndDropExtentsOfOne) {
  const TempFolder folder;
  Writer w;
  w.add("stack", {2, 4, 3}, ramp<float>(24));
  w.save(folder.file("model.safetensors"));
  const auto source = open_checkpoint(folder.path());
  CheckpointReader reader(*source, DType::kF32);
  std::vector<float> out(2 * 8, -1.0f);
  const Tensor whole(out.data(), DType::kF32, {2, 8});
  const std::vector<Part> parts = {{{{1, 2}, {0, 2}, {0, 3}}, whole.columns(0, 3)},
                                   {{{1, 2}, {2, 4}, {0, 3}}, whole.columns(4, 7)}};
  reader.read("stack", {2, 4, 3}, parts);
  const auto v = ramp<float>(24);
  EXPECT_THAT(out, ElementsAre(v[12], v[13], v[14], -1, v[18], v[19], v[20], -1, v[15], v[16], v[17], -1, v[21], v[22],
                               v[23], -1));
  EXPECT_EQ(reader.bytes_read(), 12 * 4);
}

TEST(Checkpoint, ErrorsNameFileAndTensor) {
  const TempFolder folder;
  Writer w;
  w.add("model.layers.0.self_attn.q_proj.weight", {2, 2}, ramp<float>(4));
  w.add("model.layers.0.self_attn.k_proj.weight", {2, 2}, ramp<float>(4));
  w.add("ids", {2}, std::vector<int64_t>{1, 2});
  w.add("orphan", {2, 2}, codes(4));
  w.add("bad", {2, 2}, codes(4));
  w.add("bad_scale_inv", {2, 1}, ramp<float>(2));
  w.save(folder.file("model.safetensors"));
  const auto source = open_checkpoint(folder.path());
  const auto complaint = [&](const std::string& name, const Shape& shape) {
    return error_of([&] { read_slice<float>(*source, name, shape); });
  };
  const auto in_file = HasSubstr(folder.file("model.safetensors"));
  EXPECT_THAT(
      complaint("model.layers.0.self_attn.q_prj.weight", {2, 2}),
      AllOf(
          HasSubstr(folder.file("model.safetensors") + " has no tensor 'model.layers.0.self_attn.q_prj.weight'"),
          HasSubstr("nearest are 'model.layers.0.self_attn.q_proj.weight', 'model.layers.0.self_attn.k_proj.weight'")));
  EXPECT_THAT(complaint("model.layers.0.self_attn.q_proj.weight", {2, 3}),
              AllOf(in_file, HasSubstr("has shape [2, 2], the model needs [2, 3]")));
  EXPECT_THAT(complaint("ids", {2}), AllOf(in_file, HasSubstr("tensor 'ids' is stored as I64; weights must be")));
  EXPECT_THAT(complaint("orphan", {2, 2}), AllOf(in_file, HasSubstr("there is no 'orphan_scale_inv'")));
  EXPECT_THAT(complaint("bad", {2, 2}),
              AllOf(in_file, HasSubstr("tensor 'bad_scale_inv' has shape [2, 1], the model needs [1, 1]")));
}

TEST(Checkpoint, ShardsMustHoldWhatTheIndexSays) {
  const TempFolder folder;
  Writer a, b;
  a.add("x", {2}, ramp<float>(2));
  b.add("y", {2}, ramp<float>(2));
  a.save(folder.file("a.safetensors"));
  b.save(folder.file("b.safetensors"));
  const auto with_index = [&](const std::string& map) {
    folder.write("model.safetensors.index.json", map);
    return error_of([&] { open_checkpoint(folder.path()); });
  };
  EXPECT_THAT(error_of([&] { open_checkpoint(folder.path()); }), HasSubstr("holds neither model.safetensors nor"));
  EXPECT_THAT(error_of([&] { open_checkpoint(folder.file("none")); }), HasSubstr("no such file or folder"));
  EXPECT_THAT(with_index("{}"), HasSubstr("has no 'weight_map'"));
  EXPECT_THAT(with_index(R"({"weight_map": {"x": "../a.safetensors"}})"), HasSubstr("not a plain file name"));
  EXPECT_THAT(with_index(R"({"weight_map": {"x": "c.safetensors"}})"), HasSubstr("c.safetensors is missing"));
  EXPECT_THAT(with_index(R"({"weight_map": {"x": "b.safetensors"}})"), HasSubstr("b.safetensors has no tensor 'x'"));
  a.save(folder.file("b.safetensors"));
  EXPECT_THAT(with_index(R"({"weight_map": {"x": "a.safetensors", "x2": "b.safetensors"}})"),
              HasSubstr("tensor 'x' is in both"));
  folder.write("b.safetensors", "short");
  EXPECT_THAT(with_index(R"({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})"),
              HasSubstr("b.safetensors is truncated"));
}

TEST(Checkpoint, EveryTensorIsReadOnceOrSkippedForAReason) {
  const TempFolder folder;
  Writer w;
  for (const char* name : {"a", "b", "layers.6.x", "layers.6.y", "layers.0.rotary_emb.inv_freq"})
    w.add(name, {4}, ramp<float>(4));
  w.add("q", {2, 2}, codes(4));
  w.add("q_scale_inv", {1, 1}, ramp<float>(1));
  w.save(folder.file("model.safetensors"));
  const auto source = open_checkpoint(folder.path());
  CheckpointReader first(*source, DType::kF32), second(*source, DType::kF32);
  std::vector<float> out(4);
  const Tensor t(out.data(), DType::kF32, {4});
  first.read("a", {4}, {{0, 1}}, t.rows(0, 1));
  second.read("a", {4}, {{1, 4}}, t.rows(0, 3));
  first.read("q", {2, 2}, t.view({2, 2}));
  EXPECT_EQ(first.bytes_read(), 4 + 4 + 4);
  EXPECT_EQ(second.bytes_read(), 12);
  EXPECT_EQ(second.kept_dtype("q"), DType::kF32);
  EXPECT_THAT(error_of([&] { first.read("a", {4}, t); }), HasSubstr("tensor 'a' is read twice"));

  const std::vector<const CheckpointReader*> readers = {&first, &second};
  const std::vector<SkipRule> rules = {{"layers.6.", "", "drafting is off"}, {"", ".inv_freq", "computed"}};
  EXPECT_THAT(error_of([&] { finish_loading(*source, readers, rules); }),
              AllOf(HasSubstr("1 tensor that the model does not use: 'b' in " + folder.file("model.safetensors"))));
  second.read("b", {4}, t);
  const auto skipped = finish_loading(*source, readers, rules);
  ASSERT_EQ(skipped.size(), 3u);
  EXPECT_EQ(skipped[0].name, "layers.0.rotary_emb.inv_freq");
  EXPECT_EQ(skipped[0].reason, "computed");
  EXPECT_EQ(skipped[2].reason, "drafting is off");
  EXPECT_THAT(error_of([&] { finish_loading(*source, readers, {}); }), HasSubstr("3 tensors"));
}

TEST(Checkpoint, ALongListOfUnreadTensorsIsCut) {
  const TempFolder folder;
  Writer w;
  for (int i = 10; i < 30; ++i) w.add(fmt::format("t{}", i), {1}, ramp<float>(1));
  w.save(folder.file("model.safetensors"));
  const auto source = open_checkpoint(folder.path());
  const std::string message = error_of([&] { finish_loading(*source, {}, {}); });
  EXPECT_THAT(message, AllOf(HasSubstr("20 tensors"), HasSubstr("'t19'"), HasSubstr(", ...")));
  EXPECT_EQ(message.find("'t20'"), std::string::npos);
}

// Each fixture's bytes, read as two ranks would, add up to the file's.
TEST(Checkpoint, BytesReadAreTheFilesBytes) {
  const auto source = open_checkpoint(BRAID_SOURCE_DIR "/tests/data/fixtures/deepseek_v3");
  CheckpointReader ranks[2] = {{*source, DType::kF32}, {*source, DType::kF32}};
  int64_t total = 0;
  for (const auto& [name, file] : source->names()) {
    const TensorInfo info = source->info(name);
    const int64_t n = info.shape[0], half = n / 2, row = info.shape.size() == 2 ? info.shape[1] : 1;
    total += n * row * size_of(info.dtype);
    for (int r = 0; r < 2; ++r) {
      std::vector<float> out(static_cast<size_t>(half * row));
      const Range rows = {r * half, (r + 1) * half};
      const Slice slice = info.shape.size() == 2 ? Slice{rows, {0, row}} : Slice{rows};
      ranks[r].read(name, info.shape, slice, Tensor(out.data(), DType::kF32, {half, row}));
    }
  }
  EXPECT_EQ(ranks[0].bytes_read() + ranks[1].bytes_read(), total);
  const std::vector<const CheckpointReader*> readers = {&ranks[0], &ranks[1]};
  EXPECT_TRUE(finish_loading(*source, readers, {}).empty());
}

TEST(Checkpoint, RanksReadAtTheSameTime) {
  const TempFolder folder;
  Writer w;
  w.add("x", {64, 64}, codes(64 * 64));
  w.add("x_scale_inv", {1, 1}, std::vector<float>{0.5f});
  w.save(folder.file("model.safetensors"));
  const auto source = open_checkpoint(folder.path());
  std::vector<float> together(64 * 64);
  const Tensor out(together.data(), DType::kF32, {64, 64});
  std::vector<std::thread> ranks;
  for (int64_t r = 0; r < 4; ++r)
    ranks.emplace_back([&, r] {
      CheckpointReader reader(*source, DType::kF32);
      reader.read("x", {64, 64}, {{r * 16, (r + 1) * 16}, {0, 64}}, out.rows(r * 16, (r + 1) * 16));
    });
  for (std::thread& t : ranks) t.join();
  EXPECT_EQ(together, read_slice<float>(*source, "x", {64, 64}));
}

RC_GTEST_PROP(Dummy, SlicesEqualTheWhole, ()) {
  const auto source = make_dummy_source(*rc::gen::arbitrary<uint64_t>(), DType::kBF16);
  const Shape shape = *rc::gen::elementOf(std::vector<Shape>{{17, 9}, {3, 5, 7}, {40}});
  const Slice slice = random_slice(shape);
  RC_ASSERT(read_slice<float>(*source, "a.weight", shape, slice) ==
            cut(read_slice<float>(*source, "a.weight", shape), shape, slice));
}

TEST(Dummy, ValuesDependOnSeedNameAndElementOnly) {
  const auto one = make_dummy_source(1, DType::kBF16), again = make_dummy_source(1, DType::kBF16),
             two = make_dummy_source(2, DType::kBF16);
  const auto a = read_slice<float>(*one, "a.weight", {64, 64});
  EXPECT_EQ(a, read_slice<float>(*again, "a.weight", {64, 64}));
  EXPECT_NE(a, read_slice<float>(*two, "a.weight", {64, 64}));
  EXPECT_NE(a, read_slice<float>(*one, "b.weight", {64, 64}));
  const auto narrow = read_slice<BFloat16>(*one, "a.weight", {64, 64});
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], to_float(narrow[i]));  // stored as bfloat16: exact either way
  EXPECT_TRUE(one->has("anything"));
  EXPECT_TRUE(one->names().empty());
}

TEST(Dummy, MatricesHaveUnitGainAndNormsAreNearOne) {
  const auto source = make_dummy_source(7, DType::kF32);
  const auto matrix = read_slice<float>(*source, "w", {256, 100});
  const double mean = std::accumulate(matrix.begin(), matrix.end(), 0.0) / 25600;
  const double square = std::inner_product(matrix.begin(), matrix.end(), matrix.begin(), 0.0) / 25600;
  EXPECT_NEAR(mean, 0.0, 0.003);
  EXPECT_NEAR(square, 1.0 / 100, 3e-4);
  for (const float x : read_slice<float>(*source, "model.norm.weight", {1000})) EXPECT_NEAR(x, 1.0f, 0.08f);
  for (const float x : read_slice<float>(*source, "q.bias", {1000})) EXPECT_NEAR(x, 0.0f, 0.08f);
}

// The first bits are written down: a change of the hash would silently change every dummy model.
TEST(Dummy, BitsAreFixed) {
  const auto v = read_slice<float>(*make_dummy_source(0, DType::kF32), "w", {2, 4});
  EXPECT_THAT(v, ElementsAre(-0x1.8ecc44p-1f, -0x1.6bf0bep-1f, 0x1.a3535p-1f, -0x1.1425a8p-1f, -0x1.703c98p-2f,
                             -0x1.dea7aap-2f, -0x1.6cfb7ap-1f, -0x1.7dfa64p-1f));
}

}  // namespace braid
