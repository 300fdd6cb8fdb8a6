// Many HTTP requests of one thread at a time, their replies delivered as they arrive: what a load generator and a chat
// need. Each request has a connection of its own. TLS is a proxy's business.
//
//   HttpLoop loop(url);
//   loop.post("/v1/completions", body, "", {.data = [](std::string_view piece) {...}, .end = [](HttpEnd end) {...}});
//   loop.run();  // until every request has ended
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "client/http_client.h"

namespace braid {

struct HttpEnd {
  int status = 0;     // 0: no reply
  std::string error;  // why it ended early, or the body of a reply that is not 200; empty: a whole reply with 200
};

struct HttpEvents {
  std::function<void(std::string_view)> data;  // pieces of the body of a reply with status 200
  std::function<void(const HttpEnd&)> end;     // once, last
};

// A request under way. Dropping the handle leaves it running.
class HttpCall {
 public:
  virtual ~HttpCall() = default;
  virtual void cancel() = 0;  // closes the connection; the end comes with the error "cancelled"
};

class HttpLoop {
 public:
  explicit HttpLoop(HttpUrl url);  // looks the host up; throws RuntimeFailure where it is unknown
  ~HttpLoop();

  // `key` empty: no Authorization header.
  std::shared_ptr<HttpCall> post(const std::string& route, std::string body, const std::string& key, HttpEvents events);
  void at(std::chrono::steady_clock::time_point when, std::function<void()> task);
  void run();                                     // until nothing is left to do
  bool run_for(std::chrono::milliseconds limit);  // false: nothing is left to do

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid
