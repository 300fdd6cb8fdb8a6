// braid eval: asks a file of questions, greedily, and scores the answers.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/app.h"
#include "apps/engine_run.h"
#include "apps/eval_set.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace braid {
namespace {

struct EvalOptions {
  EngineConfig engine;
  std::string data, tasks, url;
  int limit = 0;
  bool json = false;
};

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) words.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return words;
}

struct EvalResult {
  std::map<std::string, TaskScore> tasks;
  int prompt_mismatches = 0, unanswered = 0;
  double seconds = 0;
};

EvalResult ask_engine(const std::vector<EvalItem>& items, const std::string& tokenizer_dir, EngineLoop& engine) {
  const auto tokenizer = Tokenizer::load(tokenizer_dir);
  const ChatTemplateSource source = read_chat_template(tokenizer_dir);
  const ChatTemplate chat = ChatTemplate::compile(source.text, source.special_tokens);
  EvalResult result;
  Progress progress("eval", static_cast<int64_t>(items.size()), Progress::Unit::kCount);
  const auto start = std::chrono::steady_clock::now();
  Completions completions(engine);
  for (const EvalItem& item : items) {
    Request r;
    r.prompt = tokenizer->encode_chat(chat.render(OrderedJson::parse(item.request), local_now()));
    if (r.prompt != item.prompt_ids) {
      ++result.prompt_mismatches;
      log_warn("{}: the rendered prompt has other tokens than prompt_ids", item.id);
    }
    r.sampling.max_tokens = static_cast<int>(item.output_ids.size()) + 16;
    completions.submit(std::move(r));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    const Completion& c = completions.wait(i);
    progress.add(1);
    if (c.finish != FinishReason::kStop && c.finish != FinishReason::kLength) {
      ++result.unanswered;
      log_error("{} was not answered: {}", items[i].id, c.message);
      continue;
    }
    std::vector<int32_t> ids, spoken;
    std::vector<float> logprobs;
    for (const TokenOutput& t : c.tokens) ids.push_back(t.token), logprobs.push_back(t.logprob);
    spoken = ids;
    if (c.finish == FinishReason::kStop) spoken.pop_back();  // the end token
    score(items[i], tokenizer->decode(spoken, false), ids, logprobs, result.tasks[items[i].task]);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

void print_json(const EvalResult& r, const std::string& layout) {
  Json tasks = Json::object();
  for (const auto& [name, t] : r.tasks) {
    tasks[name] = {{"total", t.total}, {"correct", t.correct}, {"equal_transcripts", t.equal_transcripts}, {"max_abs_dlogprob", t.max_abs_dlogprob}};
  }
  const Json out = {{"tasks", tasks}, {"prompt_mismatches", r.prompt_mismatches}, {"seconds", r.seconds}, {"layout", layout}};
  std::printf("%s\n", to_string(out, 1).c_str());
}

void print_table(const EvalResult& r, const std::string& layout) {
  TaskScore all;
  auto line = [](const std::string& name, const TaskScore& t) {
    std::printf("%-12s %4d of %4d right, %4d transcripts equal, max |delta logprob| %.2g\n", name.c_str(), t.correct, t.total,
                t.equal_transcripts, t.max_abs_dlogprob);
  };
  for (const auto& [name, t] : r.tasks) {
    line(name, t);
    all.total += t.total, all.correct += t.correct, all.equal_transcripts += t.equal_transcripts;
    all.max_abs_dlogprob = std::max(all.max_abs_dlogprob, t.max_abs_dlogprob);
  }
  line("all", all);
  std::printf("%d prompts tokenised differently, %.1f s, %s\n", r.prompt_mismatches, r.seconds, layout.c_str());
}

}  // namespace

int run_eval(const Arguments& arguments) {
  EvalOptions o;
  OptionTable table("evaluation");
  table.add("data", &o.data, "JSON lines with messages, answer, prompt_ids, output_ids, output_logprobs");
  table.add("tasks", &o.tasks, "comma list of tasks; default: all");
  table.add("limit", &o.limit, "questions of each task; 0: all").min = 0;
  table.add("json", &o.json, "print a JSON object");
  add_engine_options(table, o.engine);
  std::vector<std::string> problems;
  if (parse_or_help("eval", "score a file of questions", table, arguments, problems)) return kOk;
  std::vector<EvalItem> items;
  try {
    if (o.data.empty()) throw Error("--data is missing: a file such as tests/data/demo/eval.jsonl");
    items = read_eval_set(o.data, split_list(o.tasks), o.limit);
  } catch (const Error& e) {
    problems.push_back(e.what());
  }
  const RankSetup setup = resolve(o.engine, problems);
  if (!problems.empty()) return refuse("eval", problems);

  const auto engine = start_engine(setup);
  if (!engine) return kOk;
  const EvalResult result = ask_engine(items, o.engine.tokenizer.empty() ? o.engine.model : o.engine.tokenizer, *engine);
  o.json ? print_json(result, layout_text(setup)) : print_table(result, layout_text(setup));
  print_counters(*engine);
  return result.unanswered == 0 ? kOk : kFailed;
}

}  // namespace braid
