// A file mapped read-only for as long as the object lives. Pages are read on first touch, so that a rank that looks at
// a slice pays for the slice. Any thread may read.
#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace braid {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // throws Error naming the file and the reason
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace braid
