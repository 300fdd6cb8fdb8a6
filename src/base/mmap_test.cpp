#include "base/mmap.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"

namespace braid {

TEST(MappedFile, HoldsTheBytesAndMoves) {
  const std::string path = ::testing::TempDir() + "braid_mapped";
  std::ofstream(path) << "hello";
  MappedFile first(path);
  const MappedFile second(std::move(first));
  ASSERT_EQ(second.bytes().size(), 5u);
  EXPECT_EQ(static_cast<char>(second.bytes()[1]), 'e');
  EXPECT_TRUE(first.bytes().empty());
}

TEST(MappedFile, EmptyFilesFoldersAndMissingFiles) {
  const std::string path = ::testing::TempDir() + "braid_empty";
  std::ofstream(path).flush();
  EXPECT_TRUE(MappedFile(path).bytes().empty());
  EXPECT_THROW(MappedFile(::testing::TempDir()), Error);
  EXPECT_THROW(MappedFile(path + ".missing"), Error);
}

}  // namespace braid
