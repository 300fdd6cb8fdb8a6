// braid render: prints the prompt that a chat template makes of a request's body, and nothing else. Exit codes: 1 when
// the template does not compile or refuses the request, 2 for wrong flags and unreadable files.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "text/chat_template.h"

namespace braid {
namespace {

struct RenderFlags {
  std::string model_dir, template_file, request_file;
  std::string bos, eos, now;
  bool has_bos = false, has_eos = false;
};

// The exit code when the program should end here, else -1.
int parse_flags(int argc, char** argv, RenderFlags& flags) {
  CLI::App app("Prints the prompt that a chat template makes of a chat request", "braid render");
  auto* model = app.add_option("--model", flags.model_dir, "model folder: its template and special tokens");
  auto* file = app.add_option("--chat-template", flags.template_file, "a Jinja file instead")->excludes(model);
  auto* bos = app.add_option("--bos", flags.bos, "what the template sees as bos_token");
  auto* eos = app.add_option("--eos", flags.eos, "what the template sees as eos_token");
  app.add_option("--now", flags.now, "the time that strftime_now shows, such as 2026-01-15T10:30:00; default: now");
  app.add_option("--request", flags.request_file, "JSON file: messages, tools, chat_template_kwargs, ...")->required();
  try {
    app.parse(argc, argv);
    if (model->empty() && file->empty()) throw CLI::RequiredError("--model or --chat-template");
  } catch (const CLI::ParseError& e) {
    const bool asked_for_help = e.get_exit_code() == 0;
    app.exit(e, asked_for_help ? std::cout : std::cerr, std::cerr);
    return asked_for_help ? 0 : 2;
  }
  flags.has_bos = !bos->empty();
  flags.has_eos = !eos->empty();
  return -1;
}

OrderedJson read_request(const std::string& path) {
  try {
    return OrderedJson::parse(read_text_file(path));
  } catch (const OrderedJson::parse_error& e) {
    throw Error("{} is not valid JSON: {}", path, e.what());
  }
}

int explain(const Error& e, int code) {
  fmt::print(stderr, "braid render: {}\n", e.what());
  return code;
}

}  // namespace

int run_render(int argc, char** argv) {
  RenderFlags flags;
  if (const int code = parse_flags(argc, argv, flags); code >= 0) return code;
  ChatTemplateSource source;
  OrderedJson request;
  std::tm now;
  try {
    if (flags.template_file.empty())
      source = read_chat_template(flags.model_dir);
    else
      source.text = read_text_file(flags.template_file);
    if (flags.has_bos) set_special_token(source.special_tokens, "bos_token", flags.bos);
    if (flags.has_eos) set_special_token(source.special_tokens, "eos_token", flags.eos);
    request = read_request(flags.request_file);
    now = flags.now.empty() ? local_now() : parse_iso_time(flags.now);
  } catch (const Error& e) {
    return explain(e, 2);
  }
  try {
    const std::string prompt = render_request(source, request, now);
    std::fwrite(prompt.data(), 1, prompt.size(), stdout);
    return std::fflush(stdout) == 0 ? 0 : 1;
  } catch (const Error& e) {
    return explain(e, 1);
  }
}

}  // namespace braid
