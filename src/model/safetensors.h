// The safetensors format: 8 bytes little-endian header length, a JSON header, then the tensors' bytes without gaps.
// Reading maps the file and believes nothing: a header that does not describe exactly the bytes that follow is an
// Error.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mmap.h"
#include "tensor/tensor.h"

namespace braid {

struct StoredTensor {
  std::string name;
  std::string type;            // as the file spells it: "BF16"
  std::optional<DType> dtype;  // empty: a type that braid can not read, which matters only when it is asked for
  std::vector<int64_t> shape;
  size_t begin = 0, bytes = 0;  // place in the file, from its first byte
};

// All tensors of a file, by place. `file` is the whole file, `name` is for messages. Throws Error on anything wrong.
std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> file, const std::string& name);

std::string shape_text(std::span<const int64_t> shape);  // "[3, 4]"

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* find(const std::string& name) const;  // null: not there
  // Not aligned to the element size: a header may have any length.
  std::span<const std::byte> bytes(const StoredTensor& t) const { return mapped_.bytes().subspan(t.begin, t.bytes); }

  // A whole tensor of exactly this element type, copied. Throws Error where it is missing or of another type.
  template <typename T>
  std::vector<T> values(const std::string& name) const {
    const StoredTensor& t = require(name, dtype_of<T>());
    std::vector<T> result(t.bytes / sizeof(T));
    if (t.bytes > 0) std::memcpy(result.data(), bytes(t).data(), t.bytes);
    return result;
  }

 private:
  const StoredTensor& require(const std::string& name, DType) const;

  std::string path_;
  MappedFile mapped_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

// Writes dense tensors in the given order, the data 8-byte aligned. Throws Error on a name given twice or a full disk.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::vector<std::pair<std::string, std::string>>& metadata = {});

}  // namespace braid
