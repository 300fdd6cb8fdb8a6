#include "client/distribution.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace braid {
namespace {

TEST(Distribution, PercentilesAreLinearBetweenNeighbours) {
  // numpy.percentile([1, 2, 4, 8], [0, 25, 50, 90, 99, 100])
  const std::vector<double> v = {1, 2, 4, 8};
  EXPECT_DOUBLE_EQ(percentile(v, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(v, 25), 1.75);
  EXPECT_DOUBLE_EQ(percentile(v, 50), 3);
  EXPECT_DOUBLE_EQ(percentile(v, 90), 6.8);
  EXPECT_DOUBLE_EQ(percentile(v, 99), 7.88);
  EXPECT_DOUBLE_EQ(percentile(v, 100), 8);
  EXPECT_DOUBLE_EQ(percentile({3}, 99), 3);
  EXPECT_DOUBLE_EQ(percentile({}, 99), 0);
}

TEST(Distribution, Moments) {
  const Distribution d = distribution({8, 1, 4, 2}, {99});
  EXPECT_EQ(d.n, 4u);
  EXPECT_DOUBLE_EQ(d.mean, 3.75);
  EXPECT_DOUBLE_EQ(d.median, 3);
  EXPECT_NEAR(d.std, 2.6809513, 1e-6);  // numpy.std
  EXPECT_EQ(distribution({}, {50}).mean, 0);
}

TEST(Distribution, Percents) {
  EXPECT_EQ(parse_percents("25,50,99.9", "x"), (std::vector<double>{25, 50, 99.9}));
  for (const char* bad : {"", "a", "50,", "101", "-1", "nan"}) EXPECT_THROW(parse_percents(bad, "x"), Error) << bad;
  EXPECT_EQ(percent_name(99), "p99");
  EXPECT_EQ(percent_name(99.9), "p99.9");
}

TEST(Distribution, ReportInPeoplesWidths) {
  const Distribution d = distribution({0.001, 0.003}, {99});
  EXPECT_EQ(report_text("Time to First Token", "TTFT", d),
            "---------------Time to First Token----------------\n"
            "Mean TTFT (ms):                          2.00      \n"
            "Median TTFT (ms):                        2.00      \n"
            "P99 TTFT (ms):                           2.98      \n");
  Json j;
  report_json(j, "ttft", d);
  EXPECT_DOUBLE_EQ(j["mean_ttft_ms"], 2);
  EXPECT_DOUBLE_EQ(j["median_ttft_ms"], 2);
  EXPECT_DOUBLE_EQ(j["std_ttft_ms"], 1);
  EXPECT_NEAR(j["p99_ttft_ms"].get<double>(), 2.98, 1e-9);
}

}  // namespace
}  // namespace braid
