// See server.h. One rule for errors: handlers throw ApiError, respond_safely() turns it into a reply.
#include "server/server.h"

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "server/api_error.h"
#include "server/delta_mailbox.h"
#include "server/generation.h"
#include "server/json_escape.h"
#include "server/json_fields.h"
#include "server/live_stats.h"
#include "server/openai_request.h"
#include "server/page.h"
#include "server/server_metrics.h"
#include "server/worker_pool.h"

namespace braid {
namespace {

using ExchangePtr = std::shared_ptr<Exchange>;
constexpr size_t kInlineBodyBytes = 8 << 10;  // a body up to this is tokenised in a millisecond or two on the io thread

std::string random_id() {
  static thread_local std::mt19937_64 generator{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", generator(), generator());
}

// The client's X-Request-Id if it is fit for logs and headers, else empty.
std::string_view client_request_id(const HttpRequest& request) {
  const std::string_view id = request.header("x-request-id");
  const auto fit = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
           c == '.';
  };
  if (id.size() > 128) return {};
  for (char c : id)
    if (!fit(c)) return {};
  return id;
}

// Compares in time that does not tell how much of a key was right.
bool equal_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ (b.empty() ? 0 : b[i % b.size()]));
  return difference == 0;
}

}  // namespace

SamplingParams sampling_defaults() {
  SamplingParams s;
  s.temperature = 1.0f;
  return s;
}

SamplingParams sampling_defaults(const Json& config) {
  SamplingParams s = sampling_defaults();
  if (!config.is_object()) return s;
  const auto set = [&](const char* name, auto& field) {
    const auto it = config.find(name);
    if (it != config.end() && it->is_number()) field = it->get<std::remove_reference_t<decltype(field)>>();
  };
  set("temperature", s.temperature);
  set("top_p", s.top_p);
  set("top_k", s.top_k);
  set("min_p", s.min_p);
  set("repetition_penalty", s.repetition_penalty);
  return s;
}

struct Server::Impl {
  Impl(ServerOptions o, Engine& e, const TextService& t)
      : options(std::move(o)),
        engine(e),
        text(t),
        metrics(options.model_names.front()),
        context{.engine = e, .text = t, .metrics = metrics, .mailbox = nullptr},
        http(options.http, [this](ExchangePtr x) { respond_safely(x, [&] { route(x); }); }),
        pool(options.n_text_threads) {}

  using Handler = void (Impl::*)(const ExchangePtr&);
  struct Route {
    const char* method;
    const char* path;
    Handler handler;
    bool needs_key;
  };
  static const std::vector<Route>& routes();

  void respond_safely(const ExchangePtr& x, const std::function<void()>& handle);
  void reply_error(const ExchangePtr& x, const ApiError& error);
  void reply_json(const ExchangePtr& x, std::string body, int status = 200);
  void route(const ExchangePtr& x);
  void check_key(const HttpRequest& request) const;

  void chat_completions(const ExchangePtr& x) { complete(x, ApiKind::kChat); }
  void completions(const ExchangePtr& x) { complete(x, ApiKind::kCompletion); }
  void complete(const ExchangePtr& x, ApiKind kind);
  void begin(const ExchangePtr& x, PreparedRequest request);
  void off_thread(const ExchangePtr& x, std::function<std::function<void()>()> work);
  void models(const ExchangePtr& x);
  void tokenize(const ExchangePtr& x);
  void detokenize(const ExchangePtr& x);
  void health(const ExchangePtr& x);
  void ping(const ExchangePtr& x) { reply_json(x, "{}"); }
  void metrics_text(const ExchangePtr& x);
  void version(const ExchangePtr& x);
  void server_info(const ExchangePtr& x);
  void load(const ExchangePtr& x);
  void stats(const ExchangePtr& x);
  void reset_prefix_cache(const ExchangePtr& x);

  void take_deltas();
  void watch();
  std::string unhealthy() const;
  void check_model(const std::string& name) const;
  std::string model_card(const std::string& name) const;
  void finish_drain();
  RequestRules rules() const {
    return {options.default_sampling, &default_kwargs, context.max_model_len, engine.vocab_size()};
  }

  ServerOptions options;
  Engine& engine;
  const TextService& text;
  OrderedJson default_kwargs = OrderedJson::object();
  ServerMetrics metrics;
  GenerationContext context;  // io thread
  int n_preparing = 0;        // io thread: requests on the pool
  int64_t started_unix_s = 0;

  // Health, io thread: when the engine last moved.
  int64_t last_steps = -1;
  Clock::time_point last_moved = Clock::now();
  std::string stalled;

  // Drain, io thread.
  bool draining = false;
  Clock::time_point drain_deadline;

  std::mutex ended_mutex;
  std::condition_variable ended_changed;
  bool ended = false;

  HttpServer http;
  WorkerPool pool;  // destroyed first: its tasks post to http
};

const std::vector<Server::Impl::Route>& Server::Impl::routes() {
  static const std::vector<Route> table = {
      {"POST", "/v1/chat/completions", &Impl::chat_completions, true},
      {"POST", "/v1/completions", &Impl::completions, true},
      {"GET", "/v1/models", &Impl::models, true},
      {"POST", "/tokenize", &Impl::tokenize, true},
      {"POST", "/detokenize", &Impl::detokenize, true},
      {"GET", "/health", &Impl::health, false},
      {"GET", "/ping", &Impl::ping, false},
      {"POST", "/ping", &Impl::ping, false},
      {"GET", "/metrics", &Impl::metrics_text, false},
      {"GET", "/version", &Impl::version, false},
      {"GET", "/server_info", &Impl::server_info, true},
      {"GET", "/load", &Impl::load, false},
      {"GET", "/stats", &Impl::stats, true},
      {"POST", "/reset_prefix_cache", &Impl::reset_prefix_cache, true},
  };
  return table;
}

void Server::Impl::respond_safely(const ExchangePtr& x, const std::function<void()>& handle) {
  try {
    handle();
  } catch (const ApiError& e) {
    reply_error(x, e);
  } catch (const std::exception& e) {  // a bug of ours or out of memory: this request fails, the server goes on
    log_error("{} {}: {}", x->request().method, x->request().path, e.what());
    reply_error(x, ApiError(500, "server_error", "", "internal error"));
  }
}

void Server::Impl::reply_error(const ExchangePtr& x, const ApiError& error) {
  metrics.http_errors.add();
  log_info("refused {} {}: {} {}", x->request().method, x->request().path, error.status, error.what());
  HttpReply reply{.status = error.status, .body = error_body(error), .headers = context.reply_headers};
  if (error.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 503) reply.headers.emplace_back("Retry-After", "5");
  if (error.status == 405) reply.headers.emplace_back("Allow", error.param);
  x->reply(std::move(reply));
}

void Server::Impl::reply_json(const ExchangePtr& x, std::string body, int status) {
  x->reply({.status = status, .body = std::move(body), .headers = context.reply_headers});
}

void Server::Impl::route(const ExchangePtr& x) {
  const HttpRequest& request = x->request();
  std::string_view path = request.path;
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  if (request.method == "OPTIONS") {  // a browser's preflight, which carries no key
    HttpReply reply{.status = 204, .content_type = "", .headers = context.reply_headers};
    reply.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS, HEAD");
    const std::string_view wanted = request.header("access-control-request-headers");
    reply.headers.emplace_back("Access-Control-Allow-Headers", wanted.empty() ? "*" : std::string(wanted));
    reply.headers.emplace_back("Access-Control-Max-Age", "600");
    return x->reply(std::move(reply));
  }
  const std::string_view method = request.method == "HEAD" ? std::string_view("GET") : request.method;
  if (const PageFile* file = find_page_file(path)) {
    if (method == "GET") return x->reply(page_reply(*file, request));
    throw ApiError(405, "invalid_request_error", "GET", fmt::format("{} takes GET, not {}", path, request.method));
  }
  std::string allowed;
  for (const Route& r : routes()) {
    if (path != r.path) continue;
    if (method == r.method) {
      if (r.needs_key) check_key(request);
      return (this->*r.handler)(x);
    }
    allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", r.method);
  }
  constexpr std::string_view kModelPrefix = "/v1/models/";
  if (path.starts_with(kModelPrefix) && method == "GET") {
    check_key(request);
    const std::string name(path.substr(kModelPrefix.size()));
    check_model(name);
    return reply_json(x, model_card(name));
  }
  if (!allowed.empty())
    throw ApiError(405, "invalid_request_error", allowed,
                   fmt::format("{} takes {}, not {}", path, allowed, request.method));
  throw ApiError(404, "not_found_error", "", fmt::format("there is no {} {}", request.method, path), "not_found");
}

void Server::Impl::check_key(const HttpRequest& request) const {
  if (options.api_keys.empty()) return;
  std::string_view given = request.header("authorization");
  constexpr std::string_view kBearer = "Bearer ";
  given = given.starts_with(kBearer) ? given.substr(kBearer.size()) : std::string_view{};
  bool known = false;
  for (const std::string& key : options.api_keys) known |= equal_secret(given, key);
  if (!known)
    throw ApiError(401, "authentication_error", "",
                   given.empty() ? "an API key is needed: Authorization: Bearer KEY" : "the API key is not known",
                   "invalid_api_key");
}

void Server::Impl::check_model(const std::string& name) const {
  if (name.empty()) return;  // a server with one model knows which one is meant
  for (const std::string& served : options.model_names)
    if (name == served) return;
  throw ApiError(404, "not_found_error", "model",
                 fmt::format("The model '{}' does not exist; this server has '{}'.", name, options.model_names.front()),
                 "model_not_found");
}

// Runs `work` on the pool when the body is long, else here; what it returns runs on the io thread, if the client is
// still there.
void Server::Impl::off_thread(const ExchangePtr& x, std::function<std::function<void()>()> work) {
  if (x->request().body.size() <= kInlineBodyBytes) return work()();
  ++n_preparing;
  pool.submit([this, x, work = std::move(work)] {
    std::function<void()> then;
    try {
      then = work();
    } catch (...) {
      then = [error = std::current_exception()] { std::rethrow_exception(error); };
    }
    http.post([this, x, then = std::move(then)] {
      --n_preparing;
      if (x->open()) respond_safely(x, then);
    });
  });
}

void Server::Impl::complete(const ExchangePtr& x, ApiKind kind) {
  if (draining) throw ApiError(503, "server_error", "", "the server is shutting down");
  if (const std::string why = engine.failure(); !why.empty()) throw ApiError(503, "server_error", "", why);
  off_thread(x, [this, x, kind]() -> std::function<void()> {
    ApiRequest api = parse_api_request(kind, x->request().body, rules());
    check_model(api.model);
    auto prepared = std::make_shared<PreparedRequest>(prepare(std::move(api), text, rules()));
    return [this, x, prepared] { begin(x, std::move(*prepared)); };
  });
}

void Server::Impl::begin(const ExchangePtr& x, PreparedRequest request) {
  const std::string_view given = client_request_id(x->request());
  const std::string id = fmt::format("{}-{}", request.api.kind == ApiKind::kChat ? "chatcmpl" : "cmpl",
                                     given.empty() ? random_id() : std::string(given));
  std::string model = request.api.model.empty() ? options.model_names.front() : request.api.model;
  std::make_shared<Generation>(context, x, std::move(request), id, std::move(model))->start();
}

std::string Server::Impl::model_card(const std::string& name) const {
  std::string out = R"({"id":)";
  append_json_string(out, name);
  return out + fmt::format(R"(,"object":"model","created":{},"owned_by":"braid","max_model_len":{}}})", started_unix_s,
                           context.max_model_len);
}

void Server::Impl::models(const ExchangePtr& x) {
  std::string cards;
  for (const std::string& name : options.model_names)
    cards += fmt::format("{}{}", cards.empty() ? "" : ",", model_card(name));
  reply_json(x, fmt::format(R"({{"object":"list","data":[{}]}})", cards));
}

void Server::Impl::tokenize(const ExchangePtr& x) {
  off_thread(x, [this, x]() -> std::function<void()> {
    const OrderedJson json = parse_json_body(x->request().body);
    JsonFields f(json);
    ApiRequest request;
    check_model(f.string("model", ""));
    std::vector<int32_t> tokens;
    if (f.find("messages")) {
      parse_chat_prompt(f, rules(), request);
      tokens = render(request, text).tokens;
    } else {
      const OrderedJson* prompt = f.find("prompt");
      if (!prompt || !prompt->is_string()) throw bad_field("prompt", "'prompt' (a string) or 'messages' is required");
      tokens = text.encode(prompt->get<std::string>(), f.boolean("add_special_tokens", true));
    }
    std::string strings;
    if (f.boolean("return_token_strs", false)) {
      for (int32_t token : tokens) {
        strings += strings.empty() ? R"(,"token_strs":[)" : ",";
        append_json_string(strings, text.token_bytes(token));
      }
      strings += strings.empty() ? R"(,"token_strs":[])" : "]";
    }
    std::string body = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}]{}}})", tokens.size(),
                                   context.max_model_len, fmt::join(tokens, ","), strings);
    return [this, x, body = std::move(body)] { reply_json(x, body); };
  });
}

void Server::Impl::detokenize(const ExchangePtr& x) {
  off_thread(x, [this, x]() -> std::function<void()> {
    const OrderedJson json = parse_json_body(x->request().body);
    JsonFields f(json);
    check_model(f.string("model", ""));
    const OrderedJson* tokens = f.array("tokens");
    if (!tokens) throw bad_field("tokens", "'tokens' is required");
    std::string body = R"({"prompt":)";
    append_json_string(body, text.decode(parse_token_ids(*tokens, "tokens", engine.vocab_size()), false));
    body += '}';
    return [this, x, body = std::move(body)] { reply_json(x, body); };
  });
}

std::string Server::Impl::unhealthy() const {
  if (std::string why = engine.failure(); !why.empty()) return why;
  if (draining) return "the server is shutting down";
  return stalled;
}

void Server::Impl::health(const ExchangePtr& x) {
  const std::string why = unhealthy();
  std::string body = why.empty() ? R"({"status":"ok"})" : R"({"status":"unhealthy","reason":)";
  if (!why.empty()) {
    append_json_string(body, why);
    body += '}';
  }
  reply_json(x, std::move(body), why.empty() ? 200 : 503);
}

void Server::Impl::metrics_text(const ExchangePtr& x) {
  HttpReply reply{.content_type = "text/plain; version=0.0.4; charset=utf-8", .headers = context.reply_headers};
  reply.body = metrics.prometheus_text(
      {engine.stats(), http.n_connections(), static_cast<int64_t>(context.live.size()), http.cpu_seconds()});
  x->reply(std::move(reply));
}

void Server::Impl::version(const ExchangePtr& x) {
  std::string body = R"({"version":)";
  append_json_string(body, options.version);
  reply_json(x, body + "}");
}

void Server::Impl::server_info(const ExchangePtr& x) {
  OrderedJson info = {{"version", options.version},
                      {"model", options.model_names.front()},
                      {"served_model_names", options.model_names},
                      {"max_model_len", context.max_model_len},
                      {"vocab_size", engine.vocab_size()},
                      {"max_body_bytes", options.http.max_body_bytes},
                      {"options", OrderedJson::array()}};
  for (const auto& o : engine.options())
    info["options"].push_back({{"option", o.option}, {"asked", o.asked}, {"active", o.active}, {"reason", o.reason}});
  reply_json(x, to_string(info));
}

void Server::Impl::load(const ExchangePtr& x) {
  const EngineStats stats = engine.stats();
  reply_json(x, fmt::format(R"({{"server_load":{},"requests":{},"running":{},"waiting":{}}})",
                            context.live.size() + n_preparing, context.live.size(), stats.n_running, stats.n_waiting));
}

void Server::Impl::stats(const ExchangePtr& x) {
  const double now_s = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  reply_json(x, live_stats_json({.version = options.version,
                                 .model = options.model_names.front(),
                                 .unhealthy = unhealthy(),
                                 .max_model_len = context.max_model_len,
                                 .now_s = now_s,
                                 .engine = engine.stats(),
                                 .activity = engine.activity()}));
}

void Server::Impl::reset_prefix_cache(const ExchangePtr& x) {
  if (!engine.reset_prefix_cache())
    throw ApiError(409, "conflict_error", "", "the prefix cache can only be reset while no request runs");
  reply_json(x, "{}");
}

// Everything one engine step made, for all streams at once.
void Server::Impl::take_deltas() {
  const auto now = Clock::now();
  std::vector<std::shared_ptr<Generation>> touched;
  for (Delta& delta : context.mailbox->take()) {
    const auto it = context.by_id.find(delta.id.value);
    if (it == context.by_id.end()) continue;  // aborted, or ended by a stop string
    const auto waiter = it->second;
    if (touched.empty() || touched.back().get() != waiter.generation)
      touched.push_back(waiter.generation->shared_from_this());
    waiter.generation->on_delta(waiter.choice, std::move(delta), now);
  }
  for (const auto& generation : touched) generation->flush();
}

// Four times a second: a lost engine, a stuck one, streams that still queue, the end of a drain.
void Server::Impl::watch() {
  const auto now = Clock::now();
  const auto live = std::vector(context.live.begin(), context.live.end());
  if (const std::string why = engine.failure(); !why.empty())
    for (const auto& generation : live) generation->fail(ApiError(503, "server_error", "", why));
  const EngineStats stats = engine.stats();
  if (stats.steps != last_steps || stats.n_running + stats.n_waiting == 0) {
    last_steps = stats.steps;
    last_moved = now;
  }
  const double still_s = std::chrono::duration<double>(now - last_moved).count();
  const bool stuck = options.stall_s > 0 && still_s > std::max(options.stall_s, 20 * stats.last_step_seconds);
  if (stuck && stalled.empty())
    log_error("the engine has not finished a step for {:.0f} s while requests wait", still_s);
  stalled = stuck ? fmt::format("no engine step has ended for {:.0f} s while requests wait", still_s) : "";
  for (const auto& generation : live) generation->on_wait(now);
  if (draining) finish_drain();
}

void Server::Impl::finish_drain() {
  if (Clock::now() > drain_deadline)
    for (const auto& generation : std::vector(context.live.begin(), context.live.end())) generation->cut_short();
  const bool late = Clock::now() > drain_deadline + std::chrono::seconds(1);  // a client that does not read, say
  if (!late && (!context.live.empty() || n_preparing > 0)) return;
  http.close_idle();
  if (!late && http.n_connections() > 0) return;  // replies on their way
  const std::scoped_lock lock(ended_mutex);
  ended = true;
  ended_changed.notify_all();
}

Server::Server(ServerOptions options, Engine& engine, const TextService& text) {
  if (options.model_names.empty()) throw Error("--served-model-name: at least one name is needed");
  if (options.n_text_threads < 1)
    throw Error("the server needs at least 1 text thread, not {}", options.n_text_threads);
  impl_ = std::make_unique<Impl>(std::move(options), engine, text);
  Impl& s = *impl_;
  if (!s.options.chat_template_kwargs.empty()) {
    s.default_kwargs = OrderedJson::parse(s.options.chat_template_kwargs, nullptr, false);
    if (!s.default_kwargs.is_object())
      throw Error("--default-chat-template-kwargs must be a JSON object, not {}", s.options.chat_template_kwargs);
  }
  s.context.max_model_len = engine.max_model_len();
  if (!s.options.allowed_origin.empty()) {
    s.context.reply_headers.emplace_back("Access-Control-Allow-Origin", s.options.allowed_origin);
    s.context.reply_headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id");
  }
  s.context.mailbox = std::make_shared<DeltaMailbox>([&s] { s.http.post([&s] { s.take_deltas(); }); });
}

Server::~Server() { stop(); }

void Server::start() {
  using std::chrono::system_clock;
  impl_->started_unix_s =
      std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch()).count();
  impl_->http.every(std::chrono::milliseconds(250), [s = impl_.get()] { s->watch(); });
  impl_->http.start();
  log_info("listening on http://{}:{}", impl_->options.http.host, port());
}

int Server::port() const { return impl_->http.port(); }

void Server::drain(std::chrono::milliseconds deadline) {
  impl_->http.post([s = impl_.get(), deadline] {
    if (std::exchange(s->draining, true)) return;
    s->drain_deadline = Clock::now() + deadline;
    log_info("draining: {} requests in work, at most {} ms", s->context.live.size(), deadline.count());
  });
}

void Server::stop() {
  impl_->http.stop();  // ends every exchange, whose generations abort their engine requests
  impl_->context.mailbox->close();
  const std::scoped_lock lock(impl_->ended_mutex);
  impl_->ended = true;
  impl_->ended_changed.notify_all();
}

void Server::wait() {
  {
    std::unique_lock lock(impl_->ended_mutex);
    impl_->ended_changed.wait(lock, [&] { return impl_->ended; });
  }
  stop();
}

}  // namespace braid
