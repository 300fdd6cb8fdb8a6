#include "client/distribution.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"

namespace braid {

double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const double rank = p / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Distribution distribution(std::vector<double> values, const std::vector<double>& percents) {
  std::sort(values.begin(), values.end());
  Distribution d;
  d.n = values.size();
  const auto n = static_cast<double>(std::max<size_t>(d.n, 1));
  d.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  d.median = percentile(values, 50);
  double squares = 0;
  for (double v : values) squares += (v - d.mean) * (v - d.mean);
  d.std = std::sqrt(squares / n);
  for (double p : percents) d.percentiles.emplace_back(p, percentile(values, p));
  return d;
}

std::vector<double> parse_percents(const std::string& text, const std::string& option) {
  std::vector<double> percents;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    double value = 0;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + comma, value);
    if (error != std::errc() || stop != text.data() + comma || !(value >= 0 && value <= 100)) {
      throw Error("--{} '{}' must be a comma list of numbers from 0 to 100, such as 50,99", option, text);
    }
    percents.push_back(value);
    at = comma + 1;
  }
  return percents;
}

std::string percent_name(double percent) { return fmt::format("p{:g}", percent); }

std::string report_line(const std::string& name, int64_t value) { return fmt::format("{:<40} {:<10}\n", name, value); }
std::string report_line(const std::string& name, double value) {
  return fmt::format("{:<40} {:<10.2f}\n", name, value);
}
std::string report_title(const std::string& title, char rule) {
  const size_t width = 50, n = title.size();
  const size_t left = n < width ? (width - n) / 2 : 0, right = n + left < width ? width - n - left : 0;
  return std::string(left, rule) + title + std::string(right, rule) + "\n";
}

std::string report_text(const std::string& title, const std::string& name, const Distribution& seconds) {
  std::string text = report_title(title, '-');
  text += report_line("Mean " + name + " (ms):", seconds.mean * 1e3);
  text += report_line("Median " + name + " (ms):", seconds.median * 1e3);
  for (const auto& [percent, value] : seconds.percentiles) {
    text += report_line(fmt::format("P{:g} {} (ms):", percent, name), value * 1e3);
  }
  return text;
}

void report_json(Json& to, const std::string& name, const Distribution& seconds) {
  to["mean_" + name + "_ms"] = seconds.mean * 1e3;
  to["median_" + name + "_ms"] = seconds.median * 1e3;
  to["std_" + name + "_ms"] = seconds.std * 1e3;
  for (const auto& [percent, value] : seconds.percentiles) to[percent_name(percent) + "_" + name + "_ms"] = value * 1e3;
}

}  // namespace braid
