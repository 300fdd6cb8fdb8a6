// The only file that includes Beast (6 s to compile), of which it uses the request parser alone; replies are plain
// bytes. Everything below runs on the io thread unless it says otherwise.
//
// A connection is watched for reading from its first to its last byte: between requests, inside one, and while one
// runs, when what comes is the next request or the end of a client that left. So a request on a kept connection costs
// one wait, one read and one write. Reads fill a buffer shared by all connections, so an idle connection holds none.
// Sends are tried directly once per turn of the loop (flush of the dirty list), which costs one system call per stream
// and step, and wait for writability only when the socket is full.
#include "server/http_server.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include <atomic>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>

#include "base/error.h"
#include "base/log.h"
#include "server/api_error.h"
#include "server/event_loop.h"

namespace braid {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;
using Parser = http::request_parser<http::string_body>;

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kMaxPipelinedBytes = 1 << 20;  // unread requests behind a running one
constexpr size_t kMaxLingerBytes = 64 << 20;    // discarded after an early error reply, so that the client reads it
constexpr auto kLingerTime = std::chrono::seconds(2);
constexpr int kAcceptsPerTurn = 16;
constexpr auto kSweepPeriod = std::chrono::milliseconds(500);

std::string_view reason(int status) {
  if (status == 499) return "Client Closed Request";
  return {http::obsolete_reason(static_cast<http::status>(status)).data(),
          http::obsolete_reason(static_cast<http::status>(status)).size()};
}

Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

class Connection;

struct HttpServer::Impl final : EventLoop::Watcher {
  Impl(HttpOptions o, HttpHandler h) : options(std::move(o)), handler(std::move(h)) {}

  HttpOptions options;
  HttpHandler handler;
  EventLoop loop;
  OwnedFd listener;
  std::unordered_set<std::shared_ptr<Connection>> connections;
  std::vector<std::shared_ptr<Connection>> dirty;  // have bytes to send since the last flush
  std::vector<char> scratch = std::vector<char>(kReadBytes);
  std::atomic<int> n_connections{0};
  std::thread thread;
  std::atomic<int> port{0};
  bool closing_idle = false, accepting = true;
  std::atomic<bool> stopped{false};
  std::mutex stopping;

  void bind();
  void on_ready(uint32_t events) override;  // connections to accept
  void watch_listener(bool on);
  void admit(OwnedFd socket);
  void remove(const std::shared_ptr<Connection>& c);
  void sweep();
  void mark_dirty(std::shared_ptr<Connection> c);
  std::vector<std::shared_ptr<Connection>> all() const { return {connections.begin(), connections.end()}; }
};

// Between requests `exchange_` is null; a request is parsed as far as it has come, handed over when it is whole, and
// over when its reply has been sent; then the next one, which may have come already, is looked at.
class Connection final : public EventLoop::Watcher, public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer::Impl& server, OwnedFd socket) : server_(server), socket_(std::move(socket)) {}

  void open();
  void on_ready(uint32_t events) override;
  void sweep(Clock::time_point now) {
    if (now > deadline_) close();
  }
  void close_when_idle() {
    last_request_ = true;
    if (idle()) close();
  }
  void flush();  // sends what waits
  void close();  // at once; tells the running request

 private:
  friend class ConnectionExchange;

  bool idle() const { return !exchange_ && !lingering_ && !parser_; }
  void read();
  void take_requests();
  bool parse();  // true: a whole request is in the parser
  bool refuse_what_is_wrong(error_code ec);
  void serve();
  HttpRequest take_request();
  void refuse(int status, std::string message);
  void send(std::string_view bytes);
  void send_now();
  bool over();  // the reply has been sent, and the next request may come
  void linger();

  HttpServer::Impl& server_;
  OwnedFd socket_;
  std::string in_;   // read, not yet parsed
  std::string out_;  // to send, from out_sent_ on
  size_t out_sent_ = 0, discarded_ = 0;
  std::optional<Parser> parser_;  // of a request that has begun to come
  Clock::time_point deadline_ = Clock::time_point::max();
  std::shared_ptr<class ConnectionExchange> exchange_;  // the running request
  bool continue_sent_ = false;                          // in the current request
  bool last_request_ = false;                           // close after the current one
  bool held_back_ = false;                              // a writer has seen the backlog above its bound
  bool lingering_ = false, waiting_write_ = false;
  bool dirty_ = false, closed_ = false;
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

void Connection::open() {
  server_.loop.watch(socket_.get(), EPOLLIN, *this);
  take_requests();
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  server_.loop.unwatch(socket_.get());
  socket_.reset();
  server_.remove(shared_from_this());
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->detach();
}

void Connection::on_ready(uint32_t events) {
  if (!closed_ && events & EPOLLOUT) {
    waiting_write_ = false;
    deadline_ = Clock::time_point::max();
    server_.loop.watch_for(socket_.get(), EPOLLIN, *this);
    flush();
  }
  if (!closed_ && events & ~static_cast<uint32_t>(EPOLLOUT)) read();
}

void Connection::read() {
  const ssize_t n = recv(socket_.get(), server_.scratch.data(), server_.scratch.size(), 0);
  if (n < 0 && would_block()) return;
  if (n <= 0) return close();  // a client that leaves ends its request
  if (lingering_) {
    discarded_ += static_cast<size_t>(n);
    if (discarded_ > kMaxLingerBytes) close();
    return;
  }
  in_.append(server_.scratch.data(), static_cast<size_t>(n));
  if (exchange_ && in_.size() > kMaxPipelinedBytes) return close();
  take_requests();
}

void Connection::take_requests() {
  while (!closed_ && !exchange_ && !lingering_) {
    if (!parse()) return;
    serve();
    if (!over()) return;
  }
}

bool Connection::parse() {
  if (!in_.empty() && !parser_) {
    parser_.emplace();
    parser_->eager(true);
    parser_->header_limit(static_cast<uint32_t>(server_.options.max_header_bytes));
    parser_->body_limit(static_cast<uint64_t>(server_.options.max_body_bytes));
    continue_sent_ = false;
  }
  if (!in_.empty()) {
    error_code ec;
    in_.erase(0, parser_->put(boost::asio::buffer(in_), ec));
    if (in_.empty() && in_.capacity() > kReadBytes) in_ = {};
    if (ec && ec != http::error::need_more) return refuse_what_is_wrong(ec);
    if (parser_->is_done()) return true;
    if (parser_->is_header_done() && !continue_sent_ &&
        boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
      continue_sent_ = true;
      send("HTTP/1.1 100 Continue\r\n\r\n");
    }
  }
  if (idle() && (last_request_ || server_.closing_idle)) return close(), false;
  deadline_ = Clock::now() + seconds(idle() ? server_.options.keep_alive_s : server_.options.read_timeout_s);
  return false;
}

bool Connection::refuse_what_is_wrong(error_code ec) {
  if (ec == http::error::body_limit)
    refuse(413, fmt::format("the body is larger than {} bytes", server_.options.max_body_bytes));
  else if (ec == http::error::header_limit || ec == http::error::buffer_overflow)
    refuse(431, fmt::format("the headers are larger than {} bytes", server_.options.max_header_bytes));
  else
    refuse(400, "not an HTTP/1.1 request: " + ec.message());
  return false;
}

HttpRequest Connection::take_request() {
  HttpRequest request;
  auto& message = parser_->get();
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
  return request;
}

void Connection::serve() {
  if (!parser_->get().keep_alive()) last_request_ = true;
  const bool http_1_0 = parser_->get().version() < 11;
  exchange_ = std::make_shared<ConnectionExchange>(shared_from_this(), take_request(), !last_request_, http_1_0);
  parser_.reset();
  deadline_ = Clock::time_point::max();
  dirty_ = true;  // what the handler writes is sent here, without a place in the list
  server_.handler(exchange_);
  send_now();
}

void Connection::refuse(int status, std::string message) {
  exchange_ = std::make_shared<ConnectionExchange>(shared_from_this(), HttpRequest{}, false, false);
  exchange_->reply({.status = status, .body = error_body(ApiError(status, "invalid_request_error", "", message))});
}

bool Connection::over() {
  if (!exchange_ || !exchange_->ended() || !out_.empty()) return false;
  const auto exchange = std::exchange(exchange_, nullptr);
  exchange->detach();
  if (!exchange->keep_alive()) linger();
  return !lingering_;
}

// Closing a socket with unread bytes resets the connection and may destroy the reply on its way: first say that no more
// will be sent, then read what the client still had to say.
void Connection::linger() {
  lingering_ = true;
  deadline_ = Clock::now() + kLingerTime;
  shutdown(socket_.get(), SHUT_WR);
  discarded_ = in_.size();
  in_ = {};
  parser_.reset();
}

void Connection::send(std::string_view bytes) {
  out_ += bytes;
  held_back_ = held_back_ || out_.size() - out_sent_ > Exchange::kBacklogHigh;
  if (!dirty_ && !waiting_write_) {
    dirty_ = true;
    server_.mark_dirty(shared_from_this());
  }
}

void Connection::send_now() {
  dirty_ = false;
  while (out_sent_ < out_.size()) {
    const ssize_t n = ::send(socket_.get(), out_.data() + out_sent_, out_.size() - out_sent_, MSG_NOSIGNAL);
    if (n < 0 && !would_block()) return close();
    if (n >= 0) {
      out_sent_ += static_cast<size_t>(n);
      continue;
    }
    if (out_sent_ > out_.size() / 2) out_.erase(0, std::exchange(out_sent_, 0));
    if (waiting_write_) return;
    waiting_write_ = true;
    deadline_ = Clock::now() + seconds(server_.options.write_timeout_s);
    return server_.loop.watch_for(socket_.get(), EPOLLIN | EPOLLOUT, *this);
  }
  out_.clear();
  out_sent_ = 0;
  if (out_.capacity() > Exchange::kBacklogHigh) out_.shrink_to_fit();
  const auto exchange = exchange_;
  if (std::exchange(held_back_, false) && exchange) exchange->sent_all();
}

void Connection::flush() {
  if (closed_) return;
  send_now();
  if (over()) take_requests();
}

void HttpServer::Impl::mark_dirty(std::shared_ptr<Connection> c) {
  if (dirty.empty()) {
    loop.defer([this] {
      for (const auto& connection : std::exchange(dirty, {})) connection->flush();
    });
  }
  dirty.push_back(std::move(c));
}

void HttpServer::Impl::on_ready(uint32_t) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    OwnedFd socket(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() >= 0) {
      admit(std::move(socket));
      continue;
    }
    if (would_block() || errno == ECONNABORTED) return;
    log_warn("cannot accept a connection: {}", std::strerror(errno));  // out of file descriptors, most likely
    return watch_listener(false);                                      // others will end: until the next sweep
  }
}

void HttpServer::Impl::watch_listener(bool on) {
  if (std::exchange(accepting, on) != on) loop.watch_for(listener.get(), on ? uint32_t{EPOLLIN} : 0u, *this);
}

void HttpServer::Impl::admit(OwnedFd socket) {
  if (n_connections >= options.max_connections)
    return log_warn("connection refused: {} are open, --max-connections", options.max_connections);
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // A client whose host vanished must not hold KV blocks for ever.
  setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const auto connection = std::make_shared<Connection>(*this, std::move(socket));
  connections.insert(connection);
  ++n_connections;
  connection->open();
}

void HttpServer::Impl::remove(const std::shared_ptr<Connection>& c) {
  connections.erase(c);
  --n_connections;
  loop.defer([c] {});  // the loop may still hold events of it
}

// Deadlines are checked twice a second instead of armed for every read and write.
void HttpServer::Impl::sweep() {
  const auto now = Clock::now();
  for (const auto& c : all()) c->sweep(now);
  watch_listener(true);
}

void HttpServer::Impl::bind() {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  const std::string service = std::to_string(options.port);
  if (const int rc =
          getaddrinfo(options.host.empty() ? nullptr : options.host.c_str(), service.c_str(), &hints, &found))
    throw Error("--host {}: {}", options.host, gai_strerror(rc));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> address(found, freeaddrinfo);
  listener.reset(socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_storage bound{};
  socklen_t n = sizeof bound;
  if (listener.get() < 0 || setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(listener.get(), address->ai_addr, address->ai_addrlen) != 0 ||
      listen(listener.get(), options.backlog) != 0 ||
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &n) != 0)
    throw Error("cannot listen on {} port {}: {}", options.host, options.port, std::strerror(errno));
  port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

HttpServer::HttpServer(HttpOptions options, HttpHandler handler)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handler))) {}

HttpServer::~HttpServer() { stop(); }

void HttpServer::start() {
  rlimit files{};  // the usual soft limit of 1024 is less than the streams that we promise
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  impl_->bind();
  impl_->loop.watch(impl_->listener.get(), EPOLLIN, *impl_);
  impl_->loop.every(kSweepPeriod, [impl = impl_.get()] { impl->sweep(); });
  impl_->thread = std::thread([impl = impl_.get()] {
    pthread_setname_np(pthread_self(), "braid-io");
    impl->loop.run();
  });
}

void HttpServer::stop() {
  const std::scoped_lock one_at_a_time(impl_->stopping);  // a second caller returns when the first has finished
  if (impl_->stopped.exchange(true) || !impl_->thread.joinable()) return;
  impl_->loop.post([impl = impl_.get()] {
    impl->loop.unwatch(impl->listener.get());
    impl->listener.reset();
    for (const auto& c : impl->all()) c->close();
    impl->loop.stop();
  });
  impl_->thread.join();
}

int HttpServer::port() const { return impl_->port; }
int HttpServer::n_connections() const { return impl_->n_connections; }

void HttpServer::post(std::function<void()> task) {
  if (!impl_->stopped) impl_->loop.post(std::move(task));
}

void HttpServer::every(std::chrono::milliseconds period, std::function<void()> task) {
  impl_->loop.every(period, std::move(task));
}

void HttpServer::close_idle() {
  post([impl = impl_.get()] {
    impl->closing_idle = true;
    for (const auto& c : impl->all()) c->close_when_idle();
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
