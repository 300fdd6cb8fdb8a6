#include "ops/transposed.h"

#include <gtest/gtest.h>

#include <vector>

namespace braid {
namespace {

TEST(Transposed, HeadsThatLieApart) {
  std::vector<float> stored(2 * 5 * 3);  // two heads of five rows, of which the first two are wanted
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<float>(i);
  Tensor w(stored.data(), DType::kF32, {2, 5, 3});
  w.shape[1] = 2;
  const HostTensor t = transposed_heads(w);
  ASSERT_EQ(t.tensor.dim(1), 3);
  ASSERT_EQ(t.tensor.dim(2), 2);
  for (int h = 0; h < 2; ++h) {
    for (int n = 0; n < 3; ++n) {
      for (int k = 0; k < 2; ++k)
        EXPECT_EQ(t.tensor.as<float>()[(h * 3 + n) * 2 + k], static_cast<float>((h * 5 + k) * 3 + n));
    }
  }
}

}  // namespace
}  // namespace braid
