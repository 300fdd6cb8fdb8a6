#include "ops/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/error.h"

namespace braid {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kMapFrom = 1 << 20;  // blocks of this size and above are mapped
constexpr int64_t kFirstScratch = 1 << 20;
constexpr int64_t kLargePage = 2 << 20;
constexpr int64_t kMostShared = 64 << 20;  // of a block made for more than the tensor that asked for it

int64_t rounded_up(int64_t size, int64_t to) { return (size + to - 1) / to * to; }
int64_t padded(int64_t size) { return std::max<int64_t>(kAlignment, rounded_up(size, kAlignment)); }

void* map(int64_t size) {
  void* p = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw RuntimeFailure(fmt::format("the system refused {} bytes of memory", size));
  return p;
}

// `size` bytes from a multiple of kLargePage on, in large pages if the system has them to give.
char* map_large_pages(int64_t size) {
  char* const begin = static_cast<char*>(map(size + kLargePage));
  const int64_t before = rounded_up(reinterpret_cast<intptr_t>(begin), kLargePage) - reinterpret_cast<intptr_t>(begin);
  if (before > 0) munmap(begin, static_cast<size_t>(before));
  munmap(begin + before + size, static_cast<size_t>(kLargePage - before));
  madvise(begin + before, static_cast<size_t>(size), MADV_HUGEPAGE);  // a hint; refusal costs only speed
  return begin + before;
}

}  // namespace

HostMemory::~HostMemory() {
  for (const Block& b : lasting_) free_block(b);
  for (const Block& b : scratch_) free_block(b);
}

HostMemory::Block HostMemory::make_block(int64_t size, bool huge_pages) {
  const bool mapped = size >= kMapFrom;
  huge_pages = huge_pages && mapped;
  Block b{nullptr, huge_pages ? rounded_up(size, kLargePage) : padded(size), mapped};
  if (huge_pages) {
    b.data = map_large_pages(b.size);
  } else if (mapped) {
    b.data = static_cast<char*>(map(b.size));
  } else {
    b.data = static_cast<char*>(std::aligned_alloc(kAlignment, static_cast<size_t>(b.size)));
    if (!b.data) throw RuntimeFailure(fmt::format("the system refused {} bytes of memory", b.size));
  }
  return b;
}

void HostMemory::free_block(const Block& b) {
  if (b.mapped) {
    munmap(b.data, static_cast<size_t>(b.size));
  } else {
    std::free(b.data);
  }
}

char* HostMemory::take_lasting(int64_t size) {
  size = padded(size);
  if (shared_left_ < size) {
    lasting_.push_back(make_block(std::max(size, std::clamp(shared_total_, kAlignment, kMostShared)), true));
    shared_end_ = lasting_.back().data + lasting_.back().size;
    shared_left_ = lasting_.back().size;
    shared_total_ += lasting_.back().size;
  }
  char* p = shared_end_ - shared_left_;
  shared_left_ -= size;
  return p;
}

char* HostMemory::take_scratch(int64_t size) {
  size = padded(size);
  if (scratch_.empty() || scratch_offset_ + size > scratch_.back().size) {
    const int64_t grown = scratch_.empty() ? kFirstScratch : scratch_.back().size * 2;
    scratch_.push_back(make_block(std::max(size, grown), true));
    scratch_offset_ = 0;
  }
  char* p = scratch_.back().data + scratch_offset_;
  scratch_offset_ += size;
  scratch_step_ += size;
  scratch_peak_ = std::max(scratch_peak_, scratch_step_);
  return p;
}

Tensor HostMemory::alloc(MemoryKind kind, DType dtype, std::initializer_list<int64_t> shape) {
  Tensor t(nullptr, dtype, shape);
  const int64_t size = t.n_bytes();
  int64_t& counted = bytes_[static_cast<int>(kind)];
  if (kind == MemoryKind::kScratch) {
    t.data = take_scratch(size);
    scratch_requested_ += size;
    counted = std::max(counted, scratch_requested_);
    return t;
  }
  counted += size;
  if (kind == MemoryKind::kCache) {
    lasting_.push_back(make_block(size, false));
    t.data = lasting_.back().data;
  } else {
    t.data = take_lasting(size);
  }
  return t;
}

void HostMemory::begin_step() {
  if (scratch_.size() > 1) {
    for (const Block& b : scratch_) free_block(b);
    scratch_.clear();
    scratch_.push_back(make_block(scratch_peak_, true));
  }
  scratch_offset_ = scratch_step_ = scratch_peak_ = scratch_requested_ = 0;
}

ScratchMark HostMemory::mark() const {
  return {static_cast<int64_t>(scratch_.size()), scratch_offset_, scratch_step_, scratch_requested_};
}

void HostMemory::release(const ScratchMark& m) {
  // A block that was chained meanwhile stays, empty again; the rest of the one before is lost until the next step.
  scratch_offset_ = static_cast<int64_t>(scratch_.size()) == m.block ? m.offset : 0;
  scratch_step_ = m.padded;
  scratch_requested_ = m.requested;
}

}  // namespace braid
