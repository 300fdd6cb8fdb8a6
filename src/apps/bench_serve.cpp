// braid bench serve: load on any OpenAI-compatible server, and the report that people compare servers by.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/bench.h"
#include "base/error.h"
#include "base/log.h"
#include "client/distribution.h"
#include "client/load_run.h"
#include "text/tokenizer.h"

namespace braid {
namespace {

struct BenchServeOptions {
  DatasetOptions data;
  LoadOptions load;
  std::string backend = "vllm", base_url, host = "127.0.0.1", endpoint, model, tokenizer, served_model_name;
  std::string percentile_metrics = "ttft,tpot,itl", metric_percentiles = "99", goodput;
  std::string result_dir, result_filename, metadata, tokenizer_mode = "auto";
  int port = 8000, n_warmups = 1;
  uint64_t seed = 0;
  bool save_result = false, save_detailed = false, json = false, disable_tqdm = false, trust_remote_code = false;
};

struct Metric {
  const char* name;   // in options and JSON
  const char* label;  // in the report
  const char* title;
};
constexpr Metric kMetrics[] = {{"ttft", "TTFT", "Time to First Token"},
                               {"tpot", "TPOT", "Time per Output Token (excl. 1st token)"},
                               {"itl", "ITL", "Inter-token Latency"},
                               {"e2el", "E2EL", "End-to-end Latency"}};

void add_bench_serve_options(OptionTable& t, BenchServeOptions& o) {
  t.add("backend", &o.backend, "API: completions, or chat for openai-chat").choices = {"vllm", "openai", "openai-chat"};
  t.add("base-url", &o.base_url, "http://HOST:PORT[/PATH]; wins over --host and --port");
  t.add("host", &o.host, "of the server");
  auto& port = t.add("port", &o.port, "of the server");
  port.min = 1, port.max = 65535;
  t.add("endpoint", &o.endpoint, "path; default: /v1/completions, or /v1/chat/completions for openai-chat");
  t.add("api-key", &o.load.api_key, "bearer token");
  t.add("model", &o.model, "name in requests; default: the first of /v1/models");
  t.add("served-model-name", &o.served_model_name, "name in requests, where --model is a folder");
  t.add("tokenizer", &o.tokenizer, "folder of the tokenizer that prompts are made with; default: --model");
  t.add("tokenizer-mode", &o.tokenizer_mode, "accepted: there is one mode").choices = {"auto", "slow", "mistral",
                                                                                       "custom"};
  t.add("trust-remote-code", &o.trust_remote_code, "accepted and ignored: no code is ever run");
  add_dataset_options(t, o.data);
  t.set_group("load");
  t.add("request-rate", &o.load.request_rate, "requests per second; inf: all at once").min = 1e-9;
  t.add("burstiness", &o.load.burstiness, "1: Poisson arrivals; less: in bursts; more: even").min = 1e-6;
  t.add("max-concurrency", &o.load.max_concurrency, "requests at a time; 0: no limit").min = 0;
  t.add("seed", &o.seed, "of prompts and arrivals");
  t.add("ignore-eos", &o.load.ignore_eos, "answers of exactly the length asked for");
  t.add("temperature", &o.load.temperature, "0: greedy").min = 0;
  t.add("num-warmups", &o.n_warmups, "requests before the run, one after another; the first one's failure ends it")
      .min = 0;
  t.set_group("report");
  t.add("percentile-metrics", &o.percentile_metrics, "comma list of ttft, tpot, itl, e2el");
  t.add("metric-percentiles", &o.metric_percentiles, "comma list of percentiles");
  t.add("goodput", &o.goodput, "limits in ms, such as ttft:200,tpot:50: counts requests that keep all of them");
  t.add("save-result", &o.save_result, "write the JSON to a file");
  t.add("save-detailed", &o.save_detailed, "each request's figures in it");
  t.add("result-dir", &o.result_dir, "folder of that file; default: this one");
  t.add("result-filename", &o.result_filename, "its name; default: by rate, model and time");
  t.add("metadata", &o.metadata, "comma list of KEY=VALUE to put into the JSON");
  t.add("disable-tqdm", &o.disable_tqdm, "no progress bar");
  t.add("json", &o.json, "print the JSON instead of the report");
}

std::vector<std::pair<std::string, std::string>> pairs(const std::string& text, char between,
                                                       const std::string& option) {
  std::vector<std::pair<std::string, std::string>> found;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const size_t middle = text.find(between, at);
    if (middle >= comma) throw Error("--{} '{}' must be a comma list of NAME{}VALUE", option, text, between);
    found.emplace_back(text.substr(at, middle - at), text.substr(middle + 1, comma - middle - 1));
    at = comma + 1;
  }
  return found;
}

// What the report is to hold, from the options.
struct ReportPlan {
  std::vector<double> percents;
  std::vector<const Metric*> metrics;
  std::map<std::string, double> limits_s;  // of --goodput
  std::vector<std::pair<std::string, std::string>> metadata;
};

const Metric* find_metric(const std::string& name) {
  for (const Metric& m : kMetrics) {
    if (name == m.name) return &m;
  }
  return nullptr;
}

ReportPlan plan_report(const BenchServeOptions& o) {
  ReportPlan plan;
  plan.percents = parse_percents(o.metric_percentiles, "metric-percentiles");
  for (size_t at = 0; at < o.percentile_metrics.size();) {
    const size_t comma = std::min(o.percentile_metrics.find(',', at), o.percentile_metrics.size());
    const std::string name = o.percentile_metrics.substr(at, comma - at);
    const Metric* metric = find_metric(name);
    if (!metric) throw Error("--percentile-metrics '{}' is unknown; use ttft, tpot, itl, e2el", name);
    plan.metrics.push_back(metric);
    at = comma + 1;
  }
  for (const auto& [name, value] : pairs(o.goodput, ':', "goodput")) {
    char* end = nullptr;
    const double ms = std::strtod(value.c_str(), &end);
    if (name != "ttft" && name != "tpot" && name != "e2el")
      throw Error("--goodput '{}' is unknown; use ttft, tpot, e2el", name);
    if (value.empty() || *end != 0 || !(ms >= 0)) throw Error("--goodput {} needs milliseconds, got '{}'", name, value);
    plan.limits_s[name] = ms * 1e-3;
  }
  plan.metadata = pairs(o.metadata, '=', "metadata");
  return plan;
}

// The values of a metric over all answered requests.
std::vector<double> values_of(const std::string& metric, const LoadResult& result) {
  std::vector<double> values;
  for (const LoadRecord& r : result.records) {
    if (!r.error.empty()) continue;
    if (metric == "ttft" && r.ttft_s > 0) values.push_back(r.ttft_s);
    if (metric == "tpot" && r.output_tokens > 1) values.push_back(r.tpot_s());
    if (metric == "itl") values.insert(values.end(), r.itl_s.begin(), r.itl_s.end());
    if (metric == "e2el") values.push_back(r.latency_s);
  }
  return values;
}

struct Totals {
  int64_t completed = 0, good = 0, input = 0, output = 0, events = 0;
  double latency_s = 0;
  std::map<std::string, int> errors;
};

Totals total(const LoadResult& result, const ReportPlan& plan) {
  Totals t;
  for (const LoadRecord& r : result.records) {
    if (!r.error.empty()) {
      ++t.errors[r.error];
      continue;
    }
    ++t.completed;
    t.input += r.prompt_tokens;
    t.output += r.output_tokens;
    t.events += static_cast<int64_t>(r.itl_s.size()) + (r.ttft_s > 0 ? 1 : 0);
    t.latency_s += r.latency_s;
    const std::map<std::string, double> values = {{"ttft", r.ttft_s}, {"tpot", r.tpot_s()}, {"e2el", r.latency_s}};
    bool good = true;
    for (const auto& [name, limit] : plan.limits_s) good = good && values.at(name) <= limit;
    t.good += good;
  }
  return t;
}

Json result_json(const BenchServeOptions& o, const LoadResult& result, const ReportPlan& plan) {
  const Totals t = total(result, plan);
  const double seconds = std::max(result.seconds, 1e-9);
  const auto rate = [&](int64_t n) { return static_cast<double>(n) / seconds; };
  const double asked_rate = o.load.request_rate;
  Json j = {{"backend", o.backend},
            {"model_id", o.load.model},
            {"endpoint", o.load.route},
            {"dataset_name", o.data.name},
            {"num_prompts", o.data.num_prompts},
            {"request_rate", std::isinf(asked_rate) ? Json("inf") : Json(asked_rate)},
            {"burstiness", o.load.burstiness},
            {"max_concurrency", o.load.max_concurrency},
            {"seed", o.seed},
            {"duration", result.seconds},
            {"completed", t.completed},
            {"failed", static_cast<int64_t>(result.records.size()) - t.completed},
            {"total_input_tokens", t.input},
            {"total_output_tokens", t.output},
            {"request_throughput", rate(t.completed)},
            {"output_throughput", rate(t.output)},
            {"total_token_throughput", rate(t.input + t.output)},
            {"concurrency", t.latency_s / seconds},
            {"output_tokens_per_event", t.events ? static_cast<double>(t.output) / static_cast<double>(t.events) : 0.0},
            {"errors", t.errors}};
  if (!plan.limits_s.empty()) j["request_goodput"] = rate(t.good);
  for (const Metric* m : plan.metrics) report_json(j, m->name, distribution(values_of(m->name, result), plan.percents));
  for (const auto& [key, value] : plan.metadata) j[key] = value;
  if (!o.save_detailed) return j;
  for (const LoadRecord& r : result.records) {
    j["input_lens"].push_back(r.prompt_tokens);
    j["output_lens"].push_back(r.output_tokens);
    j["start_times"].push_back(r.start_s);
    j["ttfts"].push_back(r.ttft_s);
    j["itls"].push_back(r.itl_s);
    j["latencies"].push_back(r.latency_s);
    j["generated_texts"].push_back(r.text);
    j["request_errors"].push_back(r.error);
  }
  return j;
}

std::string report(const LoadResult& result, const Json& j, const ReportPlan& plan) {
  const auto number = [&](const char* name) { return j.at(name).get<double>(); };
  const auto count = [&](const char* name) { return j.at(name).get<int64_t>(); };
  std::string text = report_title(" Serving Benchmark Result ", '=');
  text += report_line("Successful requests:", count("completed"));
  if (count("failed") > 0) {
    text += report_line("FAILED requests:", count("failed"));
    int shown = 0;
    for (const auto& [error, n] : j.at("errors").items()) {
      if (shown++ < 5) text += fmt::format("  {} times: {}\n", n.get<int>(), error.substr(0, 200));
    }
  }
  text += report_line("Benchmark duration (s):", number("duration"));
  text += report_line("Total input tokens:", count("total_input_tokens"));
  text += report_line("Total generated tokens:", count("total_output_tokens"));
  text += report_line("Request throughput (req/s):", number("request_throughput"));
  if (j.contains("request_goodput")) text += report_line("Request goodput (req/s):", number("request_goodput"));
  text += report_line("Output token throughput (tok/s):", number("output_throughput"));
  text += report_line("Total Token throughput (tok/s):", number("total_token_throughput"));
  text += report_line("Concurrency:", number("concurrency"));
  text += report_line("Output tokens per event:", number("output_tokens_per_event"));
  for (const Metric* m : plan.metrics) {
    text += report_text(m->title, m->label, distribution(values_of(m->name, result), plan.percents));
  }
  return text + report_title("", '=');
}

// Address, model name and tokenizer; asks the server for what was not said.
std::shared_ptr<const Tokenizer> resolve_target(BenchServeOptions& o) {
  o.load.url = parse_http_url(o.base_url.empty() ? fmt::format("http://{}:{}", o.host, o.port) : o.base_url);
  const bool chat = o.backend == "openai-chat";
  o.load.route = !o.endpoint.empty() ? o.endpoint : chat ? "/v1/chat/completions" : "/v1/completions";
  if (o.load.route[0] != '/') o.load.route = "/" + o.load.route;
  if (chat && !o.load.route.ends_with("/chat/completions")) {
    throw Error("--backend openai-chat needs an --endpoint that ends in /chat/completions, not {}", o.load.route);
  }
  if (o.tokenizer.empty() && o.model.empty()) {
    throw Error("--tokenizer DIR is missing: prompts are made of a tokenizer's tokens (--model DIR does as well)");
  }
  auto tokenizer = Tokenizer::load(o.tokenizer.empty() ? o.model : o.tokenizer);
  o.load.model = o.served_model_name.empty() ? o.model : o.served_model_name;
  return tokenizer;
}

std::string result_file(const BenchServeOptions& o) {
  std::string name = o.result_filename;
  if (name.empty()) {
    std::string model = o.load.model.substr(o.load.model.rfind('/') + 1);
    name = fmt::format("{}-{:g}qps-{}-{:%Y%m%d-%H%M%S}.json", o.backend, o.load.request_rate, model,
                       fmt::localtime(std::time(nullptr)));
  }
  return o.result_dir.empty() ? name : o.result_dir + "/" + name;
}

// The server is asked alone before it is loaded: what cannot work is said once, not a thousand times.
void warm_up(const BenchServeOptions& o, std::span<const BenchPrompt> prompts) {
  for (int i = 0; i < o.n_warmups; ++i) {
    Progress silent("", 1, Progress::Unit::kCount, false);
    const LoadResult r = run_load(o.load, prompts.subspan(static_cast<size_t>(i) % prompts.size(), 1), silent);
    if (!r.records[0].error.empty()) throw RuntimeFailure("the first request failed: " + r.records[0].error);
  }
}

}  // namespace

int run_bench_serve(const Arguments& arguments) {
  BenchServeOptions o;
  OptionTable table("server");
  add_bench_serve_options(table, o);
  std::vector<std::string> problems;
  if (parse_or_help("bench serve", "load on an OpenAI-compatible server", table, arguments, problems)) return kOk;
  check_dataset(o.data, true, problems);
  ReportPlan plan;
  std::shared_ptr<const Tokenizer> tokenizer;
  try {
    plan = plan_report(o);
    tokenizer = resolve_target(o);
  } catch (const Error& e) {
    problems.push_back(e.what());
  }
  if (!problems.empty()) return refuse("bench serve", problems);
  if (o.served_model_name.empty()) {  // a folder here may be known by another name there
    const Json cards = ask_json(o.load.url, "/v1/models", nullptr, o.load.api_key).at("data");
    bool known = false;
    for (const Json& card : cards) known = known || card.at("id") == o.load.model;
    if (!known && !cards.empty()) o.load.model = cards[0].at("id");
  }
  o.load.seed = o.seed;
  const std::vector<BenchPrompt> prompts = make_dataset(o.data, o.seed, tokenizer.get(), 0);
  log_info("{} requests to {}:{}{}, model {}", prompts.size(), o.load.url.host, o.load.url.port, o.load.route,
           o.load.model);
  warm_up(o, prompts);
  LoadResult result;
  {
    Progress progress("bench serve", static_cast<int64_t>(prompts.size()), Progress::Unit::kCount, !o.disable_tqdm);
    result = run_load(o.load, prompts, progress);
  }
  const Json json = result_json(o, result, plan);
  if (o.save_result || !o.result_filename.empty()) write_result_file(result_file(o), json);
  std::printf("%s", o.json ? (to_string(json, 1) + "\n").c_str() : report(result, json, plan).c_str());
  return json.at("failed") == 0 ? kOk : kFailed;
}

}  // namespace braid
