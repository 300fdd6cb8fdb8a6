#include "client/http_loop.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "base/error.h"

namespace braid {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr size_t kMaxErrorBody = 4096;

class StreamedCall final : public HttpCall, public std::enable_shared_from_this<StreamedCall> {
 public:
  StreamedCall(asio::io_context& io, http::request<http::string_body> request, HttpEvents events)
      : socket_(io), request_(std::move(request)), events_(std::move(events)) {
    parser_.body_limit(boost::none);
  }

  void start(const Tcp::resolver::results_type& addresses) {
    asio::async_connect(socket_, addresses, [self = shared_from_this()](ErrorCode e, const auto&) {
      if (e) return self->end(e.message());
      self->socket_.set_option(Tcp::no_delay(true), e);
      http::async_write(self->socket_, self->request_,
                        [self](ErrorCode failed, size_t) { failed ? self->end(failed.message()) : self->read(); });
    });
  }

  void cancel() override {
    if (ended_) return;
    ErrorCode ignored;
    socket_.close(ignored);
    end("cancelled");
  }

 private:
  void read() {
    http::async_read_some(socket_, buffer_, parser_, [self = shared_from_this()](ErrorCode e, size_t) {
      if (self->ended_) return;
      self->take_body();
      if (e) return self->end(e.message());
      self->parser_.is_done() ? self->end("") : self->read();
    });
  }

  void take_body() {
    if (!parser_.is_header_done()) return;
    std::string& body = parser_.get().body();
    if (body.empty()) return;
    if (parser_.get().result_int() == 200) {
      events_.data(body);
    } else if (error_body_.size() < kMaxErrorBody) {
      error_body_ += body;
    }
    body.clear();
  }

  void end(const std::string& error) {
    if (std::exchange(ended_, true)) return;
    const int status = parser_.is_header_done() ? static_cast<int>(parser_.get().result_int()) : 0;
    const auto on_end = std::move(events_.end);
    events_ = {};
    on_end({status, !error.empty() || status == 200 ? error : error_body_.empty() ? "no text" : error_body_});
  }

  Tcp::socket socket_;
  http::request<http::string_body> request_;
  boost::beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
  HttpEvents events_;
  std::string error_body_;
  bool ended_ = false;
};

}  // namespace

struct HttpLoop::Impl {
  HttpUrl url;
  asio::io_context io{1};
  Tcp::resolver::results_type addresses;
};

HttpLoop::HttpLoop(HttpUrl url) : impl_(std::make_unique<Impl>()) {
  impl_->url = std::move(url);
  ErrorCode e;
  impl_->addresses = Tcp::resolver(impl_->io).resolve(impl_->url.host, impl_->url.port, e);
  if (e) throw RuntimeFailure("the host " + impl_->url.host + " cannot be found: " + e.message());
}

HttpLoop::~HttpLoop() = default;

std::shared_ptr<HttpCall> HttpLoop::post(const std::string& route, std::string body, const std::string& key,
                                         HttpEvents events) {
  http::request<http::string_body> request(http::verb::post, impl_->url.path + route, 11);
  request.set(http::field::host, impl_->url.host);
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  if (!key.empty()) request.set(http::field::authorization, "Bearer " + key);
  request.body() = std::move(body);
  request.prepare_payload();
  const auto call = std::make_shared<StreamedCall>(impl_->io, std::move(request), std::move(events));
  call->start(impl_->addresses);
  return call;
}

void HttpLoop::at(std::chrono::steady_clock::time_point when, std::function<void()> task) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->io, when);
  timer->async_wait([timer, task = std::move(task)](ErrorCode e) {
    if (!e) task();
  });
}

void HttpLoop::run() {
  impl_->io.restart();
  impl_->io.run();
}

bool HttpLoop::run_for(std::chrono::milliseconds limit) {
  impl_->io.restart();
  impl_->io.run_for(limit);
  return !impl_->io.stopped();
}

}  // namespace braid
