// Dummy weights, keyed by (seed, name) and made by the backend that wants them.
#include <xxhash.h>

#include "base/error.h"
#include "model/checkpoint.h"
#include "model/slice.h"

#include <cmath>

namespace braid {
namespace {

class DummySource : public WeightSource {
 public:
  DummySource(uint64_t seed, DType dtype) : seed_(seed), dtype_(dtype) { stored_dtype(dtype, DType::kF32); }

  bool has(const std::string&) const override { return true; }
  TensorInfo info(const std::string&) const override { return {dtype_, {}, "dummy weights"}; }
  std::vector<StoredName> names() const override { return {}; }

  int64_t read(const std::string& name, const Shape& shape, const Part& part) const override {
    const SliceWalk walk(name, shape, part);
    const bool matrix = shape.size() > 1, norm = !matrix && name.find("norm") != std::string::npos;
    DummyValues v;
    v.type = part.out.dtype;
    v.precision = dtype_;  // a weight has the precision of the checkpoint that it stands for, whatever it is read as
    v.key = XXH3_64bits_withSeed(name.data(), name.size(), seed_);
    v.mean = norm ? 1.0f : 0.0f;
    v.deviation = matrix ? 1.0f / std::sqrt(static_cast<float>(shape.back())) : 0.02f;
    v.columns = walk.row_size();
    // Rows that lie at equal steps become one piece of work.
    int64_t last_to = 0;
    walk.rows([&](int64_t first, int64_t to) {
      if (v.rows == 1) v.row_step = first - v.first, v.out_stride = to - last_to;
      const bool next = v.rows >= 1 && first == v.first + v.rows * v.row_step && to - last_to == v.out_stride;
      if (!next) {
        make(v, part);
        v.rows = 0;
        v.first = first;
        v.out = static_cast<char*>(part.out.data) + to * size_of(v.type);
      }
      ++v.rows;
      last_to = to;
    });
    make(v, part);
    return 0;  // no file
  }

 private:
  static void make(const DummyValues& v, const Part& part) {
    if (v.rows == 0) return;
    part.maker ? part.maker->make_dummy(v) : make_dummy_values(v);
  }

  uint64_t seed_;
  DType dtype_;
};

}  // namespace

std::unique_ptr<WeightSource> make_dummy_source(uint64_t seed, DType dtype) {
  return std::make_unique<DummySource>(seed, dtype);
}

}  // namespace braid
