// HTTP/1.1 over one listening socket, on one thread. Keep-alive, pipelining, Content-Length and chunked
// bodies, 100-continue, chunked streaming replies; a client that leaves is noticed while its request runs, a client
// that does not read holds only its own backlog. What a request means is the handler's business (server.h).
//
//   HttpServer http({.host = "127.0.0.1", .port = 0}, [](std::shared_ptr<Exchange> x) { x->reply({.body = "{}"}); });
//   http.start();  // http.port() is the bound port
#pragma once
#include <memory>
#include <string>

#include "server/http_types.h"

namespace braid {

struct HttpOptions {
  std::string host = "0.0.0.0";
  int port = 8000;  // 0: any free one
  int backlog = 4096;
  int64_t max_body_bytes = 64 << 20;
  int max_header_bytes = 32 << 10;
  int max_connections = 16384;   // more are closed at once
  double keep_alive_s = 65;      // idle time between requests; longer than the usual 60 s of proxies and client pools
  double read_timeout_s = 30;    // without a byte, inside a request
  double write_timeout_s = 300;  // without a byte taken, while a reply waits to be sent
};

class HttpServer {
 public:
  HttpServer(HttpOptions options, HttpHandler handler);  // handler: called on the io thread, must not block or throw
  ~HttpServer();                                         // stop()

  void start();  // binds and starts the io thread; throws Error when the address cannot be had
  void stop();   // closes every connection and joins the thread; any thread but io may call, more than once
  int port() const;

  void post(std::function<void()> task);  // any thread: run on the io thread; dropped after stop()
  // IO thread, or before start(): run every `period` until stop().
  void every(std::chrono::milliseconds period, std::function<void()> task);
  void close_idle();  // any thread: ends connections without a request, and every other one after its current request
  int n_connections() const;
  double cpu_seconds() const;  // CPU time of the io thread so far

  struct Impl;  // http_server.cpp

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid
