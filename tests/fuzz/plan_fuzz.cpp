// Fuzzes the reader of step plans: any bytes are refused with RuntimeFailure or read to a plan that is written back to
// the same bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "sched/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const auto again = braid::serialize(braid::deserialize_plan(bytes));
    BRAID_CHECK(again.size() == size && std::equal(again.begin(), again.end(), bytes.begin()), "{} bytes", size);
  } catch (const braid::RuntimeFailure&) {
  }
  return 0;
}
