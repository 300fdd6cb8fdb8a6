// Entry point: picks the subcommand and turns exceptions into exit codes.
#include <cstdio>
#include <cstring>
#include <functional>

#include "apps/app.h"
#include "apps/command_line.h"
#include "base/error.h"
#include "base/log.h"
#include "base/trace.h"

namespace braid {
namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Arguments&);
};

const Command kCommands[] = {
    {"serve", "answer over an OpenAI-compatible API", run_serve},
    {"chat", "a conversation in the terminal", run_chat},
    {"generate", "answer one prompt", run_generate},
    {"verify", "compare the engine's logits with a reference", run_verify},
    {"eval", "score a file of questions", run_eval},
    {"bench", "latency, throughput, decode steps, or load on a server", run_bench},
    {"render", "print the prompt that a chat template makes", run_render},
    {"plan", "memory and layout, without reading weights", run_plan},
};

int usage(std::FILE* to, int code) {
  std::fprintf(to, "braid %s: LLM serving for very long contexts\n\nusage: braid COMMAND [options]; braid COMMAND --help\n\n", BRAID_VERSION);
  for (const Command& c : kCommands) std::fprintf(to, "  %-10s %s\n", c.name, c.summary);
  return code;
}

int dispatch(int argc, char** argv) {
  if (argc < 2) return usage(stderr, kUsage);
  const std::string name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") return usage(stdout, kOk);
  if (name == "--version" || name == "version") return std::printf("braid %s\n", BRAID_VERSION), kOk;
  Arguments arguments;
  for (int i = 2; i < argc; ++i) arguments.words.push_back(argv[i]);
  for (const Command& c : kCommands) {
    if (name == c.name) return c.run(arguments);
  }
  std::fprintf(stderr, "braid: command '%s' is unknown\n\n", name.c_str());
  return usage(stderr, kUsage);
}

}  // namespace

bool parse_or_help(const std::string& command, const std::string& summary, OptionTable& table, const Arguments& arguments,
                   std::vector<std::string>& problems) {
  std::string log_level_name = "info", trace_file;
  table.set_group("output");
  table.add("log-level", &log_level_name, "least important log lines shown").choices = {"debug", "info", "warn", "error", "off"};
  table.add("trace", &trace_file, "write when each part of a step and each request ran to this file (Chrome trace) at the end");
  const ParsedArguments parsed = parse_arguments(table, arguments.words);
  if (parsed.help) {
    std::fputs(help_text(command, summary, table).c_str(), stdout);
    return true;
  }
  problems.insert(problems.end(), parsed.problems.begin(), parsed.problems.end());
  set_log_level(parse_log_level(log_level_name));
  if (!trace_file.empty()) start_trace(trace_file);
  for (const std::string& note : parsed.notes) log_info("{}", note);
  return false;
}

int refuse(const std::string& command, const std::vector<std::string>& problems) {
  for (const std::string& p : problems) std::fprintf(stderr, "braid %s: %s\n", command.c_str(), p.c_str());
  std::fprintf(stderr, "braid %s --help lists the options\n", command.c_str());
  return kUsage;
}

}  // namespace braid

namespace {

int guarded(const std::function<int()>& work) {
  try {
    return work();
  } catch (const braid::Error& e) {
    std::fprintf(stderr, "braid: %s\n", e.what());
    return braid::kUsage;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "braid: %s\n", e.what());
    return braid::kFailed;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int code = guarded([&] { return braid::dispatch(argc, argv); });
  const int written = guarded([] { return braid::write_trace(), braid::kOk; });
  return code != braid::kOk ? code : written;
}
