// Counters, gauges and histograms that print themselves as Prometheus text. One thread writes and reads (the io
// thread), so the numbers are plain words.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace braid {

struct Counter {
  double value = 0;
  void add(double n = 1) { value += n; }
};

class Histogram {
 public:
  explicit Histogram(std::vector<double> upper_bounds)
      : bounds_(std::move(upper_bounds)), counts_(bounds_.size() + 1) {}
  void observe(double x, int64_t times = 1);
  int64_t count() const { return count_; }
  double sum() const { return sum_; }
  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<int64_t>& counts() const { return counts_; }  // per bucket, the last one is +Inf

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;
  int64_t count_ = 0;
  double sum_ = 0;
};

// Each family may have several names: a number is kept once and printed under braid's and vLLM's.
class MetricsRegistry {
 public:
  explicit MetricsRegistry(std::string common_labels) : common_labels_(std::move(common_labels)) {}

  // `labels` are printed before the common ones: `reason="stop"`, or empty. References stay valid.
  Counter& counter(std::vector<std::string> names, std::string help, std::string labels = "");
  Histogram& histogram(std::vector<std::string> names, std::string help, std::vector<double> upper_bounds);
  // Read when the text is made. `type`: "gauge" or "counter".
  void callback(std::vector<std::string> names, std::string type, std::string help, std::function<double()> read,
                std::string labels = "");

  std::string prometheus_text() const;

 private:
  struct Family {
    std::vector<std::string> names;
    std::string type, help, labels;
    Counter counter{};
    std::function<double()> read{};  // replaces the counter's value when set
    Histogram histogram{{}};
  };
  std::string common_labels_;
  std::deque<Family> families_;
};

}  // namespace braid
