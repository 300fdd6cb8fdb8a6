#include "apps/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/foreign_options.h"
#include "base/error.h"
#include "base/json.h"

namespace braid {
namespace {

// CLI11 knows one-letter short options only: "-tp 2" becomes "--tp 2", "--max_num_seqs" becomes "--max-num-seqs".
std::string normalise(const std::string& argument) {
  if (argument.size() < 3 || argument[0] != '-') return argument;
  std::string s = argument[1] == '-' ? argument : std::isalpha(static_cast<unsigned char>(argument[1])) ? "-" + argument : argument;
  if (s.rfind("--", 0) != 0) return s;
  const size_t end = std::min(s.find('='), s.size());
  std::replace(s.begin(), s.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return s;
}

void apply_config_file(OptionTable& table, const std::string& path, std::vector<std::string>& problems) {
  try {
    const Json file = read_json_file(path);
    if (!file.is_object()) throw Error("{} must hold a JSON object of options", path);
    for (const auto& [name, value] : file.items()) {
      if (table.asked(name)) continue;  // the command line wins
      const std::string text = value.is_string() ? value.get<std::string>() : to_string(value);
      if (auto problem = table.set(name, text)) problems.push_back(path + ": " + *problem);
    }
  } catch (const Error& e) {
    problems.push_back(e.what());
  }
}

// Takes an option that only others have off the list, with its value. `next`: what follows it, if anything.
bool take_foreign(const std::string& name, bool has_value, const std::string* next, size_t& i, ParsedArguments& parsed) {
  const ForeignOption* foreign = foreign_option(name);
  if (!foreign) return false;
  const bool value_follows = !has_value && next && (foreign->value == ForeignValue::kOne || (foreign->value == ForeignValue::kOptional && next->rfind('-', 0) != 0));
  if (value_follows) ++i;
  (foreign->refused ? parsed.problems : parsed.notes)
      .push_back(fmt::format("--{}{}: {}", name, foreign->refused ? "" : " is accepted and changes nothing", foreign->reason));
  return true;
}

// In our spelling, values untouched, less the switches that were given a value, others' options, and a model's name that
// stands first without its option.
std::vector<std::string> in_our_spelling(OptionTable& table, const std::vector<std::string>& arguments, ParsedArguments& parsed) {
  std::vector<std::string> result;
  const bool names_model = !arguments.empty() && !arguments[0].empty() && arguments[0][0] != '-' && table.find("model");
  if (names_model) result = {"--model", arguments[0]};
  for (size_t i = names_model ? 1 : 0; i < arguments.size(); ++i) {
    std::string s = normalise(arguments[i]);
    const size_t equals = s.find('=');
    const std::string name = s.rfind("--", 0) == 0 ? s.substr(2, std::min(equals, s.size()) - 2) : "";
    const OptionRow* row = name.empty() ? nullptr : table.find(name);
    if (!row && !name.empty() && take_foreign(name, equals != std::string::npos, i + 1 < arguments.size() ? &arguments[i + 1] : nullptr, i, parsed)) continue;
    if (row && row->is_switch() && equals != std::string::npos) {
      parsed.problems.push_back(fmt::format("--{} is a switch and takes no value, got '{}'", row->name, s.substr(equals + 1)));
      continue;
    }
    result.push_back(std::move(s));
    const bool value_follows = equals == std::string::npos && (name == "config" || (row && !row->is_switch()));
    if (value_follows && i + 1 < arguments.size()) result.push_back(arguments[++i]);
  }
  return result;
}

// CLI11 stops at an option that lacks its value, which can only be the last argument; the others are still wanted.
void parse_all(CLI::App& app, std::vector<std::string> arguments, std::vector<std::string>& problems) {
  std::reverse(arguments.begin(), arguments.end());  // CLI11 wants them last first
  while (true) {
    try {
      std::vector<std::string> left = arguments;
      return app.parse(left);
    } catch (const CLI::ParseError& e) {
      problems.push_back(e.what());
      if (arguments.empty()) return;
      arguments.erase(arguments.begin());
    }
  }
}

}  // namespace

ParsedArguments parse_arguments(OptionTable& table, const std::vector<std::string>& arguments) {
  ParsedArguments parsed;
  CLI::App app;
  app.allow_extras();
  app.set_help_flag();
  std::string config_file;
  app.add_flag("-h,--help", parsed.help);
  app.add_option("--config", config_file);
  std::map<std::string, std::vector<std::string>> values;
  std::map<std::string, int> on, off;
  for (const OptionRow& row : table.rows()) {
    std::string names = "--" + row.name, no_names = "--no-" + row.name;
    for (const std::string& alias : row.aliases) names += ",--" + alias, no_names += ",--no-" + alias;
    if (row.is_switch()) {
      app.add_flag(names, on[row.name])->disable_flag_override();
      app.add_flag(no_names, off[row.name])->disable_flag_override();
    } else {
      app.add_option(names, values[row.name])->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->allow_extra_args(false);
    }
  }
  parse_all(app, in_our_spelling(table, arguments, parsed), parsed.problems);
  if (parsed.help) return parsed;
  for (const std::string& extra : app.remaining()) {
    if (extra.rfind("--", 0) != 0) {
      parsed.problems.push_back(fmt::format("argument '{}' belongs to no option (a switch takes no value)", extra));
      continue;
    }
    const std::string name = extra.substr(2, std::min(extra.find('='), extra.size()) - 2);
    parsed.problems.push_back(fmt::format("--{} is unknown; did you mean --{}?", name, table.nearest(name)));
  }
  auto take = [&](const std::string& name, const std::string& text) {
    if (auto problem = table.set(name, text)) parsed.problems.push_back(*problem);
  };
  for (const auto& [name, given] : values) {
    if (!given.empty()) take(name, given.back());  // the last one wins, as elsewhere
  }
  for (const auto& [name, count] : on) {
    if (count > 0) take(name, "true");
  }
  for (const auto& [name, count] : off) {
    if (count > 0) take(name, "false");
    if (count > 0 && on[name] > 0) parsed.problems.push_back(fmt::format("--{} and --no-{} contradict each other", name, name));
  }
  if (!config_file.empty()) apply_config_file(table, config_file, parsed.problems);
  return parsed;
}

std::string help_text(const std::string& command, const std::string& summary, const OptionTable& table) {
  std::string text = fmt::format("braid {} — {}\n\nusage: braid {} [options]\n", command, summary, command);
  std::string group;
  for (const OptionRow& row : table.rows()) {
    if (row.group != group) text += fmt::format("\n{}:\n", group = row.group);
    std::string names = "--" + row.name;
    for (const std::string& alias : row.aliases) names += fmt::format(", {}{}", alias.size() <= 3 ? "-" : "--", alias);
    std::string details = row.help;
    if (!row.choices.empty()) details += fmt::format(" [{}]", fmt::join(row.choices, "|"));
    if (row.is_switch() && row.default_text == "on") details += fmt::format(" (on; --no-{} turns it off)", row.name);
    else if (!row.is_switch() && !row.default_text.empty()) details += fmt::format(" ({})", row.default_text);
    text += names.size() < 34 ? fmt::format("  {:<34} {}\n", names, details) : fmt::format("  {}\n  {:<34} {}\n", names, "", details);
  }
  return text + "\n  --config FILE.json                 values for options not given here\n";
}

}  // namespace braid
