// Host memory: counting by kind, alignment, the life of scratch, and caches that cost nothing before they are used.
#include "ops/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

namespace braid {
namespace {

int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

bool aligned(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 64 == 0; }

TEST(HostMemory, CountsBytesByKindAsAskedFor) {
  HostMemory m;
  m.alloc(MemoryKind::kWeights, DType::kBF16, {3, 5});
  m.alloc(MemoryKind::kWeights, DType::kF32, {1});
  m.alloc(MemoryKind::kWorkspace, DType::kI32, {7});
  EXPECT_EQ(m.bytes(MemoryKind::kWeights), 34);
  EXPECT_EQ(m.bytes(MemoryKind::kWorkspace), 28);
  EXPECT_EQ(m.bytes(MemoryKind::kCache), 0);
}

TEST(HostMemory, EverythingIsAlignedAndEmptyTensorsHaveAnAddress) {
  HostMemory m;
  for (const MemoryKind kind :
       {MemoryKind::kWeights, MemoryKind::kCache, MemoryKind::kWorkspace, MemoryKind::kScratch}) {
    for (const int64_t n : {0, 1, 63, 100000}) {
      const Tensor t = m.alloc(kind, DType::kU8, {n});
      EXPECT_TRUE(t);
      EXPECT_TRUE(aligned(t));
      std::memset(t.data, 1, static_cast<size_t>(n));
    }
  }
}

TEST(HostMemory, ABigCacheIsCommittedWhenWritten) {
  HostMemory m;
  const int64_t before = resident_bytes();
  const Tensor t = m.alloc(MemoryKind::kCache, DType::kU8, {int64_t{8} << 30});
  static_cast<char*>(t.data)[int64_t{5} << 30] = 1;
  EXPECT_LT(resident_bytes() - before, int64_t{64} << 20);
  EXPECT_EQ(m.bytes(MemoryKind::kCache), int64_t{8} << 30);
}

TEST(HostMemory, ScratchIsReusedStepByStepAndBecomesOneBlock) {
  HostMemory m;
  m.begin_step();
  std::vector<Tensor> first;
  for (int i = 0; i < 40; ++i) {
    first.push_back(m.alloc(MemoryKind::kScratch, DType::kU8, {100000}));
    std::memset(first.back().data, i, 100000);
  }
  for (int i = 0; i < 40; ++i) EXPECT_EQ(static_cast<char*>(first[static_cast<size_t>(i)].data)[99999], i);
  EXPECT_EQ(m.bytes(MemoryKind::kScratch), 4000000);
  for (int step = 0; step < 3; ++step) {
    m.begin_step();
    const Tensor a = m.alloc(MemoryKind::kScratch, DType::kU8, {100000});
    char* last = static_cast<char*>(a.data);
    for (int i = 1; i < 40; ++i) {
      char* next = static_cast<char*>(m.alloc(MemoryKind::kScratch, DType::kU8, {100000}).data);
      EXPECT_EQ(next - last, 100032);  // neighbours: one block
      last = next;
    }
  }
  EXPECT_EQ(m.bytes(MemoryKind::kScratch), 4000000);
}

TEST(HostMemory, TemporariesGiveTheirScratchBack) {
  HostMemory m;
  m.begin_step();
  const Tensor kept = m.alloc(MemoryKind::kScratch, DType::kU8, {1000});
  void* inside = nullptr;
  {
    const ScratchMark outer = m.mark();
    inside = m.alloc(MemoryKind::kScratch, DType::kU8, {5000}).data;
    const ScratchMark inner = m.mark();
    m.alloc(MemoryKind::kScratch, DType::kU8, {10 << 20});  // chains a block
    m.release(inner);
    m.release(outer);
  }
  {
    const ScratchMark mark = m.mark();
    m.alloc(MemoryKind::kScratch, DType::kU8, {20});
    m.release(mark);
  }
  EXPECT_EQ(m.bytes(MemoryKind::kScratch), 1000 + 5000 + (10 << 20));
  const Tensor after = m.alloc(MemoryKind::kScratch, DType::kU8, {1000});
  EXPECT_NE(after.data, kept.data);
  m.begin_step();
  EXPECT_NE(m.alloc(MemoryKind::kScratch, DType::kU8, {1}).data, inside);
}

}  // namespace
}  // namespace braid
