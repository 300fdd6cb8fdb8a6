// Mean, median, deviation and percentiles of measured values, and the report made of them: text in the order and width
// that people's scripts read, JSON with the same names.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"

namespace braid {

struct Distribution {
  size_t n = 0;
  double mean = 0, median = 0, std = 0;                // population deviation
  std::vector<std::pair<double, double>> percentiles;  // (99, value), as asked
};

// Linear between neighbours, as numpy has it: rank p/100 (n - 1). Of no values: 0.
double percentile(const std::vector<double>& sorted, double p);
Distribution distribution(std::vector<double> values, const std::vector<double>& percents);

// "99,99.9" to numbers; throws Error for anything else or outside 0 to 100.
std::vector<double> parse_percents(const std::string& text, const std::string& option);
std::string percent_name(double percent);  // "p99", "p99.9"

// A line of the report: the name in 40 columns, then the value; doubles with two digits.
std::string report_line(const std::string& name, int64_t value);
std::string report_line(const std::string& name, double value);
std::string report_title(const std::string& title, char rule);  // centred in 50 columns

// A latency in milliseconds: title and lines, or fields mean_NAME_ms, median_NAME_ms, std_NAME_ms, p99_NAME_ms of `to`.
std::string report_text(const std::string& title, const std::string& name, const Distribution& seconds);
void report_json(Json& to, const std::string& name, const Distribution& seconds);

}  // namespace braid
