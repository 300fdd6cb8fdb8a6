// Any bytes as a safetensors file: the header is either refused with an Error, or every tensor lies inside the bytes.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    unsigned sum = 0;
    for (const braid::StoredTensor& t : braid::parse_safetensors(file, "input"))
      for (const std::byte b : file.subspan(t.begin, t.bytes)) sum += static_cast<unsigned>(b);
    volatile unsigned sink = sum;  // the reads must happen, for the sanitizer to see them
    static_cast<void>(sink);
  } catch (const braid::Error&) {
  }
  return 0;
}
