// What the HTTP layer hands to its handler. No Asio here: the handler and everything above it stay cheap to compile.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace braid {

using Clock = std::chrono::steady_clock;

struct HttpRequest {
  std::string method;                                        // "GET", upper case as sent
  std::string path;                                          // without the query, not percent-decoded
  std::string query;                                         // after '?', may be empty
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  Clock::time_point arrived;  // when the last byte of the request came in

  std::string_view header(std::string_view lower_case_name) const {
    for (const auto& [name, value] : headers)
      if (name == lower_case_name) return value;
    return {};
  }
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body{};
  std::vector<std::pair<std::string, std::string>> headers{};  // beyond Content-Type, -Length, Connection
  bool close = false;                                          // end the connection after this reply
};

// One request and its answer. IO thread only. Exactly one of reply() or start_stream() .. end(); whatever comes after
// the end, or after the client left, is ignored, so that callers need not know.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual void reply(HttpReply reply) = 0;
  // Sends the head at once; `head.body` is ignored. Pieces follow, each its own HTTP chunk, sent when the current turn
  // of the io thread ends.
  virtual void start_stream(HttpReply head) = 0;
  virtual void write(std::string_view piece) = 0;
  virtual void end() = 0;
  virtual size_t backlog_bytes() const = 0;  // written but not yet taken by the client's socket
  virtual bool open() const = 0;             // a reply can still reach the client

  std::function<void()> on_gone;     // the client left before the end; called once
  std::function<void()> on_drained;  // a backlog above kBacklogHigh has become empty, and the stream has not ended

  // A writer that merges its output while the backlog is above this never queues more than one merged piece.
  static constexpr size_t kBacklogHigh = 64 << 10;
};

using HttpHandler = std::function<void(std::shared_ptr<Exchange>)>;

}  // namespace braid
