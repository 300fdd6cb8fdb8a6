// See generation.h.
#include "server/generation.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "base/log.h"
#include "base/trace.h"
#include "server/api_error.h"

namespace braid {
namespace {

constexpr auto kShowHeadAfter = std::chrono::seconds(5);

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

// Choice 0 uses the request's seed itself; the others independent ones (splitmix64).
uint64_t choice_seed(uint64_t seed, int index) {
  if (index == 0) return seed;
  uint64_t z = seed + 0x9E3779B97F4A7C15ull * static_cast<uint64_t>(index);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

uint64_t random_seed() {
  static thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

}  // namespace

Generation::Generation(GenerationContext& context, std::shared_ptr<Exchange> exchange, PreparedRequest request,
                       std::string id, std::string model)
    : context_(context),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      id_(std::move(id)),
      writer_(request_.api.kind, id_, unix_seconds(), std::move(model), context.text),
      arrived_(exchange_->request().arrived) {}

void Generation::start() {
  const ApiRequest& api = request_.api;
  context_.live.insert(shared_from_this());
  exchange_->on_gone = [this] { on_gone(); };  // `live` holds this until the exchange has ended
  exchange_->on_drained = [this] { flush(); };
  context_.metrics.params_n.observe(api.n);
  for (size_t p = 0; p < request_.prompts.size(); ++p) {
    for (int i = 0; i < api.n; ++i) {
      Choice choice;
      choice.index = static_cast<int>(choices_.size());
      choice.prompt = static_cast<int>(p);
      choices_.push_back(std::move(choice));
    }
  }
  const uint64_t seed = api.seed ? *api.seed : random_seed();
  request_.api.seed = seed;
  for (Choice& choice : choices_) submit(choice);
}

void Generation::submit(Choice& choice) {
  const ApiRequest& api = request_.api;
  const PreparedPrompt& prompt = request_.prompts[choice.prompt];
  StreamSpec spec{.stop = api.stop, .include_stop = api.include_stop, .skip_special_tokens = api.skip_special_tokens};
  spec.parse_reasoning = api.kind == ApiKind::kChat && api.separate_reasoning;
  spec.parse_tools = api.parse_tools;
  spec.inside_reasoning = prompt.inside_reasoning;
  spec.tools = api.tools;
  choice.stream = context_.text.open_stream(spec);
  if (api.echo) choice.text.content = prompt.text;

  Request request;
  request.id = choice.engine_id = context_.engine.next_id();
  request.prompt = prompt.tokens;
  request.sampling = api.sampling;
  request.sampling.seed = choice_seed(*api.seed, choice.index % api.n);
  if (!request_.constraints.empty()) request.constraint = request_.constraints[choice.index];
  int& max_tokens = request.sampling.max_tokens;
  if (max_tokens < 0)
    max_tokens = static_cast<int>(context_.max_model_len - static_cast<int64_t>(prompt.tokens.size()));
  context_.metrics.params_max_tokens.observe(max_tokens);
  max_tokens = std::max(max_tokens, 1);  // with 0 the prompt is all that is wanted; its one token is dropped
  if (api.sampling.prompt_logprobs) choice.prompt_logprobs.resize(prompt.tokens.size());
  context_.by_id[request.id.value] = {this, choice.index};
  context_.engine.submit(std::move(request), [mailbox = context_.mailbox](Delta&& d) { mailbox->push(std::move(d)); });
}

void Generation::on_delta(int index, Delta&& delta, Clock::time_point now) {
  Choice& choice = choices_[index];
  if (delta.finish == FinishReason::kRejected) {
    release(choice, false);
    return fail(ApiError(400, "invalid_request_error", "", delta.message));
  }
  if (delta.finish == FinishReason::kError) {
    release(choice, false);
    const bool engine_lost = !context_.engine.failure().empty();
    return fail(ApiError(engine_lost ? 503 : 500, "server_error", "", delta.message));
  }
  admitted_ = true;
  if (choice.begun == Clock::time_point{}) {
    const std::chrono::duration<double> step(context_.engine.stats().last_step_seconds);
    choice.begun = std::max(arrived_, now - std::chrono::duration_cast<Clock::duration>(step));
  }
  choice.cached_tokens = std::max(choice.cached_tokens, delta.cached_tokens);
  for (size_t i = 0; i < delta.prompt_logprobs.size(); ++i) {
    const size_t position = delta.logits_start + 1 + i;
    if (position < choice.prompt_logprobs.size())
      choice.prompt_logprobs[position] = std::move(delta.prompt_logprobs[i]);
  }
  take_tokens(choice, delta, now);
  if (delta.finish != FinishReason::kNone && !choice.finished) {
    release(choice, false);
    finish(choice, delta.finish);
  }
}

void Generation::take_tokens(Choice& choice, Delta& delta, Clock::time_point now) {
  if (delta.tokens.empty() || request_.api.sampling.max_tokens == 0) return;
  const auto n = static_cast<int64_t>(delta.tokens.size());
  if (choice.n_output == 0) {
    choice.first_token = now;
    context_.metrics.ttft_s.observe(seconds_between(arrived_, now));
    if (n > 1) context_.metrics.inter_token_s.observe(0, n - 1);
  } else {
    context_.metrics.inter_token_s.observe(seconds_between(choice.last_token, now) / static_cast<double>(n), n);
  }
  choice.last_token = now;
  for (size_t i = 0; i < delta.tokens.size(); ++i) {
    const int32_t token = delta.tokens[i].token;
    ++choice.n_output;
    if (request_.api.logprobs) choice.logprobs.push_back(std::move(delta.tokens[i]));
    // The token that made the engine stop is an end or stop token: counted, but no text.
    const bool ends = delta.finish == FinishReason::kStop && i + 1 == delta.tokens.size();
    if (ends && !request_.api.include_stop) break;
    choice.stream->push(token, choice.text);
    if (const auto stop = choice.stream->stopped_by()) {  // what the same step made after it never existed
      choice.stop_string = *stop;
      release(choice, delta.finish == FinishReason::kNone);
      finish(choice, FinishReason::kStop);
      break;
    }
  }
}

void Generation::finish(Choice& choice, FinishReason reason) {
  if (choice.stop_string.empty()) choice.stream->finish(choice.text);
  if (!request_.api.parallel_tool_calls)
    std::erase_if(choice.text.tool_calls, [](const ToolCallDelta& c) { return c.index > 0; });
  choice.called_tool = choice.called_tool || !choice.text.tool_calls.empty();
  choice.finished = true;
  choice.stream = nullptr;
  choice.finish_reason = reason == FinishReason::kLength    ? "length"
                         : reason == FinishReason::kAborted ? "abort"
                         : choice.called_tool               ? "tool_calls"
                                                            : "stop";
  context_.metrics.request_finished(choice.finish_reason);
  context_.metrics.generation_tokens.observe(static_cast<double>(choice.n_output));
  if (choice.n_output > 0) {
    context_.metrics.queue_s.observe(seconds_between(arrived_, choice.begun));
    context_.metrics.prefill_s.observe(seconds_between(choice.begun, choice.first_token));
    context_.metrics.decode_s.observe(seconds_between(choice.first_token, choice.last_token));
    context_.metrics.inference_s.observe(seconds_between(choice.begun, choice.last_token));
  }
  if (choice.n_output > 1)
    context_.metrics.time_per_output_token_s.observe(seconds_between(choice.first_token, choice.last_token) /
                                                     static_cast<double>(choice.n_output - 1));
}

void Generation::release(Choice& choice, bool abort) {
  if (context_.by_id.erase(choice.engine_id.value) > 0 && abort) context_.engine.abort(choice.engine_id);
}

void Generation::release_all() {
  for (Choice& choice : choices_) release(choice, true);
}

void Generation::flush() {
  if (ended_ || !admitted_) return;
  const bool all_finished = std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.finished; });
  if (!request_.api.stream) {
    if (all_finished) send_whole();
    return;
  }
  open_stream();
  // A client that does not read: keep merging; on_drained comes back here.
  if (exchange_->backlog_bytes() <= Exchange::kBacklogHigh) write_events();
}

void Generation::open_stream() {
  if (std::exchange(stream_open_, true)) return;
  exchange_->start_stream(head(200, "text/event-stream; charset=utf-8"));
}

void Generation::write_events() {
  std::string events;
  const auto visible = [](const Choice& c) { return c.n_output > 0 || c.finished || !c.text.empty(); };
  if (!roles_sent_ && std::any_of(choices_.begin(), choices_.end(), visible)) {
    roles_sent_ = true;
    if (request_.api.kind == ApiKind::kChat)
      for (const Choice& c : choices_) writer_.role_event(events, c.index);
  }
  bool all_sent = true;
  for (Choice& c : choices_) {
    if (!request_.api.parallel_tool_calls)
      std::erase_if(c.text.tool_calls, [](const ToolCallDelta& call) { return call.index > 0; });
    if (!c.text.empty()) {
      c.called_tool = c.called_tool || !c.text.tool_calls.empty();
      writer_.delta_events(events, view(c));
      c.text = {};
      c.logprobs.clear();
    }
    if (c.finished && !std::exchange(c.finish_sent, true)) {
      writer_.finish_event(events, view(c));
      c.logprobs.clear();
    }
    all_sent = all_sent && c.finish_sent;
  }
  if (all_sent) {
    if (request_.api.include_usage) writer_.usage_event(events, usage());
    OpenAiWriter::done_event(events);
  }
  exchange_->write(events);
  if (!all_sent) return;
  exchange_->end();
  end(200);
}

void Generation::send_whole() {
  std::vector<ChoiceView> views;
  for (const Choice& c : choices_) views.push_back(view(c));
  HttpReply reply = head(200, "application/json");
  writer_.whole_reply(reply.body, views, usage());
  exchange_->reply(std::move(reply));
  end(200);
}

void Generation::fail(const ApiError& error) {
  if (ended_) return;
  release_all();
  context_.metrics.request_finished("error");
  if (stream_open_) {
    std::string events;
    OpenAiWriter::error_event(events, error);
    OpenAiWriter::done_event(events);
    exchange_->write(events);
    exchange_->end();
  } else {
    HttpReply reply = head(error.status, "application/json");
    reply.body = error_body(error);
    exchange_->reply(std::move(reply));
    context_.metrics.http_errors.add();
  }
  log_warn("request {}: {}", id_, error.what());
  end(error.status);
}

void Generation::cut_short() {
  if (ended_) return;
  if (!admitted_) return fail(ApiError(503, "server_error", "", "the server is shutting down"));
  for (Choice& choice : choices_) {
    if (choice.finished) continue;
    release(choice, true);
    finish(choice, FinishReason::kAborted);
  }
  flush();
}

void Generation::on_wait(Clock::time_point now) {
  if (!ended_ && request_.api.stream && !stream_open_ && now - arrived_ > kShowHeadAfter) open_stream();
}

void Generation::on_gone() {
  if (ended_) return;
  release_all();
  context_.metrics.disconnects.add();
  context_.metrics.request_finished("abort");
  end(499);
}

// The one line per request. Nothing of the client's text is in it.
void Generation::end(int status) {
  ended_ = true;
  const auto self = shared_from_this();  // `live` may hold the only other reference; callers do nothing more
  context_.live.erase(self);
  const Usage u = usage();
  const auto now = Clock::now();
  double ttft = -1;
  for (const Choice& c : choices_)
    if (c.n_output > 0 && (ttft < 0 || seconds_between(arrived_, c.first_token) < ttft))
      ttft = seconds_between(arrived_, c.first_token);
  const double total = seconds_between(arrived_, now);
  if (status == 200) {
    context_.metrics.e2e_s.observe(total);
    context_.metrics.prompt_tokens.observe(static_cast<double>(u.prompt_tokens));
  }
  const std::string finish = choices_.empty() || choices_[0].finish_reason.empty() ? "none" : choices_[0].finish_reason;
  trace_overlapping("request", id_, arrived_, now, status);
  log_info(
      "request id={} status={} stream={} choices={} prompt_tokens={} cached_tokens={} output_tokens={} ttft_ms={:.1f} "
      "total_ms={:.1f} finish={}",
      id_, status, request_.api.stream, choices_.size(), u.prompt_tokens, u.cached_tokens, u.completion_tokens,
      ttft < 0 ? -1 : ttft * 1e3, total * 1e3, finish);
}

ChoiceView Generation::view(const Choice& c) const {
  ChoiceView v{.index = c.index,
               .text = &c.text,
               .logprobs = c.logprobs,
               .finish_reason = c.finish_reason,
               .stop_string = c.stop_string};
  if (request_.api.sampling.prompt_logprobs) {
    v.prompt = request_.prompts[c.prompt].tokens;
    v.prompt_logprobs = c.prompt_logprobs;
  }
  return v;
}

Usage Generation::usage() const {
  Usage u;
  for (const Choice& c : choices_) {
    u.completion_tokens += c.n_output;
    if (c.index % request_.api.n != 0) continue;  // siblings share the prompt
    u.prompt_tokens += static_cast<int64_t>(request_.prompts[c.prompt].tokens.size());
    u.cached_tokens += c.cached_tokens;
  }
  return u;
}

HttpReply Generation::head(int status, std::string content_type) const {
  HttpReply reply{.status = status, .content_type = std::move(content_type), .headers = context_.reply_headers};
  reply.headers.emplace_back("X-Request-Id", id_.substr(id_.find('-') + 1));  // the client's own, if it sent one
  if (reply.content_type.starts_with("text/event-stream")) reply.headers.emplace_back("Cache-Control", "no-cache");
  return reply;
}

}  // namespace braid
