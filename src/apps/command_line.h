// From argv to a filled option table. vLLM's and ATOM's habits are understood: -tp 2 as well as --tp 2, underscores for dashes,
// --no-NAME for a switch, the model as the first word, and options that only they have. All problems are collected, so that a user sees them together.
#pragma once
#include <string>
#include <vector>

#include "base/option_table.h"

namespace braid {

struct ParsedArguments {
  std::vector<std::string> problems;
  std::vector<std::string> notes;  // worth telling, nothing wrong
  bool help = false;
};

// `arguments` without the program's and the subcommand's names. A --config FILE.json gives values for options that the
// command line leaves out.
ParsedArguments parse_arguments(OptionTable& table, const std::vector<std::string>& arguments);

std::string help_text(const std::string& command, const std::string& summary, const OptionTable& table);

}  // namespace braid
