// A server over a fake engine and toy text on a free loopback port, for tests.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "server/server.h"
#include "server/testing/fake_engine.h"
#include "server/testing/fake_text.h"
#include "server/testing/test_client.h"

namespace braid {

using std::chrono::milliseconds;

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() { set_log_level(LogLevel::kOff); }

  void start(FakeEngine::Script script = FakeEngine::upper_case, std::chrono::microseconds step = {},
             ServerOptions options = ServerOptions()) {
    options.http.host = "127.0.0.1";
    options.http.port = 0;
    if (options.model_names.empty()) options.model_names = {"toy", "alias"};
    engine_ = std::make_unique<FakeEngine>(std::move(script), step);
    server_ = std::make_unique<Server>(options, *engine_, text_);
    server_->start();
  }
  static FakeEngine::Script answer(const std::string& text) {
    return [text](const Request&) { return FakeScript{.answer = text}; };
  }

  TestClient client() { return TestClient(server_->port()); }
  TestReply post(const std::string& path, const std::string& body, const std::string& headers = "") {
    return client().ask("POST", path, body, headers);
  }
  Json post_ok(const std::string& path, const std::string& body) {
    const TestReply r = post(path, body);
    EXPECT_EQ(r.status, 200) << r.body;
    return Json::parse(r.body, nullptr, false);
  }
  Json chat_ok(const std::string& extra) {
    return post_ok("/v1/chat/completions",
                   fmt::format(R"({{"model":"toy","messages":[{{"role":"user","content":"hi"}}]{}}})", extra));
  }
  std::vector<std::string> chat_stream(const std::string& extra) {
    const TestReply r =
        post("/v1/chat/completions",
             fmt::format(R"({{"messages":[{{"role":"user","content":"hi"}}],"stream":true{}}})", extra));
    EXPECT_EQ(r.status, 200) << r.body;
    EXPECT_TRUE(r.complete);
    return sse_events(r.body);
  }
  template <typename F>
  bool eventually(F condition, milliseconds limit = milliseconds(5000)) {
    const auto end = Clock::now() + limit;
    while (Clock::now() < end) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return condition();
  }

  FakeText text_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Server> server_;  // destroyed first
};

}  // namespace braid
