// The only file that includes Asio and Beast (8 s to compile). Of Beast it uses the request parser alone; replies are
// plain bytes. Everything below runs on the io thread unless it says otherwise.
//
// A connection is one coroutine that reads, and a send buffer that anyone on the io thread may append to. Reads wait
// for readiness and then fill a buffer shared by all connections, so an idle connection holds no read buffer. Sends are
// tried directly once per turn of the loop (flush of the dirty list), which costs one system call per stream and step,
// and wait for writability only when the socket is full.
#include "server/http_server.h"

#include <netdb.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstring>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "base/error.h"
#include "base/log.h"
#include "server/api_error.h"

namespace braid {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Executor = asio::io_context::executor_type;
using Socket = asio::basic_stream_socket<asio::ip::tcp, Executor>;
using Acceptor = asio::basic_socket_acceptor<asio::ip::tcp, Executor>;
using Timer = asio::basic_waitable_timer<Clock, asio::wait_traits<Clock>, Executor>;
using Task = asio::awaitable<void, Executor>;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable_t<Executor>{});
using Parser = http::request_parser<http::string_body>;

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kMaxPipelinedBytes = 1 << 20;  // unread requests behind a running one
constexpr size_t kMaxLingerBytes = 64 << 20;    // discarded after an early error reply, so that the client reads it
constexpr auto kLingerTime = std::chrono::seconds(2);

std::string_view reason(int status) {
  if (status == 499) return "Client Closed Request";
  return {http::obsolete_reason(static_cast<http::status>(status)).data(),
          http::obsolete_reason(static_cast<http::status>(status)).size()};
}

Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

}  // namespace

class Connection;

struct HttpServer::Impl : std::enable_shared_from_this<HttpServer::Impl> {
  Impl(HttpOptions o, HttpHandler h) : options(std::move(o)), handler(std::move(h)) {}

  HttpOptions options;
  HttpHandler handler;
  // Before `io`: coroutines that never ended are destroyed with it, and their connections leave these.
  std::unordered_set<Connection*> connections;
  std::vector<std::weak_ptr<Connection>> dirty;  // have bytes to send since the last flush
  std::vector<char> scratch = std::vector<char>(kReadBytes);
  std::atomic<int> n_connections{0};
  asio::io_context io{1};
  Acceptor acceptor{io};
  std::thread thread;
  std::atomic<int> port{0};
  bool closing_idle = false;
  std::atomic<bool> stopped{false};
  std::mutex stopping;

  void bind();
  Task accept_loop();
  Task sweep_loop();
  Task every_loop(std::chrono::milliseconds period, std::function<void()> task);
  void mark_dirty(std::shared_ptr<Connection> c);
  void close_all();
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer::Impl& server, Socket socket) : server_(server), socket_(std::move(socket)) {
    server_.connections.insert(this);
    ++server_.n_connections;
  }
  ~Connection() {
    server_.connections.erase(this);
    --server_.n_connections;
  }

  Task run();
  void sweep(Clock::time_point now) {
    if (now > deadline_) close();
  }
  void close_when_idle() {
    last_request_ = true;
    if (idle_) close();
  }
  void close();  // at once; tells the running request

 private:
  friend class ConnectionExchange;

  asio::awaitable<bool, Executor> read_request(HttpRequest& request);
  asio::awaitable<bool, Executor> read_some();  // appends to in_; false: the client is gone
  asio::awaitable<bool, Executor> serve(HttpRequest request);
  Task refuse(int status, std::string message);
  Task linger();
  void send(std::string_view bytes);
  void flush();
  void request_done();  // the reply is over and sent, or the client is gone: wakes run()
  void gone();

  friend struct HttpServer::Impl;
  HttpServer::Impl& server_;
  Socket socket_;
  std::string in_;   // read, not yet parsed
  std::string out_;  // to send, from out_sent_ on
  size_t out_sent_ = 0;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::shared_ptr<class ConnectionExchange> exchange_;  // the running request
  bool idle_ = false;                                   // waiting for the first byte of a request
  bool last_request_ = false;                           // close after the current one
  bool waiting_read_ = false, waiting_write_ = false;
  bool dirty_ = false, closed_ = false;
  bool http_1_0_ = false;  // of the current request
};

class ConnectionExchange final : public Exchange {
 public:
  ConnectionExchange(std::shared_ptr<Connection> c, HttpRequest request, bool keep_alive, bool http_1_0)
      : connection_(std::move(c)), request_(std::move(request)), keep_alive_(keep_alive), http_1_0_(http_1_0) {}

  const HttpRequest& request() const override { return request_; }
  bool open() const override { return !ended_ && connection_ != nullptr; }
  size_t backlog_bytes() const override { return connection_ ? connection_->out_.size() - connection_->out_sent_ : 0; }

  void reply(HttpReply reply) override {
    if (!open() || started_) return;
    const bool no_body = reply.status == 204 || reply.status == 304;
    std::string bytes = head(reply);
    if (!no_body) bytes += fmt::format("Content-Length: {}\r\n", reply.body.size());
    bytes += "\r\n";
    if (request_.method != "HEAD" && !no_body) bytes += reply.body;
    finish(bytes);
  }

  void start_stream(HttpReply reply) override {
    if (!open() || started_) return;
    started_ = true;
    chunked_ = !http_1_0_;
    if (!chunked_) keep_alive_ = false;  // the end of the connection is the end of the body
    std::string bytes = head(reply);
    if (chunked_) bytes += "Transfer-Encoding: chunked\r\n";
    connection_->send(bytes + "\r\n");
  }

  void write(std::string_view piece) override {
    if (!open() || !started_ || piece.empty() || request_.method == "HEAD") return;
    if (!chunked_) return connection_->send(piece);
    char size[20];
    const auto end = fmt::format_to_n(size, sizeof size, "{:x}\r\n", piece.size()).out;
    connection_->send({size, static_cast<size_t>(end - size)});
    connection_->send(piece);
    connection_->send("\r\n");
  }

  void end() override {
    if (open() && started_) finish(chunked_ && request_.method != "HEAD" ? "0\r\n\r\n" : "");
  }

  bool ended() const { return ended_; }
  bool keep_alive() const { return keep_alive_; }

  // The connection is going away; no call reaches it any more.
  void detach() {
    if (!connection_) return;
    connection_ = nullptr;
    if (!ended_ && on_gone) std::exchange(on_gone, nullptr)();
    on_gone = on_drained = nullptr;
  }

  void sent_all() {
    if (ended_ || !on_drained) return;
    const auto callback = on_drained;  // it may end the stream, which clears the member
    callback();
  }

 private:
  std::string head(const HttpReply& reply) {
    if (reply.close || connection_->last_request_) keep_alive_ = false;
    std::string bytes = fmt::format("HTTP/1.1 {} {}\r\n", reply.status, reason(reply.status));
    if (!reply.content_type.empty()) bytes += fmt::format("Content-Type: {}\r\n", reply.content_type);
    for (const auto& [name, value] : reply.headers) bytes += fmt::format("{}: {}\r\n", name, value);
    bytes += keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
    return bytes;
  }

  void finish(std::string_view bytes) {
    connection_->send(bytes);
    ended_ = true;
    on_gone = on_drained = nullptr;
  }

  std::shared_ptr<Connection> connection_;  // null once the client is gone or the reply has been sent
  HttpRequest request_;
  bool keep_alive_, http_1_0_;
  bool started_ = false, chunked_ = false, ended_ = false;
};

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  error_code ignored;
  socket_.close(ignored);
  gone();
}

void Connection::gone() {
  const auto exchange = exchange_;  // keeps it alive over its callback
  if (exchange) exchange->detach();
  request_done();
}

void Connection::request_done() {
  // Only run()'s own wait can be pending here: the send buffer is empty, or the socket is closed already.
  error_code ignored;
  if (waiting_read_ && !closed_) socket_.cancel(ignored);
}

void Connection::send(std::string_view bytes) {
  out_ += bytes;
  if (!dirty_ && !waiting_write_) {
    dirty_ = true;
    server_.mark_dirty(shared_from_this());
  }
}

void Connection::flush() {
  dirty_ = false;
  while (!closed_ && out_sent_ < out_.size()) {
    error_code ec;
    out_sent_ += socket_.write_some(asio::buffer(out_.data() + out_sent_, out_.size() - out_sent_), ec);
    if (ec == asio::error::would_block || ec == asio::error::try_again) {
      if (out_sent_ > out_.size() / 2) out_.erase(0, std::exchange(out_sent_, 0));
      if (waiting_write_) return;
      waiting_write_ = true;
      deadline_ = Clock::now() + seconds(server_.options.write_timeout_s);
      socket_.async_wait(Socket::wait_write, [self = shared_from_this()](error_code) {
        self->waiting_write_ = false;
        self->deadline_ = Clock::time_point::max();
        self->flush();
      });
      return;
    }
    if (ec) return close();
  }
  out_.clear();
  out_sent_ = 0;
  if (out_.capacity() > Exchange::kBacklogHigh) out_.shrink_to_fit();
  const auto exchange = exchange_;
  if (!exchange) return;
  if (exchange->ended())
    request_done();
  else
    exchange->sent_all();
}

asio::awaitable<bool, Executor> Connection::read_some() {
  waiting_read_ = true;
  const auto [wait_error] = co_await socket_.async_wait(Socket::wait_read, kAwait);
  waiting_read_ = false;
  if (closed_) co_return false;
  if (wait_error) co_return wait_error == asio::error::operation_aborted;
  error_code ec;
  const size_t n = socket_.read_some(asio::buffer(server_.scratch), ec);
  if (ec == asio::error::would_block || ec == asio::error::try_again) co_return true;
  if (ec || n == 0) co_return false;
  in_.append(server_.scratch.data(), n);
  co_return true;
}

// False: no more requests on this connection (what was wrong has been answered).
asio::awaitable<bool, Executor> Connection::read_request(HttpRequest& request) {
  Parser parser;
  parser.eager(true);
  parser.header_limit(server_.options.max_header_bytes);
  parser.body_limit(server_.options.max_body_bytes);
  bool continue_sent = false;
  for (;;) {
    error_code ec;
    if (!in_.empty()) {
      in_.erase(0, parser.put(asio::buffer(in_), ec));
      if (ec == http::error::need_more) ec = {};
    }
    if (ec == http::error::body_limit) {
      co_await refuse(413, fmt::format("the body is larger than {} bytes", server_.options.max_body_bytes));
      co_return false;
    }
    if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
      co_await refuse(431, fmt::format("the headers are larger than {} bytes", server_.options.max_header_bytes));
      co_return false;
    }
    if (ec) {
      co_await refuse(400, "not an HTTP/1.1 request: " + ec.message());
      co_return false;
    }
    if (parser.is_done()) break;
    if (parser.is_header_done() && !continue_sent &&
        boost::beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      continue_sent = true;
      send("HTTP/1.1 100 Continue\r\n\r\n");
    }
    idle_ = in_.empty() && !parser.got_some();
    if (idle_ && (last_request_ || server_.closing_idle)) co_return false;
    deadline_ = Clock::now() + seconds(idle_ ? server_.options.keep_alive_s : server_.options.read_timeout_s);
    const bool more = co_await read_some();
    idle_ = false;
    if (!more) co_return false;
  }
  deadline_ = Clock::time_point::max();
  auto& message = parser.get();
  request.method = std::string(message.method_string());
  std::string_view target(message.target().data(), message.target().size());
  if (const size_t scheme = target.find("://"); !target.starts_with('/') && scheme != target.npos) {
    const size_t slash = target.find('/', scheme + 3);  // absolute form, as proxies send it
    target = slash == target.npos ? "/" : target.substr(slash);
  }
  const size_t question = target.find('?');
  request.path = std::string(target.substr(0, question));
  request.query = question == target.npos ? "" : std::string(target.substr(question + 1));
  for (const auto& field : message) {
    std::string name(field.name_string());
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  request.body = std::move(message.body());
  request.arrived = Clock::now();
  if (!message.keep_alive()) last_request_ = true;
  http_1_0_ = message.version() < 11;
  co_return true;
}

// True: ready for the next request.
asio::awaitable<bool, Executor> Connection::serve(HttpRequest request) {
  exchange_ = std::make_shared<ConnectionExchange>(shared_from_this(), std::move(request), !last_request_, http_1_0_);
  server_.handler(exchange_);
  if (exchange_->ended()) flush();
  bool alive = true;
  while (alive && !closed_ && !(exchange_->ended() && out_.empty())) {
    alive = co_await read_some();  // a client that leaves ends the wait; so does request_done()
    if (in_.size() > kMaxPipelinedBytes) alive = false;
  }
  const bool keep = alive && !closed_ && exchange_->keep_alive();
  if (!alive) close();
  const auto exchange = std::exchange(exchange_, nullptr);
  exchange->detach();
  if (!keep && !closed_) co_await linger();
  co_return keep;
}

Task Connection::refuse(int status, std::string message) {
  exchange_ = std::make_shared<ConnectionExchange>(shared_from_this(), HttpRequest{}, false, false);
  exchange_->reply({.status = status, .body = error_body(ApiError(status, "invalid_request_error", "", message))});
  flush();
  std::exchange(exchange_, nullptr)->detach();
  co_await linger();
}

// Closing a socket with unread bytes resets the connection and may destroy the reply on its way: first say that no more
// will be sent, then read what the client still had to say.
Task Connection::linger() {
  deadline_ = Clock::now() + kLingerTime;
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  size_t discarded = in_.size();
  in_.clear();
  while (!closed_ && discarded < kMaxLingerBytes && co_await read_some()) {
    discarded += in_.size();
    in_.clear();
  }
}

Task Connection::run() {
  const auto self = shared_from_this();
  for (;;) {
    HttpRequest request;
    if (!co_await read_request(request)) break;
    if (!co_await serve(std::move(request))) break;
  }
  close();
}

void HttpServer::Impl::mark_dirty(std::shared_ptr<Connection> c) {
  if (dirty.empty()) {
    asio::post(io, [this] {
      const auto batch = std::exchange(dirty, {});
      for (const auto& weak : batch)
        if (const auto connection = weak.lock()) connection->flush();
    });
  }
  dirty.push_back(std::move(c));
}

Task HttpServer::Impl::accept_loop() {
  while (acceptor.is_open()) {
    auto [ec, socket] = co_await acceptor.async_accept(io, kAwait);
    if (ec == asio::error::operation_aborted) break;
    if (ec) {  // out of file descriptors, most likely: others will end
      log_warn("cannot accept a connection: {}", ec.message());
      Timer pause(io, std::chrono::milliseconds(50));
      co_await pause.async_wait(kAwait);
      continue;
    }
    if (n_connections >= options.max_connections) {
      log_warn("connection refused: {} are open, --max-connections", options.max_connections);
      continue;
    }
    socket.non_blocking(true, ec);
    socket.set_option(asio::ip::tcp::no_delay(true), ec);
    socket.set_option(Socket::keep_alive(true), ec);  // a client whose host vanished must not hold KV blocks for ever
    const auto connection = std::make_shared<Connection>(*this, std::move(socket));
    asio::co_spawn(
        io, [connection]() { return connection->run(); }, asio::detached);
  }
}

// One timer for all connections: deadlines are checked twice a second instead of armed for every read and write.
Task HttpServer::Impl::sweep_loop() {
  Timer timer(io);
  while (!stopped) {
    timer.expires_after(std::chrono::milliseconds(500));
    co_await timer.async_wait(kAwait);
    const auto now = Clock::now();
    std::vector<std::shared_ptr<Connection>> all;  // close() may end coroutines, which erase from the set
    for (Connection* c : connections) all.push_back(c->shared_from_this());
    for (const auto& c : all) c->sweep(now);
  }
}

Task HttpServer::Impl::every_loop(std::chrono::milliseconds period, std::function<void()> task) {
  Timer timer(io);
  while (!stopped) {
    timer.expires_after(period);
    co_await timer.async_wait(kAwait);
    if (!stopped) task();
  }
}

void HttpServer::Impl::close_all() {
  error_code ignored;
  acceptor.close(ignored);
  std::vector<std::shared_ptr<Connection>> all;
  for (Connection* c : connections) all.push_back(c->shared_from_this());
  for (const auto& c : all) c->close();
}

void HttpServer::Impl::bind() {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  const std::string service = std::to_string(options.port);
  if (const int rc =
          getaddrinfo(options.host.empty() ? nullptr : options.host.c_str(), service.c_str(), &hints, &found))
    throw Error("--host {}: {}", options.host, gai_strerror(rc));
  asio::ip::tcp::endpoint endpoint;
  endpoint.resize(found->ai_addrlen);
  std::memcpy(endpoint.data(), found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  error_code ec;
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(Acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(options.backlog, ec);
  if (ec) throw Error("cannot listen on {} port {}: {}", options.host, options.port, ec.message());
  port = acceptor.local_endpoint().port();
}

HttpServer::HttpServer(HttpOptions options, HttpHandler handler)
    : impl_(std::make_shared<Impl>(std::move(options), std::move(handler))) {}

HttpServer::~HttpServer() { stop(); }

void HttpServer::start() {
  rlimit files{};  // the usual soft limit of 1024 is less than the streams that we promise
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  impl_->bind();
  asio::co_spawn(impl_->io, impl_->accept_loop(), asio::detached);
  asio::co_spawn(impl_->io, impl_->sweep_loop(), asio::detached);
  impl_->thread = std::thread([impl = impl_.get()] {
    pthread_setname_np(pthread_self(), "braid-io");
    const auto work = asio::make_work_guard(impl->io);
    impl->io.run();
  });
}

void HttpServer::stop() {
  const std::scoped_lock one_at_a_time(impl_->stopping);  // a second caller returns when the first has finished
  if (impl_->stopped.exchange(true) || !impl_->thread.joinable()) return;
  asio::post(impl_->io, [impl = impl_.get()] {
    impl->close_all();
    // One more turn, so that the coroutines of the closed connections run to their end.
    asio::post(impl->io, [impl] { impl->io.stop(); });
  });
  impl_->thread.join();
}

int HttpServer::port() const { return impl_->port; }
int HttpServer::n_connections() const { return impl_->n_connections; }

void HttpServer::post(std::function<void()> task) {
  if (!impl_->stopped) asio::post(impl_->io, std::move(task));
}

void HttpServer::every(std::chrono::milliseconds period, std::function<void()> task) {
  asio::co_spawn(impl_->io, impl_->every_loop(period, std::move(task)), asio::detached);
}

void HttpServer::close_idle() {
  post([impl = impl_.get()] {
    impl->closing_idle = true;
    std::vector<std::shared_ptr<Connection>> all;
    for (Connection* c : impl->connections) all.push_back(c->shared_from_this());
    for (const auto& c : all) c->close_when_idle();
  });
}

double HttpServer::cpu_seconds() const {
  clockid_t clock;
  timespec t{};
  if (!impl_->thread.joinable() || pthread_getcpuclockid(impl_->thread.native_handle(), &clock) != 0) return 0;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

}  // namespace braid
