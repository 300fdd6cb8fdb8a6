// HTTP itself: framing, limits, time-outs and broken input, over real loopback sockets.
#include "server/http_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "base/log.h"
#include "server/testing/test_client.h"

namespace braid {
namespace {

// Answers with "METHOD path?query body"; /stream sends the body in three pieces; /hold never answers.
class HttpServerTest : public ::testing::Test {
 protected:
  void start(HttpOptions options = HttpOptions()) {
    set_log_level(LogLevel::kOff);
    options.host = "127.0.0.1";
    options.port = 0;
    server_ = std::make_unique<HttpServer>(options, [this](std::shared_ptr<Exchange> x) { handle(x); });
    server_->start();
  }
  void handle(const std::shared_ptr<Exchange>& x) {
    const HttpRequest& r = x->request();
    ++n_requests_;
    if (r.path == "/hold") {
      held_ = x;
      x->on_gone = [this] { ++n_gone_; };
      return;
    }
    if (r.path == "/stream") {
      x->start_stream({.content_type = "text/plain"});
      for (const char* piece : {"one ", "", "two ", "three"}) x->write(piece);
      x->end();
      x->write("never");
      return x->end();
    }
    x->reply({.content_type = "text/plain", .body = fmt::format("{} {}?{} {}", r.method, r.path, r.query, r.body)});
    x->reply({.status = 500});  // only the first counts
  }
  void TearDown() override {
    server_.reset();  // before what its handler touches
    held_ = nullptr;
  }
  TestClient client() { return TestClient(server_->port()); }
  bool alive() { return client().ask("GET", "/alive").status == 200; }

  std::atomic<int> n_requests_{0}, n_gone_{0};
  std::shared_ptr<Exchange> held_;  // io thread
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, KeepAliveAndPipelining) {
  start();
  TestClient c = client();
  EXPECT_EQ(c.ask("GET", "/a?x=1").body, "GET /a?x=1 ");
  EXPECT_EQ(c.ask("POST", "/b", "body").body, "POST /b? body");
  c.send(TestClient::request_bytes("GET", "/1") + TestClient::request_bytes("POST", "/2", "two") +
         TestClient::request_bytes("GET", "/3"));
  EXPECT_EQ(c.read_reply().body, "GET /1? ");
  EXPECT_EQ(c.read_reply().body, "POST /2? two");
  EXPECT_EQ(c.read_reply().body, "GET /3? ");
}

// What comes while a request runs is read, kept, and answered after it; more of it than a bound ends the connection.
TEST_F(HttpServerTest, PipelinedBehindARunningRequest) {
  start();
  TestClient c = client();
  c.send(TestClient::request_bytes("GET", "/hold"));
  while (n_requests_ < 1) std::this_thread::yield();
  for (int i = 0; i < 3; ++i) c.send(TestClient::request_bytes("POST", "/next", std::string(100000, 'n')));
  server_->post([this] { held_->reply({.body = "first"}); });
  EXPECT_EQ(c.read_reply().body, "first");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(c.read_reply().body, "POST /next? " + std::string(100000, 'n'));
  c.send(TestClient::request_bytes("GET", "/hold"));
  while (n_requests_ < 5) std::this_thread::yield();
  c.send(TestClient::request_bytes("POST", "/next", std::string(2 << 20, 'n')));
  EXPECT_TRUE(c.closed_by_server());
  for (int i = 0; i < 1000 && n_gone_ == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(n_gone_, 1);
  EXPECT_TRUE(alive());
}

// A writer that holds back above the bound is told when all has been taken, whether or not the socket was ever full.
TEST_F(HttpServerTest, DrainedAfterABacklog) {
  start();
  for (const size_t n : {Exchange::kBacklogHigh + 1, size_t{16} << 20}) {
    TestClient c = client();
    const int before = n_requests_;
    c.send(TestClient::request_bytes("GET", "/hold"));
    while (n_requests_ == before) std::this_thread::yield();
    server_->post([this, n] {
      held_->start_stream({.content_type = "text/plain"});
      held_->on_drained = [x = held_.get()] {
        EXPECT_EQ(x->backlog_bytes(), 0u);
        x->write("drained");
        x->end();
      };
      held_->write(std::string(n, 'x'));
    });
    const TestReply r = c.read_reply();
    EXPECT_TRUE(r.complete);
    EXPECT_EQ(r.body.size(), n + 7);
    EXPECT_TRUE(r.body.ends_with("drained"));
  }
}

TEST_F(HttpServerTest, BytesMayComeOneAtATime) {
  start();
  TestClient c = client();
  const std::string bytes = TestClient::request_bytes("POST", "/slow", "hello", "X-A: b\r\n");
  for (char b : bytes) {
    c.send({&b, 1});
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  EXPECT_EQ(c.read_reply().body, "POST /slow? hello");
}

TEST_F(HttpServerTest, ChunkedBodies) {
  start();
  TestClient c = client();
  c.send("POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
  c.send("a;note=1\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n");
  EXPECT_EQ(c.read_reply().body, "POST /c? abc0123456789");
  EXPECT_EQ(c.ask("GET", "/next").body, "GET /next? ");
}

TEST_F(HttpServerTest, ExpectContinue) {
  start();
  TestClient c = client();
  c.send("POST /e HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(c.read_reply().status, 100);
  c.send("ok");
  EXPECT_EQ(c.read_reply().body, "POST /e? ok");
}

TEST_F(HttpServerTest, StreamsAsChunksOrUntilClose) {
  start();
  TestClient c = client();
  const TestReply r = c.ask("GET", "/stream");
  EXPECT_EQ(r.headers.at("Transfer-Encoding"), "chunked");
  EXPECT_EQ(r.body, "one two three");
  EXPECT_EQ(c.ask("GET", "/after").status, 200);
  TestClient old = client();
  old.send("GET /stream HTTP/1.0\r\n\r\n");
  const TestReply plain = old.read_reply();
  EXPECT_EQ(plain.headers.count("Transfer-Encoding"), 0u);
  EXPECT_EQ(plain.headers.at("Connection"), "close");
  EXPECT_EQ(plain.body, "one two three");
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  start();
  TestClient c = client();
  const TestReply r = c.ask("HEAD", "/h");
  EXPECT_EQ(r.headers.at("Content-Length"), std::to_string(std::string("HEAD /h? ").size()));
  EXPECT_EQ(c.ask("GET", "/next").body, "GET /next? ");
  EXPECT_EQ(c.ask("HEAD", "/stream").status, 200);
  EXPECT_EQ(c.ask("GET", "/next").body, "GET /next? ");
}

TEST_F(HttpServerTest, ConnectionClose) {
  start();
  TestClient c = client();
  EXPECT_EQ(c.ask("GET", "/", "", "Connection: close\r\n").headers.at("Connection"), "close");
  EXPECT_TRUE(c.closed_by_server());
  TestClient absolute = client();
  EXPECT_EQ(absolute.ask("GET", "http://somewhere:80/p?q").body, "GET /p?q ");
}

TEST_F(HttpServerTest, LimitsAreAnswered) {
  HttpOptions options;
  options.max_body_bytes = 1000;
  options.max_header_bytes = 2000;
  start(options);
  EXPECT_EQ(client().ask("POST", "/ok", std::string(1000, 'x')).status, 200);
  TestClient declared = client();  // refused by its length; the client that sends it all still reads the reply
  EXPECT_EQ(declared.ask("POST", "/big", std::string(3 << 20, 'x')).status, 413);
  EXPECT_TRUE(declared.closed_by_server());
  TestClient chunked = client();
  chunked.send(fmt::format("POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n", 5000,
                           std::string(5000, 'y')));
  EXPECT_EQ(chunked.read_reply().status, 413);
  EXPECT_EQ(client().ask("GET", "/h", "", fmt::format("X-Long: {}\r\n", std::string(5000, 'z'))).status, 431);
  EXPECT_EQ(n_requests_, 1);
}

TEST_F(HttpServerTest, TimeOuts) {
  HttpOptions options;
  options.keep_alive_s = 0.1;
  options.read_timeout_s = 0.1;
  start(options);
  TestClient idle = client(), half = client();
  EXPECT_EQ(idle.ask("GET", "/").status, 200);
  half.send("POST /x HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_TRUE(idle.closed_by_server(2000));
  EXPECT_TRUE(half.closed_by_server(2000));
  EXPECT_EQ(n_requests_, 1);
}

TEST_F(HttpServerTest, ClientThatLeavesIsNoticed) {
  start();
  {
    TestClient c = client();
    c.send(TestClient::request_bytes("GET", "/hold"));
    while (n_requests_ == 0) std::this_thread::yield();
    EXPECT_EQ(n_gone_, 0);
  }
  for (int i = 0; i < 1000 && n_gone_ == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(n_gone_, 1);
  EXPECT_TRUE(alive());
}

TEST_F(HttpServerTest, TooManyConnectionsAreClosed) {
  HttpOptions options;
  options.max_connections = 2;
  start(options);
  TestClient a = client(), b = client();
  EXPECT_EQ(a.ask("GET", "/").status, 200);
  EXPECT_EQ(b.ask("GET", "/").status, 200);
  EXPECT_TRUE(client().closed_by_server());
  EXPECT_EQ(a.ask("GET", "/").status, 200);
}

TEST_F(HttpServerTest, CloseIdleLetsRunningRequestsEnd) {
  start();
  TestClient idle = client(), busy = client();
  EXPECT_EQ(idle.ask("GET", "/").status, 200);
  busy.send(TestClient::request_bytes("GET", "/hold"));
  while (n_requests_ < 2) std::this_thread::yield();
  server_->close_idle();
  EXPECT_TRUE(idle.closed_by_server());
  server_->post([this] { held_->reply({.body = "at last"}); });
  const TestReply r = busy.read_reply();
  EXPECT_EQ(r.body, "at last");
  EXPECT_EQ(r.headers.at("Connection"), "close");
  EXPECT_TRUE(busy.closed_by_server());
}

// Broken bytes get a 400 or a closed connection, and the server answers the next client.
TEST_F(HttpServerTest, GarbageDoesNotHurt) {
  HttpOptions options;
  options.max_body_bytes = 100000;
  start(options);
  for (const char* bytes :
       {"\r\n\r\n\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", "\x16\x03\x01\x02\x00\x01\x00\x01",
        "GET / HTTP/1.1\r\nBad Header\r\n\r\n"}) {
    TestClient c = client();
    c.send(bytes);
    const TestReply r = c.read_reply(false, 100);  // some are only half a request to the parser
    EXPECT_TRUE(r.status == 0 || r.status == 400 || r.status == 413) << r.status << ' ' << bytes;
  }
  std::mt19937 random(7);
  const std::string good =
      TestClient::request_bytes("POST", "/f", std::string(50, 'b'), "A: b\r\nExpect: 100-continue\r\n");
  for (int i = 0; i < 300; ++i) {
    std::string bytes = good;
    for (int k = random() % 4; k >= 0; --k) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 3 == 0) bytes.resize(random() % bytes.size());
    TestClient c = client();
    c.send(bytes);
    if (random() % 2) c.read_reply(false, 1);
  }
  EXPECT_TRUE(alive());
}

}  // namespace
}  // namespace braid
