// What backends have in common: defaults of those that compute where they are called.
#include "ops/backend.h"

#include "base/error.h"

namespace braid {

void Backend::begin_recording() { BRAID_CHECK(false, "the {} backend records nothing", name()); }

std::unique_ptr<Recording> Backend::end_recording() {
  BRAID_CHECK(false, "the {} backend records nothing", name());
  return nullptr;
}

void Backend::replay(const Recording&) { BRAID_CHECK(false, "the {} backend records nothing", name()); }

std::shared_ptr<std::byte[]> Backend::staging(int64_t bytes) {
  return std::shared_ptr<std::byte[]>(new std::byte[static_cast<size_t>(bytes)]);
}

}  // namespace braid
