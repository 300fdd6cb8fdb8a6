// braid eval: asks a file of questions, greedily, and scores the answers.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>

#include "apps/app.h"
#include "apps/engine_run.h"
#include "apps/eval_set.h"
#include "client/http_client.h"
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

// The questions as tokens: rendered and tokenised here, whoever answers them.
class Prompts {
 public:
  explicit Prompts(const std::string& tokenizer_dir) : tokenizer_(Tokenizer::load(tokenizer_dir)), chat_(compile(tokenizer_dir)) {}
  const Tokenizer& tokenizer() const { return *tokenizer_; }

  std::vector<int32_t> of(const EvalItem& item, EvalResult& result) const {
    std::vector<int32_t> ids = tokenizer_->encode_chat(chat_.render(OrderedJson::parse(item.request), local_now()));
    if (ids != item.prompt_ids) {
      ++result.prompt_mismatches;
      log_warn("{}: the rendered prompt has other tokens than prompt_ids", item.id);
    }
    return ids;
  }

 private:
  static ChatTemplate compile(const std::string& dir) {
    const ChatTemplateSource source = read_chat_template(dir);
    return ChatTemplate::compile(source.text, source.special_tokens);
  }
  std::shared_ptr<const Tokenizer> tokenizer_;
  ChatTemplate chat_;
};

int most_tokens(const EvalItem& item) { return static_cast<int>(item.output_ids.size()) + 16; }

void ask_engine(const std::vector<EvalItem>& items, const Prompts& prompts, EngineLoop& engine, EvalResult& result) {
  Progress progress("eval", static_cast<int64_t>(items.size()), Progress::Unit::kCount);
  Completions completions(engine);
  for (const EvalItem& item : items) {
    Request r;
    r.prompt = prompts.of(item, result);
    r.sampling.max_tokens = most_tokens(item);
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
    score(items[i], prompts.tokenizer().decode(spoken, false), ids, logprobs, result.tasks[items[i].task]);
  }
}

// A server's answer to one question. The API gives the spelling of tokens, not their ids: where a spelling is the
// reference token's, that token was meant.
void score_reply(const EvalItem& item, const Json& reply, const Tokenizer& tokenizer, TaskScore& task) {
  const Json& choice = reply.at("choices").at(0);
  const auto spellings = choice.at("logprobs").at("tokens").get<std::vector<std::string>>();
  std::vector<int32_t> ids;
  for (size_t i = 0; i < spellings.size(); ++i) {
    const bool same = i < item.output_ids.size() && tokenizer.decode(std::span(&item.output_ids[i], 1), false) == spellings[i];
    ids.push_back(same ? item.output_ids[i] : -1);
  }
  // The end token ends the text without being part of it.
  if (choice.at("finish_reason") == "stop" && ids.size() + 1 == item.output_ids.size()) ids.push_back(item.output_ids.back());
  score(item, choice.at("text"), ids, choice.at("logprobs").at("token_logprobs").get<std::vector<float>>(), task);
}

void ask_server(const std::vector<EvalItem>& items, const Prompts& prompts, const HttpUrl& url, EvalResult& result) {
  constexpr int kConnections = 16;
  const std::string model = ask_json(url, "/v1/models", nullptr).at("data").at(0).at("id");
  Progress progress("eval", static_cast<int64_t>(items.size()), Progress::Unit::kCount);
  std::vector<Json> bodies;
  for (const EvalItem& item : items) {
    bodies.push_back({{"model", model}, {"prompt", prompts.of(item, result)}, {"max_tokens", most_tokens(item)}, {"temperature", 0},
                      {"logprobs", 1}, {"skip_special_tokens", false}});
  }
  std::atomic<size_t> next{0};
  std::mutex mutex;  // guards result
  auto ask = [&] {
    for (size_t i; (i = next++) < items.size();) {
      try {
        const Json reply = ask_json(url, "/v1/completions", bodies[i]);
        std::lock_guard lock(mutex);
        score_reply(items[i], reply, prompts.tokenizer(), result.tasks[items[i].task]);
      } catch (const std::exception& e) {
        std::lock_guard lock(mutex);
        ++result.unanswered;
        log_error("{} was not answered: {}", items[i].id, e.what());
      }
      progress.add(1);
    }
  };
  std::vector<std::thread> connections;
  for (int i = 0; i < kConnections; ++i) connections.emplace_back(ask);
  for (std::thread& t : connections) t.join();
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
  table.add("url", &o.url, "ask this OpenAI-compatible server (http://HOST:PORT) instead of an engine of our own");
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
  const bool remote = !o.url.empty();
  HttpUrl url;
  try {
    if (remote) url = parse_http_url(o.url);
    if (remote && o.engine.model.empty() && o.engine.tokenizer.empty()) throw Error("--url needs --model or --tokenizer too: questions are rendered here");
  } catch (const Error& e) {
    problems.push_back(e.what());
  }
  const RankSetup setup = remote ? RankSetup() : resolve(o.engine, problems);
  if (!problems.empty()) return refuse("eval", problems);

  const auto engine = remote ? nullptr : start_engine(setup);
  if (!engine && !remote) return kOk;  // a process of other ranks
  const Prompts prompts(tokenizer_folder(o.engine));
  EvalResult result;
  const auto start = std::chrono::steady_clock::now();
  remote ? ask_server(items, prompts, url, result) : ask_engine(items, prompts, *engine, result);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string layout = remote ? o.url : layout_text(setup);
  o.json ? print_json(result, layout) : print_table(result, layout);
  if (engine) print_counters(*engine);
  return result.unanswered == 0 ? kOk : kFailed;
}

}  // namespace braid
