// The load generator against a server of a few lines, which answers as it is told.
#include "client/load_run.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "client/sse.h"

namespace braid {
namespace {

TEST(Sse, EventsWhereverTheBytesAreCut) {
  const std::string bytes =
      ": hello\n\ndata: {\"a\":1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\ndata: \n\ndata: lost";
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    std::vector<std::string> events;
    SseParser parser([&](std::string_view data) { events.emplace_back(data); });
    parser.feed(bytes.substr(0, cut));
    parser.feed(bytes.substr(cut));
    EXPECT_EQ(events, (std::vector<std::string>{"{\"a\":1}", "two\nlines", ""})) << cut;
  }
}

// Answers every connection with the same bytes, from one thread each.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::string reply) : reply_(std::move(reply)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 64), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] {
      for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0;) threads_.emplace_back([this, fd] { answer(fd); });
    });
  }
  ~ScriptedServer() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (std::thread& t : threads_) t.join();
    close(listener_);
  }

  HttpUrl url() const { return {"127.0.0.1", std::to_string(port_), ""}; }
  int most_open() const { return most_open_; }

 private:
  void answer(int fd) {
    const int open = ++open_;
    for (int most = most_open_; open > most && !most_open_.compare_exchange_weak(most, open);) {
    }
    std::string request;
    char bytes[4096];
    const auto whole = [&] {  // the head, and the body that it announces
      const size_t head = request.find("\r\n\r\n"), length = request.find("Content-Length: ");
      return head != std::string::npos && length != std::string::npos &&
             request.size() >= head + 4 + std::strtoul(request.c_str() + length + 16, nullptr, 10);
    };
    while (!whole()) {
      const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
      if (n <= 0) break;
      request.append(bytes, static_cast<size_t>(n));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    --open_;
    (void)!send(fd, reply_.data(), reply_.size(), MSG_NOSIGNAL);
    close(fd);
  }

  const std::string reply_;
  int listener_, port_ = 0;
  std::atomic<int> open_{0}, most_open_{0};
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

std::string stream_of(const std::string& events) {
  return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: "
         "close\r\n\r\n" +
         fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", events.size(), events);
}

LoadResult load(const ScriptedServer& server, size_t n, int max_concurrency = 0) {
  LoadOptions o;
  o.url = server.url();
  o.model = "toy";
  o.max_concurrency = max_concurrency;
  Progress progress("", static_cast<int64_t>(n), Progress::Unit::kCount, false);
  return run_load(o, std::vector<BenchPrompt>(n, {"hello", {1, 2}, 3}), progress);
}

TEST(LoadRun, CountsWhatTheServerSays) {
  const ScriptedServer server(
      stream_of("data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"bc\"}]}\n\n"
                "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
                "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n"));
  const LoadResult result = load(server, 20, 4);
  ASSERT_EQ(result.records.size(), 20u);
  for (const LoadRecord& r : result.records) {
    EXPECT_EQ(r.error, "");
    EXPECT_EQ(r.text, "abc");
    EXPECT_EQ(r.prompt_tokens, 2);
    EXPECT_EQ(r.output_tokens, 3);
    EXPECT_EQ(r.itl_s.size(), 1u);
    EXPECT_TRUE(0 < r.ttft_s && r.ttft_s <= r.latency_s && r.latency_s <= result.seconds);
  }
  EXPECT_LE(server.most_open(), 4);
  EXPECT_GE(server.most_open(), 2);
}

TEST(LoadRun, FailuresKeepTheirReason) {
  const ScriptedServer refuses(
      "HTTP/1.1 400 Bad Request\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{\"no\":1}\n");
  EXPECT_EQ(load(refuses, 1).records[0].error, "400: {\"no\":1}\n");
  const ScriptedServer ends(stream_of("data: {\"choices\":[{\"text\":\"a\"}]}\n\n"));
  EXPECT_EQ(load(ends, 1).records[0].error, "the stream ended without [DONE]");
  const ScriptedServer fails(stream_of("data: {\"error\":{\"message\":\"lost\"}}\n\ndata: [DONE]\n\n"));
  EXPECT_EQ(load(fails, 1).records[0].error, "{\"message\":\"lost\"}");
  const ScriptedServer cut("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ndata: ");
  EXPECT_NE(load(cut, 1).records[0].error, "");
}

TEST(LoadRun, ArrivalsHaveTheirRate) {
  const auto times = arrival_times(20000, 50, 1, 3);
  EXPECT_EQ(times.front(), 0);
  EXPECT_NEAR(times.back(), 20000 / 50.0, 10);  // the mean of exponential intervals: 1 % is 1.4 deviations
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_EQ(times, arrival_times(20000, 50, 1, 3));
  EXPECT_EQ(arrival_times(3, std::numeric_limits<double>::infinity(), 1, 3), (std::vector<double>{0, 0, 0}));
}

}  // namespace
}  // namespace braid
