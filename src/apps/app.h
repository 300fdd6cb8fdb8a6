// What every subcommand shares. Data goes to stdout, everything else to stderr. Exit 0: done and passed; 1: a check failed or a
// run-time error; 2: wrong flags or files.
#pragma once
#include <string>
#include <vector>

#include "base/option_table.h"

namespace braid {

inline constexpr int kOk = 0, kFailed = 1, kUsage = 2;

struct Arguments {
  std::vector<std::string> words;  // after the subcommand
};

// Parses into `table` and appends what is wrong to `problems`, so that the command can add what it finds itself and refuse()
// all of it at once. True: help was asked for and printed, there is nothing else to do.
bool parse_or_help(const std::string& command, const std::string& summary, OptionTable& table, const Arguments&,
                   std::vector<std::string>& problems);

// Prints the problems, a line each, and returns kUsage.
int refuse(const std::string& command, const std::vector<std::string>& problems);

int run_serve(const Arguments&);
int run_generate(const Arguments&);
int run_verify(const Arguments&);
int run_eval(const Arguments&);
int run_plan(const Arguments&);
int run_render(const Arguments&);
int run_bench(const Arguments&);
int run_chat(const Arguments&);

}  // namespace braid
