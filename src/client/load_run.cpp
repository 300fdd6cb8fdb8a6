#include "client/load_run.h"

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "client/http_loop.h"
#include "client/sse.h"

namespace braid {
namespace {

using SteadyClock = std::chrono::steady_clock;

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

class LoadGenerator {
 public:
  LoadGenerator(const LoadOptions& options, std::span<const BenchPrompt> prompts, Progress& progress)
      : options_(options), prompts_(prompts), progress_(progress), loop_(options.url) {
    result_.records.resize(prompts.size());
  }

  LoadResult run() {
    const std::vector<double> arrivals =
        arrival_times(prompts_.size(), options_.request_rate, options_.burstiness, options_.seed);
    start_ = SteadyClock::now();
    for (double seconds : arrivals) {
      loop_.at(start_ + std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(seconds)),
               [this] {
                 ++n_due_;
                 start_due();
               });
    }
    loop_.run();
    result_.seconds = last_end_s_;
    return std::move(result_);
  }

 private:
  struct Ask {
    explicit Ask(LoadGenerator& generator, size_t index)
        : record(generator.result_.records[index]), events([this](std::string_view data) { take(data); }) {}

    void take(std::string_view data) {
      if (data == "[DONE]") {
        done = true;
        return;
      }
      const Json event = Json::parse(data, nullptr, false);
      if (!event.is_object()) {
        record.error = "an event is not JSON: " + std::string(data.substr(0, 200));
        return;
      }
      if (event.contains("error")) record.error = to_string(event["error"]);
      if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
        record.prompt_tokens = usage->value("prompt_tokens", int64_t{0});
        record.output_tokens = usage->value("completion_tokens", int64_t{0});
      }
      if (const auto choices = event.find("choices"); choices != event.end() && !choices->empty()) {
        take_text((*choices)[0]);
      }
    }

    void take_text(const Json& choice) {
      const Json delta = choice.value("delta", Json::object());
      bool any = false;
      const auto add = [&](const Json& from, const char* field) {
        const auto it = from.find(field);
        if (it == from.end() || !it->is_string() || it->get_ref<const std::string&>().empty()) return;
        record.text += it->get_ref<const std::string&>();
        any = true;
      };
      add(choice, "text");
      add(delta, "content");
      add(delta, "reasoning_content");
      if (!any) return;
      const double now = seconds_since(sent);
      if (n_events++ == 0)
        record.ttft_s = now;
      else
        record.itl_s.push_back(now - last_event_s);
      last_event_s = now;
    }

    LoadRecord& record;
    SseParser events;
    SteadyClock::time_point sent = SteadyClock::now();
    double last_event_s = 0;
    int64_t n_events = 0;
    bool done = false;
  };

  void start_due() {
    while (next_ < n_due_ && (options_.max_concurrency == 0 || n_open_ < options_.max_concurrency)) start(next_++);
  }

  void start(size_t index) {
    ++n_open_;
    auto ask = std::make_shared<Ask>(*this, index);
    ask->record.start_s = seconds_since(start_);
    loop_.post(options_.route, body(prompts_[index]), options_.api_key,
               {.data = [ask](std::string_view piece) { ask->events.feed(piece); },
                .end = [this, ask](const HttpEnd& end) { finish(*ask, end); }});
  }

  void finish(Ask& ask, const HttpEnd& end) {
    LoadRecord& r = ask.record;
    r.latency_s = seconds_since(ask.sent);
    last_end_s_ = seconds_since(start_);
    if (r.error.empty() && !end.error.empty()) {
      r.error = end.status > 0 && end.status != 200 ? std::to_string(end.status) + ": " + end.error : end.error;
    }
    if (r.error.empty() && !ask.done) r.error = "the stream ended without [DONE]";
    if (r.error.empty() && r.output_tokens == 0) r.output_tokens = ask.n_events;
    --n_open_;
    progress_.add(1);
    start_due();
  }

  std::string body(const BenchPrompt& prompt) const {
    Json body = {{"model", options_.model},
                 {"max_tokens", prompt.n_output},
                 {"temperature", options_.temperature},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
    if (options_.ignore_eos) body["ignore_eos"] = true;
    if (options_.route.ends_with("/chat/completions")) {
      body["messages"] = Json::array({{{"role", "user"}, {"content", prompt.text}}});
    } else {
      body["prompt"] = prompt.text;
    }
    return to_string(body);
  }

  const LoadOptions& options_;
  const std::span<const BenchPrompt> prompts_;
  Progress& progress_;
  HttpLoop loop_;
  LoadResult result_;
  SteadyClock::time_point start_;
  size_t n_due_ = 0, next_ = 0;
  int n_open_ = 0;
  double last_end_s_ = 0;
};

}  // namespace

std::vector<double> arrival_times(size_t n, double rate, double burstiness, uint64_t seed) {
  std::vector<double> times(n, 0.0);
  if (std::isinf(rate)) return times;
  std::mt19937_64 generator(seed);
  std::gamma_distribution<double> interval(burstiness, 1 / (rate * burstiness));  // its mean is 1 / rate
  for (size_t i = 1; i < n; ++i) times[i] = times[i - 1] + interval(generator);
  return times;
}

LoadResult run_load(const LoadOptions& options, std::span<const BenchPrompt> prompts, Progress& progress) {
  return LoadGenerator(options, prompts, progress).run();
}

}  // namespace braid
