// Dummy values on the device; the bits are those of make_dummy_values().
#pragma once
#include <cuda_runtime.h>

#include "ops/dummy_values.h"

namespace braid {

void launch_dummy_values(const DummyValues& v, cudaStream_t stream);

}  // namespace braid
