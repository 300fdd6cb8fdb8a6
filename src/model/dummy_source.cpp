// Dummy weights. One 64-bit hash of (seed, name, element index) gives four 16-bit uniform numbers whose sum is close to
// a normal one; no library function is involved, so that every machine makes the same bits.
#include <xxhash.h>

#include "base/error.h"
#include "model/checkpoint.h"
#include "model/slice.h"

#include <cmath>

namespace braid {
namespace {

uint64_t splitmix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Calls f(i, x) for the n elements from `first` on; x is uniform, with mean 0 and standard deviation 1.
template <typename F>
void draw(uint64_t key, int64_t first, int64_t n, F&& f) {
  constexpr float kStep = 3.4641016f / 65536.0f;  // sqrt(12) is the width of a uniform distribution of deviation 1
  uint64_t bits = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t index = static_cast<uint64_t>(first + i);
    if (i == 0 || index % 4 == 0) bits = splitmix(key + 0x9e3779b97f4a7c15u * (index / 4));
    f(i, (static_cast<float>(bits >> (16 * (index % 4)) & 0xffff) - 32767.5f) * kStep);
  }
}

class DummySource : public WeightSource {
 public:
  DummySource(uint64_t seed, DType dtype) : seed_(seed), dtype_(dtype) { stored_dtype(dtype, DType::kF32); }

  bool has(const std::string&) const override { return true; }
  TensorInfo info(const std::string&) const override { return {dtype_, {}, "dummy weights"}; }
  std::vector<StoredName> names() const override { return {}; }

  int64_t read(const std::string& name, const Shape& shape, const Part& part) const override {
    const SliceWalk walk(name, shape, part);
    const uint64_t key = XXH3_64bits_withSeed(name.data(), name.size(), seed_);
    const bool matrix = shape.size() > 1, norm = !matrix && name.find("norm") != std::string::npos;
    const float mean = norm ? 1.0f : 0.0f;
    const float deviation = matrix ? 1.0f / std::sqrt(static_cast<float>(shape.back())) : 0.02f;
    walk.rows([&](int64_t first, int64_t to) {
      draw(key, first, walk.row_size(), [&](int64_t i, float x) {
        const float value = as_stored(mean + deviation * x);
        if (part.out.dtype == DType::kF32) {
          part.out.as<float>()[to + i] = value;
        } else {
          store(part.out.as<BFloat16>() + to + i, value);
        }
      });
    });
    return 0;  // no file
  }

 private:
  // A weight has the precision of the checkpoint that it stands for, whatever it is read as.
  float as_stored(float x) const {
    if (dtype_ == DType::kBF16) return to_float(to_bfloat16(x));
    if (dtype_ == DType::kF16) return to_float(to_half(x));
    return x;
  }

  uint64_t seed_;
  DType dtype_;
};

}  // namespace

std::unique_ptr<WeightSource> make_dummy_source(uint64_t seed, DType dtype) {
  return std::make_unique<DummySource>(seed, dtype);
}

}  // namespace braid
