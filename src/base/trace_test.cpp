#include "base/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"

namespace braid {
namespace {

TEST(Trace, SpansOfThreadsAndOverlappingOnes) {
  const std::string file = ::testing::TempDir() + "trace.json";
  { const TraceSpan lost("before"); }
  start_trace(file);
  name_trace_thread("main \"thread\"");
  {
    const TraceSpan outer("outer", 7);
    const TraceSpan inner("inner");
    std::thread([] { const TraceSpan other("elsewhere"); }).join();
  }
  const auto now = std::chrono::steady_clock::now();
  trace_overlapping("request", "id\n1", now, now + std::chrono::milliseconds(2), 200);
  write_trace();
  { const TraceSpan lost("after"); }
  write_trace();  // off: writes nothing more

  std::map<std::string, Json> events;
  const Json trace = read_json_file(file);
  for (const Json& e : trace["traceEvents"]) events[e["ph"].get<std::string>() + e["name"].get<std::string>()] = e;
  EXPECT_EQ(events.size(), 7u);
  EXPECT_EQ(events["Mthread_name"]["args"]["name"], "main \"thread\"");
  EXPECT_EQ(events["Xouter"]["args"]["number"], 7);
  EXPECT_LE(events["Xouter"]["ts"], events["Xinner"]["ts"]);
  EXPECT_GE(events["Xouter"]["dur"], events["Xinner"]["dur"]);
  EXPECT_EQ(events["Xouter"]["tid"], events["Xinner"]["tid"]);
  EXPECT_NE(events["Xouter"]["tid"], events["Xelsewhere"]["tid"]);
  EXPECT_EQ(events["brequest"]["args"]["label"], "id\n1");
  EXPECT_EQ(events["brequest"]["id"], events["erequest"]["id"]);
  EXPECT_NEAR(events["erequest"]["ts"].get<double>() - events["brequest"]["ts"].get<double>(), 2000, 1);
}

TEST(Trace, KeepsTheLatest) {
  const std::string file = ::testing::TempDir() + "trace_ring.json";
  constexpr int64_t kCapacity = 1000, kMore = 10;
  start_trace(file, kCapacity);
  const auto now = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < kCapacity + kMore; ++i) trace_span("x", now, now, i);
  write_trace();
  std::vector<int64_t> numbers;
  const Json trace = read_json_file(file);
  for (const Json& e : trace["traceEvents"]) {
    if (e["ph"] == "X") numbers.push_back(e["args"]["number"]);
  }
  ASSERT_EQ(numbers.size(), static_cast<size_t>(kCapacity));
  EXPECT_EQ(numbers.front(), kMore);
  EXPECT_EQ(numbers.back(), kCapacity + kMore - 1);
  EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
}

}  // namespace
}  // namespace braid
