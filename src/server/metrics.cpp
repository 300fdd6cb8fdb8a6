// See metrics.h. The text format is Prometheus exposition 0.0.4: all samples of one name stand together.
#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace braid {

void Histogram::observe(double x, int64_t times) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), x) - bounds_.begin();
  counts_[bucket] += times;
  count_ += times;
  sum_ += x * static_cast<double>(times);
}

Counter& MetricsRegistry::counter(std::vector<std::string> names, std::string help, std::string labels) {
  families_.push_back({std::move(names), "counter", std::move(help), std::move(labels)});
  return families_.back().counter;
}

Histogram& MetricsRegistry::histogram(std::vector<std::string> names, std::string help,
                                      std::vector<double> upper_bounds) {
  families_.push_back({std::move(names), "histogram", std::move(help), ""});
  families_.back().histogram = Histogram(std::move(upper_bounds));
  return families_.back().histogram;
}

void MetricsRegistry::callback(std::vector<std::string> names, std::string type, std::string help,
                               std::function<double()> read, std::string labels) {
  families_.push_back({std::move(names), std::move(type), std::move(help), std::move(labels)});
  families_.back().read = std::move(read);
}

std::string MetricsRegistry::prometheus_text() const {
  std::map<std::string, std::string> by_name;  // name -> its lines
  for (const Family& f : families_) {
    const auto labels = [&](const std::string& extra) {
      std::string all = f.labels;
      for (const std::string* part : {&extra, &common_labels_})
        if (!part->empty()) all += fmt::format("{}{}", all.empty() ? "" : ",", *part);
      return all.empty() ? all : fmt::format("{{{}}}", all);
    };
    const double value = f.type == "histogram" ? 0 : f.read ? f.read() : f.counter.value;
    for (const std::string& name : f.names) {
      std::string& out = by_name[name];
      if (out.empty()) out = fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, f.help, name, f.type);
      if (f.type != "histogram") {
        out += fmt::format("{}{} {}\n", name, labels(""), value);
        continue;
      }
      int64_t below = 0;
      for (size_t i = 0; i <= f.histogram.bounds().size(); ++i) {
        below += f.histogram.counts()[i];
        const std::string bound =
            i == f.histogram.bounds().size() ? "+Inf" : fmt::format("{}", f.histogram.bounds()[i]);
        out += fmt::format("{}_bucket{} {}\n", name, labels(fmt::format("le=\"{}\"", bound)), below);
      }
      out += fmt::format("{}_sum{} {}\n{}_count{} {}\n", name, labels(""), f.histogram.sum(), name, labels(""),
                         f.histogram.count());
    }
  }
  std::string text;
  for (const auto& [name, lines] : by_name) text += lines;
  return text;
}

}  // namespace braid
