// Collectives between threads: results against a sequential reference, counts, reports of skipped, late and failed
// ranks, and a stress run.
#include "comm/comm.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "comm/collective_cases.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  return ranks;
}

// Runs body(rank) on one thread per rank; returns what each threw ("" if nothing).
std::vector<std::string> run_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (const RuntimeFailure& failure) {
        errors[static_cast<size_t>(r)] = failure.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

void expect_all_quiet(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

class CommSizes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Comm, CommSizes, testing::Values(1, 2, 3, 4, 5, 6, 7, 8));

TEST_P(CommSizes, CollectivesMatchTheReference) {
  const int size = GetParam();
  auto world = make_world({size, 60});
  expect_all_quiet(run_ranks(size, [&](int rank) {
    auto comm = world->group(rank, "tp", all_ranks(size));
    for (uint64_t salt = 0; salt < 2; ++salt) test::CollectiveCases(*comm, salt).run();
  }));
}

TEST_P(CommSizes, RandomDelaysChangeNothing) {
  const int size = GetParam();
  auto world = make_world({size, 60});
  expect_all_quiet(run_ranks(size, [&](int rank) {
    auto comm = world->group(rank, "tp", all_ranks(size));
    std::mt19937 random(static_cast<uint32_t>(rank));
    auto delay = [&] {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 4 == 0 ? random() % 800 : 0));
    };
    test::CollectiveCases(*comm, 7, delay).run();
  }));
}

TEST(Comm, SumsFollowTheTree) {
  // 1e8 swallows a 1 that is added to it alone: each order of these gives another sum.
  const std::vector<float> x = {1e8f, 3, -1e8f, 5, 7, 1e8f, 11, -1e8f};
  const float want8 = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
  const float want6 = ((x[0] + x[1]) + (x[2] + x[3])) + (x[4] + x[5]);
  const float want3 = (x[0] + x[1]) + x[2];
  for (auto [size, want] : {std::pair{8, want8}, {6, want6}, {3, want3}}) {
    auto world = make_world({size, 60});
    expect_all_quiet(run_ranks(size, [&, size = size, want = want](int rank) {
      auto comm = world->group(rank, "tp", all_ranks(size));
      float v = x[static_cast<size_t>(rank)];
      comm->all_reduce(Tensor(&v, DType::kF32, {1}), "sum");
      if (std::memcmp(&v, &want, 4) != 0)
        throw RuntimeFailure(fmt::format("{} of {}: {} is not {}", rank, size, v, want));
    }));
  }
}

TEST(Comm, TreeCoversAreMinimal) {
  EXPECT_EQ(tree_cover(8, 4, 8), (std::vector<TreeNode>{{4, 8}}));
  EXPECT_EQ(tree_cover(8, 2, 7), (std::vector<TreeNode>{{2, 4}, {4, 6}, {6, 7}}));
  EXPECT_EQ(tree_cover(5, 0, 5), (std::vector<TreeNode>{{0, 5}}));
  EXPECT_EQ(tree_cover(6, 3, 6), (std::vector<TreeNode>{{3, 4}, {4, 6}}));
}

TEST(Comm, SubgroupsRunIndependently) {
  auto world = make_world({8, 60});
  expect_all_quiet(run_ranks(8, [&](int rank) {
    const int base = rank / 4 * 4;
    auto rows = world->group(rank, "tp", std::vector<int>{base, base + 1, base + 2, base + 3});
    auto columns = world->group(rank, "dp", std::vector<int>{rank % 4, rank % 4 + 4});
    for (int i = 0; i < 50; ++i) {
      float v = static_cast<float>(rank);
      rows->all_reduce(Tensor(&v, DType::kF32, {1}), "rows");
      if (v != static_cast<float>(4 * base + 6)) throw RuntimeFailure(fmt::format("rows: {}", v));
      columns->all_reduce(Tensor(&v, DType::kF32, {1}), "columns");
      if (v != 28) throw RuntimeFailure(fmt::format("columns: {}", v));
    }
  }));
}

TEST(Comm, CountsCallsAndContributedBytes) {
  for (int size : {1, 4}) {
    auto world = make_world({size, 60});
    expect_all_quiet(run_ranks(size, [&](int rank) {
      auto comm = world->group(rank, "tp", all_ranks(size));
      std::vector<float> x(10), all(static_cast<size_t>(10 * size));
      for (int i = 0; i < 3; ++i) comm->all_reduce(Tensor(x.data(), DType::kF32, {10}), "a");
      comm->all_gather(Tensor(all.data(), DType::kF32, {size, 10}), Tensor(x.data(), DType::kF32, {10}), "b");
      comm->broadcast(Tensor(x.data(), DType::kF32, {10}), 0, "c");
      const auto& counts = comm->counts();
      const int64_t unit = size == 1 ? 0 : 1;
      const bool right = counts.at("a").calls == 3 && counts.at("a").bytes == 120 * unit && counts.at("b").calls == 1 &&
                         counts.at("b").bytes == 40 * unit && counts.at("c").calls == 1 &&
                         counts.at("c").bytes == (rank == 0 ? 40 * unit : 0);
      if (!right) throw RuntimeFailure("wrong counts");
    }));
  }
}

TEST(Comm, SkippedCollectiveIsNamedAtOnce) {
  auto world = make_world({4, 8});
  const auto start = Clock::now();
  const auto errors = run_ranks(4, [&](int rank) {
    auto comm = world->group(rank, "tp", all_ranks(4));
    std::vector<float> x(16), all(64);
    world->set_step(rank, 12);
    comm->barrier("start");
    if (rank != 2) comm->all_reduce(Tensor(x.data(), DType::kF32, {16}), "attn_out");
    comm->all_gather(Tensor(all.data(), DType::kF32, {4, 16}), Tensor(x.data(), DType::kF32, {16}), "logits");
  });
  EXPECT_LT(seconds_since(start), 4.0);  // half a stall
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("ranks 0, 1 and 3 called step 12, group tp, all_reduce 'attn_out' #2 (64 bytes)"),
              std::string::npos)
        << error;
    EXPECT_NE(error.find("rank 2 called step 12, group tp, all_gather 'logits' #2 (64 bytes)"), std::string::npos);
  }
  EXPECT_EQ(world->failure(), errors[0]);
}

TEST(Comm, DifferentSizesAndStepsAreMismatches) {
  for (bool by_step : {false, true}) {
    auto world = make_world({2, 8});
    const auto errors = run_ranks(2, [&](int rank) {
      auto comm = world->group(rank, "tp", all_ranks(2));
      if (by_step) world->set_step(rank, rank);
      std::vector<float> x(32);
      const int64_t n = by_step || rank == 0 ? 32 : 31;
      comm->all_reduce(Tensor(x.data(), DType::kF32, {n}), "moe_out");
    });
    for (const std::string& error : errors) {
      EXPECT_NE(error.find(by_step ? "rank 1 called step 1" : "(124 bytes)"), std::string::npos) << error;
    }
  }
}

TEST(Comm, RankThatSkipsTheLastCollectiveIsNamedAfterTheStall) {
  auto world = make_world({4, 0.5});
  const auto start = Clock::now();
  const auto errors = run_ranks(4, [&](int rank) {
    auto comm = world->group(rank, "tp", all_ranks(4));
    float v = 0;
    world->set_step(rank, 3);
    comm->all_reduce(Tensor(&v, DType::kF32, {1}), "attn_out");
    if (rank != 1) comm->all_reduce(Tensor(&v, DType::kF32, {1}), "moe_out");
  });
  EXPECT_GT(seconds_since(start), 0.4);
  EXPECT_LT(seconds_since(start), 5.0);
  EXPECT_EQ(errors[1], "");
  for (int rank : {0, 2, 3}) {
    const std::string& error = errors[static_cast<size_t>(rank)];
    EXPECT_NE(error.find("step 3, group tp, all_reduce 'moe_out' #2 (4 bytes): rank 1 did not arrive, ranks 0, 2 and 3 "
                         "waited"),
              std::string::npos)
        << error;
    EXPECT_NE(error.find("rank 1 is computing in step 3 since step 3, group tp, all_reduce 'attn_out' #1"),
              std::string::npos)
        << error;
  }
}

TEST(Comm, RankStuckInAnotherGroupIsNamedWithItsPlace) {
  auto world = make_world({3, 0.5});
  const auto errors = run_ranks(3, [&](int rank) {
    auto all = world->group(rank, "world", all_ranks(3));
    auto pair = rank > 0 ? world->group(rank, "pair", std::vector<int>{1, 2}) : nullptr;
    if (rank == 0) all->barrier("end");
    if (rank == 1) pair->barrier("middle");  // rank 2 comes to neither
  });
  EXPECT_NE(errors[0].find("rank 2"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("rank 2"), std::string::npos) << errors[1];
  EXPECT_NE(errors[0].find("rank 1: waiting outside a step, group pair, barrier 'middle'"), std::string::npos);
}

TEST(Comm, FailEndsEveryWait) {
  auto world = make_world({4, 60});
  const auto start = Clock::now();
  const auto errors = run_ranks(4, [&](int rank) {
    auto comm = world->group(rank, "tp", all_ranks(4));
    if (rank == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      world->fail("the device of rank 3 died");
      world->fail("a second reason changes nothing");
    } else {
      comm->barrier("end");
    }
  });
  EXPECT_LT(seconds_since(start), 5.0);
  for (int rank : {0, 1, 2}) EXPECT_EQ(errors[static_cast<size_t>(rank)], "the device of rank 3 died");
  EXPECT_EQ(world->failure(), "the device of rank 3 died");
}

TEST(Comm, ManySmallCollectives) {
  constexpr int kCalls = 4000;
  auto world = make_world({8, 60});
  const auto start = Clock::now();
  expect_all_quiet(run_ranks(8, [&](int rank) {
    auto comm = world->group(rank, "tp", all_ranks(8));
    std::vector<float> x(64);
    for (int i = 0; i < kCalls; ++i) {
      for (float& v : x) v = static_cast<float>(rank + i);
      comm->all_reduce(Tensor(x.data(), DType::kF32, {64}), "stress");
      if (x[i % 64] != static_cast<float>(28 + 8 * i)) throw RuntimeFailure(fmt::format("call {}: {}", i, x[0]));
    }
  }));
  fmt::print("{} all_reduce of 256 bytes over 8 threads: {:.1f} us each\n", kCalls,
             seconds_since(start) / kCalls * 1e6);
}

TEST(Comm, EmptyWorldIsRefused) { EXPECT_THROW(make_world({0, 8}), Error); }

}  // namespace
}  // namespace braid
