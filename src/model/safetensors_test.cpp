// The file format: what is written can be read, and a header that lies is refused with a sentence.
#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "model/test_files.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

std::string with_length(const std::string& header, size_t data_bytes) {
  std::string file(8, '\0');
  const uint64_t n = header.size();
  std::memcpy(file.data(), &n, 8);
  return file + header + std::string(data_bytes, 'x');
}
std::vector<StoredTensor> parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes.data(), bytes.size())), "some.safetensors");
}
std::string complaint(const std::string& header, size_t data_bytes) {
  const std::string message = error_of([&] { parse(with_length(header, data_bytes)); });
  EXPECT_THAT(message, HasSubstr("some.safetensors"));
  return message;
}
const std::string kTwo =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";

}  // namespace

TEST(Safetensors, WhatIsWrittenIsRead) {
  const TempFolder folder;
  std::vector<float> a(6);
  std::iota(a.begin(), a.end(), 1.5f);
  std::vector<int64_t> b = {1, -2};
  std::vector<BFloat16> c = {to_bfloat16(3.0f)};
  const std::vector<NamedTensor> tensors = {{"a", Tensor(a.data(), DType::kF32, {2, 3})},
                                            {"b", Tensor(b.data(), DType::kI64, {2})},
                                            {"c", Tensor(c.data(), DType::kBF16, {1})},
                                            {"none", Tensor(nullptr, DType::kF32, {0, 3})}};
  write_safetensors(folder.file("x.safetensors"), tensors, {{"format", "pt"}});
  const SafetensorsFile file(folder.file("x.safetensors"));
  EXPECT_EQ(file.values<float>("a"), a);
  EXPECT_EQ(file.values<int64_t>("b"), b);
  EXPECT_EQ(file.values<BFloat16>("c")[0].bits, c[0].bits);
  EXPECT_TRUE(file.values<float>("none").empty());
  EXPECT_EQ(file.find("a")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.find("a")->begin % 8, 0u);
  EXPECT_EQ(file.find("d"), nullptr);
  EXPECT_THAT(error_of([&] { file.values<float>("b"); }), HasSubstr("tensor 'b' is stored as I64, not as float32"));
  EXPECT_THAT(error_of([&] { file.values<float>("d"); }), HasSubstr("has no tensor 'd'"));
  EXPECT_THAT(error_of([&] {
                write_safetensors(folder.file("y"), std::vector{tensors[0], tensors[0]});
              }),
              HasSubstr("'a' is there twice"));
  EXPECT_THAT(error_of([&] { write_safetensors(folder.file("no/y"), tensors); }), HasSubstr("cannot write"));
}

TEST(Safetensors, FilesOfOtherWritersAreRead) {
  const SafetensorsFile file(BRAID_SOURCE_DIR "/tests/data/fixtures/llama/model.safetensors");
  EXPECT_EQ(file.find("model.norm.weight")->type, "BF16");
  EXPECT_EQ(file.values<BFloat16>("model.embed_tokens.weight").size(), 320u * 64);
  const SafetensorsFile reference(BRAID_SOURCE_DIR "/tests/data/fixtures/llama/reference.safetensors");
  const auto& shape = reference.find("logits_0")->shape;
  EXPECT_EQ(reference.values<float>("logits_0").size(), static_cast<size_t>(shape[0] * shape[1]));
}

TEST(Safetensors, TruncatedFilesAreRefused) {
  const std::string whole = with_length(kTwo, 11);
  EXPECT_EQ(parse(whole).size(), 2u);
  for (size_t n = 0; n < whole.size(); ++n)
    EXPECT_THAT(error_of([&] { parse(whole.substr(0, n)); }), HasSubstr("some.safetensors is truncated")) << n;
  EXPECT_THAT(complaint(kTwo, 12), HasSubstr("1 bytes after the last tensor belong to no tensor"));
}

TEST(Safetensors, LyingHeadersAreRefused) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  EXPECT_THAT(complaint("{", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(complaint("[1]", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(complaint(R"({"t":3})", 0), HasSubstr("tensor 't' is not described by an object"));
  EXPECT_THAT(complaint(R"({"t":{"dtype":"F32","shape":[]}})", 4), HasSubstr("has no 'data_offsets'"));
  EXPECT_THAT(complaint(one("\"F33\"", "[1]", "[0,4]"), 4), HasSubstr("unknown dtype 'F33'"));
  EXPECT_THAT(complaint(one("32", "[1]", "[0,4]"), 4), HasSubstr("dtype that is not a string"));
  EXPECT_THAT(complaint(one("\"F32\"", "[-1]", "[0,4]"), 4), HasSubstr("shape that is not a list"));
  EXPECT_THAT(complaint(one("\"F32\"", "[1.0]", "[0,4]"), 4), HasSubstr("shape that is not a list"));
  EXPECT_THAT(complaint(one("\"F32\"", "[1]", "[4,0]"), 4), HasSubstr("begin <= end"));
  EXPECT_THAT(complaint(one("\"F32\"", "[1]", "[0]"), 4), HasSubstr("begin <= end"));
  EXPECT_THAT(complaint(one("\"F32\"", "[2]", "[0,4]"), 4),
              HasSubstr("shape [2] and dtype F32 needs 8 bytes, but its data_offsets span 4"));
  EXPECT_THAT(complaint(one("\"F32\"", "[4294967296,4294967296,16]", "[0,0]"), 0), HasSubstr("impossibly large"));
  EXPECT_THAT(complaint(one("\"F32\"", "[1]", "[4611686018427387900,4611686018427387904]"), 4), HasSubstr("truncated"));
  EXPECT_THAT(complaint(one("\"F32\"", "[1]", "[1,5]"), 5), HasSubstr("1 bytes before tensor 't' belong to no tensor"));
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_THAT(complaint("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
              HasSubstr("'a' and 'b' overlap"));
  EXPECT_THAT(complaint("{" + a + "," + a + "}", 8), HasSubstr("has 'a' twice"));
  std::string absurd(16, '\xff');
  EXPECT_THAT(error_of([&] { parse(absurd); }), HasSubstr("its header would have 18446744073709551615 bytes"));
}

// Any damage to a good file is refused or gives tensors inside the bytes.
RC_GTEST_PROP(Safetensors, DamageNeverLeadsOutside, ()) {
  std::string bytes = with_length(kTwo, 11);
  const auto changes = *rc::gen::container<std::vector<std::pair<uint8_t, uint8_t>>>(
      rc::gen::pair(rc::gen::inRange<uint8_t>(0, 120), rc::gen::arbitrary<uint8_t>()));
  for (const auto& [at, value] : changes) bytes[at] = static_cast<char>(value);
  try {
    for (const StoredTensor& t : parse(bytes)) RC_ASSERT(t.begin >= 8 && t.begin + t.bytes <= bytes.size());
  } catch (const Error&) {
  }
}

}  // namespace braid
