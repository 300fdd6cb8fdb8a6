// braid render: prints the prompt that a chat template makes of a request's body, and nothing else. Exit codes: 1 when the
// template does not compile or refuses the request, 2 for wrong flags and unreadable files.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/app.h"
#include "base/error.h"
#include "base/json.h"
#include "text/chat_template.h"

namespace braid {
namespace {

OrderedJson read_request(const std::string& path) {
  try {
    return OrderedJson::parse(read_text_file(path));
  } catch (const OrderedJson::parse_error& e) {
    throw Error("{} is not valid JSON: {}", path, e.what());
  }
}

}  // namespace

int run_render(const Arguments& arguments) {
  std::string model, template_file, request_file, bos, eos, now_text;
  OptionTable table("prompt");
  table.add("model", &model, "model folder: its template and special tokens");
  table.add("chat-template", &template_file, "a Jinja file instead");
  table.add("bos", &bos, "what the template sees as bos_token");
  table.add("eos", &eos, "what the template sees as eos_token");
  table.add("now", &now_text, "the time that strftime_now shows, such as 2026-01-15T10:30:00; default: now");
  table.add("request", &request_file, "JSON file: messages, tools, chat_template_kwargs, ...");
  std::vector<std::string> problems;
  if (parse_or_help("render", "print the prompt that a chat template makes", table, arguments, problems)) return kOk;
  if (model.empty() == template_file.empty()) problems.push_back("give either --model DIR or --chat-template FILE");
  if (request_file.empty()) problems.push_back("--request FILE.json is missing");
  if (!problems.empty()) return refuse("render", problems);

  ChatTemplateSource source;
  if (template_file.empty()) {
    source = read_chat_template(model);
  } else {
    source.text = read_text_file(template_file);
  }
  if (table.asked("bos")) set_special_token(source.special_tokens, "bos_token", bos);
  if (table.asked("eos")) set_special_token(source.special_tokens, "eos_token", eos);
  const OrderedJson request = read_request(request_file);
  const std::tm now = now_text.empty() ? local_now() : parse_iso_time(now_text);
  try {
    const std::string prompt = render_request(source, request, now);
    std::fwrite(prompt.data(), 1, prompt.size(), stdout);
    return std::fflush(stdout) == 0 ? kOk : kFailed;
  } catch (const Error& e) {
    std::fprintf(stderr, "braid render: %s\n", e.what());
    return kFailed;
  }
}

}  // namespace braid
