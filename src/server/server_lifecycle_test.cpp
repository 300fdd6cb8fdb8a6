// What happens to requests whose client leaves or does not read, many at once, and when the engine or the server ends.
#include "base/error.h"
#include "server/testing/server_fixture.h"

namespace braid {
namespace {

using ServerLifecycleTest = ServerTest;

TEST_F(ServerLifecycleTest, DisconnectAborts) {
  start([](const Request&) { return FakeScript{.answer = std::string(3000, 'x')}; }, milliseconds(5));
  for (const char* stream : {"true", "false"}) {
    const size_t before = engine_->n_aborted();
    TestClient c = client();
    c.send(TestClient::request_bytes("POST", "/v1/completions",
                                     fmt::format(R"({{"prompt":"a","n":2,"stream":{}}})", stream)));
    const bool head = c.wait_for("data: ", stream[0] == 't' ? 5000 : 1);
    EXPECT_EQ(head, stream[0] == 't');
    ASSERT_TRUE(eventually([&] { return engine_->n_live() == 2; }));
    c.close();
    EXPECT_TRUE(
        eventually([&] { return engine_->n_live() == 0 && engine_->n_aborted() == before + 2; }, milliseconds(1000)));
  }
  EXPECT_NE(
      client().ask("GET", "/metrics").body.find("braid_client_disconnects_total{model_name=\"toy\",engine=\"0\"} 2\n"),
      std::string::npos);
}

TEST_F(ServerLifecycleTest, SlowReaderMergesAndHoldsNobody) {
  const std::string long_answer(200000, 'y');
  start([&](const Request& r) {
    return FakeScript{.answer = r.prompt[0] == 'l' ? long_answer : "quick", .tokens_per_step = 4};
  });
  engine_->set_max_model_len(1 << 20);
  server_.reset();  // the length is read at construction
  ServerOptions options;
  options.http.host = "127.0.0.1";
  options.http.port = 0;
  options.model_names = {"toy"};
  server_ = std::make_unique<Server>(options, *engine_, text_);
  server_->start();
  TestClient slow(server_->port(), 4096);
  slow.send(TestClient::request_bytes("POST", "/v1/completions", R"({"prompt":"l","stream":true})"));
  ASSERT_TRUE(eventually([&] { return engine_->submitted().size() == 1; }));
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(post_ok("/v1/completions", R"({"prompt":"q"})")["choices"][0]["text"], "quick");
  ASSERT_TRUE(eventually([&] { return engine_->n_live() == 0; }, milliseconds(10000)));
  const TestReply r = slow.read_reply();
  ASSERT_TRUE(r.complete);
  std::string text;
  const auto events = sse_events(r.body);
  for (const std::string& e : events)
    if (e != "[DONE]") text += Json::parse(e)["choices"][0]["text"];
  EXPECT_EQ(text, long_answer);
  EXPECT_EQ(events.back(), "[DONE]");
  // 50,000 steps of 190 bytes are more than a socket's buffers take: some must have been merged.
  EXPECT_LT(events.size(), 45000u);
}

TEST_F(ServerLifecycleTest, ManyStreams) {
  constexpr int kStreams = 400;
  start([](const Request& r) { return FakeScript{.answer = std::string(40, static_cast<char>(r.prompt[0]))}; },
        milliseconds(2));
  std::vector<TestClient> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(client());
    const std::string body = fmt::format(R"({{"prompt":"{}","stream":true}})", static_cast<char>('a' + i % 26));
    clients.back().send(TestClient::request_bytes("POST", "/v1/completions", body));
  }
  for (int i = 0; i < kStreams; ++i) {
    const TestReply r = clients[i].read_reply(false, 20000);
    ASSERT_TRUE(r.complete) << i;
    std::string text;
    for (const std::string& e : sse_events(r.body))
      if (e != "[DONE]") text += Json::parse(e)["choices"][0]["text"];
    EXPECT_EQ(text, std::string(40, static_cast<char>('a' + i % 26)));
  }
}

TEST_F(ServerLifecycleTest, HealthFollowsTheEngine) {
  ServerOptions options;
  options.stall_s = 0.4;
  start([](const Request&) { return FakeScript{.answer = std::string(1000, 'x')}; }, milliseconds(2), options);
  EXPECT_EQ(client().ask("GET", "/health").status, 200);
  TestClient running = client();
  running.send(TestClient::request_bytes("POST", "/v1/completions", R"({"prompt":"a","stream":true})"));
  ASSERT_TRUE(running.wait_for("data: "));
  engine_->pause(true);
  EXPECT_TRUE(eventually([&] { return client().ask("GET", "/health").status == 503; }));
  engine_->pause(false);
  EXPECT_TRUE(eventually([&] { return client().ask("GET", "/health").status == 200; }));
  engine_->set_failure("rank 3 is gone");
  const TestReply health = client().ask("GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_NE(health.body.find("rank 3 is gone"), std::string::npos);
  const TestReply cut = running.read_reply();  // a running stream ends with an error event
  ASSERT_TRUE(cut.complete);
  const auto events = sse_events(cut.body);
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["message"], "rank 3 is gone");
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"a"})").status, 503);
}

TEST_F(ServerLifecycleTest, DrainFinishesWhatRuns) {
  start([](const Request&) { return FakeScript{.answer = std::string(100, 'x')}; }, milliseconds(3));
  TestClient running = client(), idle = client();
  EXPECT_EQ(idle.ask("GET", "/ping").status, 200);
  running.send(TestClient::request_bytes("POST", "/v1/completions", R"({"prompt":"a","stream":true})"));
  ASSERT_TRUE(running.wait_for("data: "));
  server_->drain(milliseconds(10000));
  EXPECT_TRUE(eventually([&] { return client().ask("GET", "/health").status == 503; }));
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"a"})").status, 503);
  const TestReply r = running.read_reply();
  EXPECT_TRUE(r.complete);
  EXPECT_EQ(sse_events(r.body).back(), "[DONE]");
  const auto begin = Clock::now();
  server_->wait();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3));
  EXPECT_TRUE(idle.closed_by_server());
}

TEST_F(ServerLifecycleTest, DrainDeadlineCutsShort) {
  start([](const Request&) { return FakeScript{.answer = std::string(3000, 'x')}; }, milliseconds(5));
  TestClient running = client();
  running.send(TestClient::request_bytes("POST", "/v1/completions", R"({"prompt":"a","stream":true})"));
  ASSERT_TRUE(running.wait_for("data: "));
  server_->drain(milliseconds(100));
  const TestReply r = running.read_reply();
  ASSERT_TRUE(r.complete);
  const auto events = sse_events(r.body);
  EXPECT_EQ(Json::parse(events[events.size() - 2])["choices"][0]["finish_reason"], "abort");
  server_->wait();
  EXPECT_TRUE(eventually([&] { return engine_->n_live() == 0; }));
}

// A client that never reads must not hold up the end.
TEST_F(ServerLifecycleTest, DrainDoesNotWaitForASlowReader) {
  start([](const Request&) { return FakeScript{.answer = std::string(4000, 'x'), .tokens_per_step = 1}; });
  std::vector<TestClient> slow;
  const std::string big = R"({"prompt":"a","n":32,"logprobs":20,"stream":true})";
  for (int i = 0; i < 2; ++i) {
    slow.emplace_back(server_->port(), 4096);
    slow.back().send(TestClient::request_bytes("POST", "/v1/completions", big));
  }
  ASSERT_TRUE(eventually([&] { return !engine_->submitted().empty() && engine_->n_live() == 0; }, milliseconds(20000)));
  server_->drain(milliseconds(200));
  const auto begin = Clock::now();
  server_->wait();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(4));
}

TEST_F(ServerLifecycleTest, StopEndsAtOnce) {
  start([](const Request&) { return FakeScript{.hang = true}; });
  TestClient running = client();
  running.send(TestClient::request_bytes("POST", "/v1/completions", R"({"prompt":"a"})"));
  ASSERT_TRUE(eventually([&] { return engine_->n_live() == 1; }));
  const auto begin = Clock::now();
  server_->stop();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2));
  EXPECT_TRUE(running.closed_by_server());
  EXPECT_TRUE(eventually([&] { return engine_->n_live() == 0; }));  // aborted
}

TEST_F(ServerLifecycleTest, TakenPortIsAnError) {
  start();
  ServerOptions options;
  options.http.host = "127.0.0.1";
  options.http.port = server_->port();
  options.model_names = {"toy"};
  Server second(options, *engine_, text_);
  EXPECT_THROW(second.start(), Error);
}

}  // namespace
}  // namespace braid
