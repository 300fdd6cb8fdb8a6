#include "base/option_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace braid {
namespace {

std::string canonical(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

template <typename T>
bool parse_number(const std::string& text, T* value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end && !text.empty();
}

std::optional<std::string> set_bool(const OptionRow& row, bool* target, const std::string& text) {
  if (text != "true" && text != "false") return fmt::format("--{} is a switch and takes no value, got '{}'", row.name, text);
  *target = text == "true";
  return std::nullopt;
}

std::optional<std::string> set_string(const OptionRow& row, std::string* target, const std::string& text) {
  if (!row.choices.empty() && std::find(row.choices.begin(), row.choices.end(), text) == row.choices.end()) {
    return fmt::format("--{} '{}' is unknown; use {}", row.name, text, fmt::join(row.choices, ", "));
  }
  *target = text;
  return std::nullopt;
}

template <typename T>
std::optional<std::string> set_number(const OptionRow& row, T* target, const std::string& text) {
  T value{};
  if (!parse_number(text, &value)) {
    return fmt::format("--{} needs {}, got '{}'", row.name, std::is_floating_point_v<T> ? "a number" : "a whole number", text);
  }
  const double number = static_cast<double>(value);
  if (std::isnan(number) || number < row.min || number > row.max) {
    return fmt::format("--{} {} is outside {} to {}", row.name, text, row.min, row.max);
  }
  *target = value;
  return std::nullopt;
}

}  // namespace

std::string value_text(const OptionRow::Target& target) {
  return std::visit(
      [](auto* p) -> std::string {
        if constexpr (std::is_same_v<decltype(p), bool*>) return *p ? "on" : "off";
        else return fmt::format("{}", *p);
      },
      target);
}

OptionRow& OptionTable::add(std::string name, OptionRow::Target target, std::string help, std::vector<std::string> aliases) {
  BRAID_CHECK(find(name) == nullptr, "option {} declared twice", name);
  OptionRow row;
  row.name = std::move(name);
  row.aliases = std::move(aliases);
  row.target = target;
  row.help = std::move(help);
  row.group = group_;
  row.default_text = value_text(target);
  return rows_.emplace_back(std::move(row));
}

OptionRow* OptionTable::find(const std::string& name) {
  const std::string wanted = canonical(name);
  for (OptionRow& row : rows_) {
    if (canonical(row.name) == wanted) return &row;
    for (const std::string& alias : row.aliases) {
      if (canonical(alias) == wanted) return &row;
    }
  }
  return nullptr;
}

bool OptionTable::asked(const std::string& name) {
  const OptionRow* row = find(name);
  return row && !row->asked.empty();
}

std::optional<std::string> OptionTable::set(const std::string& name, const std::string& text) {
  OptionRow* row = find(name);
  if (!row) return fmt::format("--{} is unknown; did you mean --{}?", name, nearest(name));
  row->asked = text;
  return std::visit(
      [&](auto* target) -> std::optional<std::string> {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<T, bool>) return set_bool(*row, target, text);
        else if constexpr (std::is_same_v<T, std::string>) return set_string(*row, target, text);
        else return set_number(*row, target, text);
      },
      row->target);
}

int edit_distance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int best = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = row[j];
      row[j] = best;
    }
  }
  return row[b.size()];
}

std::string OptionTable::nearest(const std::string& name) const {
  std::string best;
  int best_distance = std::numeric_limits<int>::max();
  auto consider = [&](const std::string& candidate) {
    const int d = edit_distance(canonical(name), canonical(candidate));
    if (d < best_distance) best = candidate, best_distance = d;
  };
  for (const OptionRow& row : rows_) {
    consider(row.name);
    for (const std::string& alias : row.aliases) consider(alias);
  }
  return best;
}

int64_t parse_bytes(const std::string& text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(stop, text.data() + text.size());
  static const std::pair<const char*, double> kUnits[] = {
      {"", 1}, {"B", 1}, {"K", 1e3}, {"KB", 1e3}, {"M", 1e6}, {"MB", 1e6}, {"G", 1e9}, {"GB", 1e9}, {"T", 1e12}, {"TB", 1e12},
      {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
  for (const auto& [name, factor] : kUnits) {
    if (error == std::errc() && unit == name && value >= 0 && value * factor < 9e18) return static_cast<int64_t>(value * factor);
  }
  throw Error("'{}' is not a size; write 141G (10^9 bytes), 64GiB (2^30) or plain bytes", text);
}

}  // namespace braid
