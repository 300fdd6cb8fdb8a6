// One row per option: name, aliases, type, range, help, and where the value goes. Flags, --config files, /server_info and
// help text all come from these rows; nothing else reads the command line, and nothing at all reads the environment for
// settings. Setting a value never throws: problems are collected so that all of them can be reported together.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace braid {

struct OptionRow {
  using Target = std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*>;
  std::string name;                  // "tensor-parallel-size"
  std::vector<std::string> aliases;  // "tp", other long spellings
  Target target;
  std::string help;
  std::string group;                 // heading in --help
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices;  // for strings; empty: anything
  std::string default_text;          // filled by add()
  std::string asked;                 // as given; empty: not given
  bool is_switch() const { return std::holds_alternative<bool*>(target); }
};

class OptionTable {
 public:
  explicit OptionTable(std::string group = "options") : group_(std::move(group)) {}

  // Each keeps the target's present value as the default. Returns the row for further settings (range, choices).
  OptionRow& add(std::string name, OptionRow::Target target, std::string help, std::vector<std::string> aliases = {});
  void set_group(std::string group) { group_ = std::move(group); }

  // Parses `text` for the option of that name or alias; for a switch the text is "true" or "false". Returns the
  // problem, if any.
  std::optional<std::string> set(const std::string& name, const std::string& text);
  OptionRow* find(const std::string& name);  // by name or alias, dashes and underscores alike; nullptr if unknown
  std::string nearest(const std::string& name) const;  // the known spelling with the smallest edit distance
  const std::vector<OptionRow>& rows() const { return rows_; }
  bool asked(const std::string& name);

 private:
  std::string group_;
  std::vector<OptionRow> rows_;
};

std::string value_text(const OptionRow::Target& target);
int64_t parse_bytes(const std::string& text);  // "141G" (10^9), "64GiB" (2^30), "512M", plain bytes; throws Error
int edit_distance(const std::string& a, const std::string& b);

}  // namespace braid
