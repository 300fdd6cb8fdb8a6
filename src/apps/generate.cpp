// braid generate: answers one prompt and prints it.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/app.h"
#include "apps/engine_run.h"
#include "base/error.h"
#include "base/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace braid {
namespace {

struct GenerateOptions {
  EngineConfig engine;
  std::string prompt, messages;
  int max_tokens = -1;
  double temperature = 0, top_p = 1;
  int top_k = 0;
  bool ignore_eos = false;
  bool json = false;
};

OrderedJson read_messages(const std::string& file) {
  OrderedJson request;
  try {
    request = OrderedJson::parse(read_text_file(file));
  } catch (const OrderedJson::parse_error& e) {
    throw Error("{} is not valid JSON: {}", file, e.what());
  }
  if (request.is_array()) request = OrderedJson{{"messages", std::move(request)}};
  if (!request.is_object()) throw Error("{} must hold a JSON list of messages, not {}", file, request.type_name());
  request["add_generation_prompt"] = true;
  return request;
}

std::vector<int32_t> prompt_tokens(const GenerateOptions& o, const OrderedJson& request, const Tokenizer& tokenizer) {
  if (o.messages.empty()) return tokenizer.encode(o.prompt, true);
  const ChatTemplateSource source = read_chat_template(tokenizer_folder(o.engine));
  const ChatTemplate chat = ChatTemplate::compile(source.text, source.special_tokens);
  return tokenizer.encode_chat(chat.render(request, local_now()));
}

std::string answer_json(const Completion& c, const std::string& text, size_t n_prompt) {
  std::string ids, logprobs;
  for (const TokenOutput& t : c.tokens) {
    ids += fmt::format("{}{}", ids.empty() ? "" : ", ", t.token);
    logprobs += fmt::format("{}{:.9g}", logprobs.empty() ? "" : ", ", t.logprob);
  }
  // Written by hand: nine digits give a float back bit for bit.
  return fmt::format(
      "{{\"token_ids\": [{}], \"text\": {}, \"logprobs\": [{}], \"finish_reason\": \"{}\", \"usage\": {{\"prompt_tokens\": {}, "
      "\"completion_tokens\": {}, \"total_tokens\": {}, \"prompt_tokens_details\": {{\"cached_tokens\": {}}}}}}}",
      ids, to_string(Json(text)), logprobs, name_of(c.finish), n_prompt, c.tokens.size(), n_prompt + c.tokens.size(), c.cached_tokens);
}

}  // namespace

int run_generate(const Arguments& arguments) {
  GenerateOptions o;
  OptionTable table("request");
  table.add("prompt", &o.prompt, "raw text; BOS as the tokenizer adds it");
  table.add("messages", &o.messages, "file with a JSON list of chat messages, rendered with the model's template");
  auto& max_tokens = table.add("max-tokens", &o.max_tokens, "most tokens of the answer; -1: what is left of the context");
  max_tokens.min = -1, max_tokens.max = 1e9;
  table.add("temperature", &o.temperature, "0: greedy").min = 0;
  table.add("top-p", &o.top_p, "share of probability kept").max = 1;
  table.add("top-k", &o.top_k, "tokens kept; 0: all");
  table.add("ignore-eos", &o.ignore_eos, "go on after an end token, up to --max-tokens");
  table.add("json", &o.json, "print token_ids, text, logprobs, finish_reason and usage as JSON");
  add_engine_options(table, o.engine);
  std::vector<std::string> problems;
  if (parse_or_help("generate", "answer one prompt", table, arguments, problems)) return kOk;
  if (table.asked("prompt") == table.asked("messages")) problems.push_back("give either --prompt TEXT or --messages FILE");
  OrderedJson messages;
  try {
    if (!o.messages.empty()) messages = read_messages(o.messages);
  } catch (const Error& e) {
    problems.push_back(e.what());
  }
  const RankSetup setup = resolve(o.engine, problems);
  if (!problems.empty()) return refuse("generate", problems);
  const auto tokenizer = Tokenizer::load(tokenizer_folder(o.engine));

  Request request;
  request.prompt = prompt_tokens(o, messages, *tokenizer);
  request.sampling.max_tokens = o.max_tokens;
  request.sampling.temperature = static_cast<float>(o.temperature);
  request.sampling.top_p = static_cast<float>(o.top_p);
  request.sampling.top_k = o.top_k;
  request.sampling.ignore_eos = o.ignore_eos;
  request.sampling.seed = o.engine.seed;
  const size_t n_prompt = request.prompt.size();

  const auto engine = start_engine(setup);
  if (!engine) return kOk;
  Completions completions(*engine);
  const Completion& c = completions.wait(completions.submit(std::move(request)));
  if (c.finish != FinishReason::kStop && c.finish != FinishReason::kLength) {
    std::fprintf(stderr, "braid generate: %s\n", c.message.c_str());
    return kFailed;
  }
  std::vector<int32_t> ids;
  for (const TokenOutput& t : c.tokens) ids.push_back(t.token);
  const std::string text = tokenizer->decode(ids, true);
  std::printf("%s\n", o.json ? answer_json(c, text, n_prompt).c_str() : text.c_str());
  print_counters(*engine);
  return kOk;
}

}  // namespace braid
