// An engine without a model: a thread that gives every live request its next token each step. What a request answers is
// the script's choice; the default echoes the prompt in upper case.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <set>
#include <thread>

#include "runtime/engine.h"
#include "server/testing/fake_text.h"

namespace braid {

struct FakeScript {
  std::string answer{};  // its bytes are the tokens; ends with the end token
  int tokens_per_step = 1;
  FinishReason fail = FinishReason::kNone;  // kRejected, kError: at once, with `message`
  std::string message{};
  int64_t cached_tokens = 0;
  bool hang = false;  // never answers
};

class FakeEngine final : public Engine {
 public:
  using Script = std::function<FakeScript(const Request&)>;

  explicit FakeEngine(Script script = upper_case, std::chrono::microseconds step_time = std::chrono::microseconds(0))
      : script_(std::move(script)), step_time_(step_time), thread_([this](std::stop_token stop) { loop(stop); }) {}
  ~FakeEngine() override {
    const std::scoped_lock lock(mutex_);  // not between the thread's check and its wait
    thread_.request_stop();
    wake_.notify_all();
  }

  static FakeScript upper_case(const Request& r) {
    FakeScript s;
    for (int32_t t : r.prompt) s.answer += static_cast<char>(t >= 'a' && t <= 'z' ? t - 'a' + 'A' : t);
    return s;
  }

  void submit(Request request, Sink sink) override {
    FakeScript script = script_(request);
    {
      const std::scoped_lock lock(mutex_);
      submitted_.push_back(request);
      live_.push_back({std::move(request), std::move(sink), std::move(script)});
    }
    wake_.notify_all();
  }
  void abort(RequestId id) override {
    const std::scoped_lock lock(mutex_);
    aborted_.insert(id);
    wake_.notify_all();
  }
  EngineStats stats() const override {
    const std::scoped_lock lock(mutex_);
    EngineStats s = stats_;
    s.n_running = static_cast<int64_t>(live_.size());
    return s;
  }
  EngineActivity activity() const override {
    EngineActivity a{.tp = 2, .dcp = 2, .ranks = {}, .steps = {}};
    a.ranks = {{0, 0, 30, 16, 160}, {1, 1, 29, 16, 160}};
    a.steps = {{7, 0.25, 40, 2}};
    return a;
  }
  std::string failure() const override {
    const std::scoped_lock lock(mutex_);
    return failure_;
  }
  bool reset_prefix_cache() override {
    const std::scoped_lock lock(mutex_);
    return live_.empty();
  }
  int64_t max_model_len() const override { return max_model_len_; }
  int vocab_size() const override { return kFakeVocab; }
  std::vector<OptionState> options() const override { return {{"block-size", "auto", "16", "the default"}}; }

  void set_failure(const std::string& why) {
    const std::scoped_lock lock(mutex_);
    failure_ = why;
  }
  void pause(bool on) {  // no step ends while paused
    const std::scoped_lock lock(mutex_);
    paused_ = on;
    wake_.notify_all();
  }
  std::vector<Request> submitted() const {
    const std::scoped_lock lock(mutex_);
    return submitted_;
  }
  size_t n_aborted() const {
    const std::scoped_lock lock(mutex_);
    return static_cast<size_t>(stats_.aborted);
  }
  size_t n_live() const {
    const std::scoped_lock lock(mutex_);
    return live_.size();
  }
  void set_max_model_len(int64_t n) { max_model_len_ = n; }

 private:
  struct Live {
    Request request;
    Sink sink;
    FakeScript script;
    int64_t n_made = 0;
  };

  void loop(std::stop_token stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      wake_.wait(lock, [&] { return stop.stop_requested() || (!live_.empty() && !paused_); });
      if (stop.stop_requested()) return;
      ++stats_.steps;
      std::vector<std::pair<Sink, Delta>> made;
      for (auto it = live_.begin(); it != live_.end();) it = step(*it, made) ? live_.erase(it) : std::next(it);
      const bool only_hanging =
          !live_.empty() && std::all_of(live_.begin(), live_.end(), [](const Live& l) { return l.script.hang; });
      lock.unlock();
      for (auto& [sink, delta] : made) sink(std::move(delta));
      std::this_thread::sleep_for(only_hanging ? std::max(step_time_, std::chrono::microseconds(1000)) : step_time_);
      lock.lock();
    }
  }

  // True: the request has ended. What it made is delivered after the lock, as a real engine does.
  bool step(Live& l, std::vector<std::pair<Sink, Delta>>& made) {
    Delta d;
    d.id = l.request.id;
    d.cached_tokens = l.script.cached_tokens;
    if (aborted_.erase(d.id)) {
      d.finish = FinishReason::kAborted;
      ++stats_.aborted;
    } else if (l.script.hang) {
      return false;
    } else if (l.script.fail != FinishReason::kNone) {
      d.finish = l.script.fail;
      d.message = l.script.message;
    } else {
      if (l.n_made == 0 && l.request.sampling.prompt_logprobs)
        for (size_t i = 1; i < l.request.prompt.size(); ++i)
          d.prompt_logprobs.push_back(output(l, l.request.prompt[i]));
      if (l.n_made == 0) stats_.prompt_tokens += static_cast<int64_t>(l.request.prompt.size());
      for (int i = 0; i < l.script.tokens_per_step && d.finish == FinishReason::kNone; ++i) make_token(l, d);
    }
    const bool ended = d.finish != FinishReason::kNone;
    made.emplace_back(l.sink, std::move(d));
    return ended;
  }

  void make_token(Live& l, Delta& d) {
    const bool end = l.n_made >= static_cast<int64_t>(l.script.answer.size());
    const int32_t token = end ? kFakeEnd : static_cast<uint8_t>(l.script.answer[l.n_made]);
    d.tokens.push_back(output(l, token));
    ++l.n_made;
    ++stats_.generated_tokens;
    const auto& stops = l.request.sampling.stop_token_ids;
    if ((end && !l.request.sampling.ignore_eos) || std::count(stops.begin(), stops.end(), token))
      d.finish = FinishReason::kStop;
    else if (l.n_made >= l.request.sampling.max_tokens)
      d.finish = FinishReason::kLength;
  }

  static TokenOutput output(const Live& l, int32_t token) {
    TokenOutput t{token, -0.25f, {}};
    for (int i = 0; i < l.request.sampling.n_top_logprobs; ++i)
      t.top.emplace_back((token + i) % kFakeVocab, -0.25f - static_cast<float>(i));
    return t;
  }

  Script script_;
  std::chrono::microseconds step_time_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Live> live_;
  std::set<RequestId> aborted_;
  std::vector<Request> submitted_;
  EngineStats stats_;
  std::string failure_;
  bool paused_ = false;
  std::atomic<int64_t> max_model_len_{4096};
  std::jthread thread_;
};

}  // namespace braid
