// The page's files as a browser asks for them, and the numbers behind its live view.
#include "server/page.h"

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "server/testing/server_fixture.h"

namespace braid {
namespace {

using PageTest = ServerTest;
namespace fs = std::filesystem;

const fs::path kFolder = fs::path(BRAID_SOURCE_DIR) / "src/server/page";

std::string text_of(const fs::path& file) {
  std::stringstream out;
  out << std::ifstream(file, std::ios::binary).rdbuf();
  return out.str();
}
std::string path_of(const fs::path& file) {
  const std::string name = file.filename().string();
  return name == "index.html" ? "/" : "/page/" + name;
}

TEST_F(PageTest, EveryFileIsServedAsItIsWithItsType) {
  start();
  const std::map<std::string, std::string> types = {{".html", "text/html; charset=utf-8"},
                                                    {".css", "text/css; charset=utf-8"},
                                                    {".js", "text/javascript; charset=utf-8"},
                                                    {".svg", "image/svg+xml"}};
  int n = 0;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    SCOPED_TRACE(entry.path());
    const TestReply r = client().ask("GET", path_of(entry.path()));
    ASSERT_EQ(r.status, 200);
    EXPECT_EQ(r.headers.at("Content-Type"), types.at(entry.path().extension().string()));
    EXPECT_EQ(r.body, text_of(entry.path()));
    ++n;
  }
  EXPECT_GE(n, 10);
}

TEST_F(PageTest, ThePolicyAllowsNothingButItsOwnFiles) {
  start();
  const TestReply r = client().ask("GET", "/");
  const std::string& policy = r.headers.at("Content-Security-Policy");
  for (const char* rule :
       {"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "base-uri 'none'",
        "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"})
    EXPECT_NE(policy.find(rule), policy.npos) << rule;
  EXPECT_EQ(policy.find("unsafe"), policy.npos);
  EXPECT_EQ(policy.find('*'), policy.npos);
  EXPECT_EQ(r.headers.at("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(r.headers.at("Referrer-Policy"), "no-referrer");
  EXPECT_FALSE(r.headers.count("Access-Control-Allow-Origin"));  // other sites have no use for it
}

TEST_F(PageTest, TheBrowserAsksAgainAndGetsOnlyWhatChanged) {
  start();
  const TestReply first = client().ask("GET", "/page/main.js");
  EXPECT_EQ(first.headers.at("Cache-Control"), "no-cache");
  const std::string tag = first.headers.at("ETag");
  const TestReply again = client().ask("GET", "/page/main.js", "", "If-None-Match: " + tag + "\r\n");
  EXPECT_EQ(again.status, 304);
  EXPECT_EQ(again.body, "");
  EXPECT_EQ(again.headers.at("ETag"), tag);
  EXPECT_EQ(client().ask("GET", "/page/main.js", "", "If-None-Match: \"other\"\r\n").status, 200);
  EXPECT_NE(client().ask("GET", "/page/chat.js").headers.at("ETag"), tag);
  TestClient one = client();  // nothing of a 304 is left on the connection
  EXPECT_EQ(one.ask("GET", "/page/main.js", "", "If-None-Match: " + tag + "\r\n").status, 304);
  EXPECT_EQ(one.ask("GET", "/page/main.js").body, first.body);
}

TEST_F(PageTest, OtherMethodsAndPathsAreRefused) {
  start();
  EXPECT_EQ(client().ask("HEAD", "/").status, 200);
  const TestReply post = client().ask("POST", "/", "{}");
  EXPECT_EQ(post.status, 405);
  EXPECT_EQ(post.headers.at("Allow"), "GET");
  for (const char* path :
       {"/page", "/page/", "/page/index.html", "/page/../page.cpp", "/page/%2e%2e/page.cpp", "/page/main.js.map"})
    EXPECT_EQ(client().ask("GET", path).status, 404) << path;
}

TEST_F(PageTest, TheFilesNeedNoKeyAndTheNumbersDo) {
  ServerOptions options;
  options.api_keys = {"secret"};
  start(FakeEngine::upper_case, {}, options);
  EXPECT_EQ(client().ask("GET", "/").status, 200);
  EXPECT_EQ(client().ask("GET", "/page/main.js").status, 200);
  EXPECT_EQ(client().ask("GET", "/stats").status, 401);
  EXPECT_EQ(client().ask("GET", "/stats", "", "Authorization: Bearer secret\r\n").status, 200);
}

TEST_F(PageTest, StatsTellWhatTheEngineDoes) {
  start();
  chat_ok("");
  const TestReply r = client().ask("GET", "/stats");
  ASSERT_EQ(r.status, 200);
  EXPECT_EQ(r.headers.at("Content-Type"), "application/json");
  const Json j = Json::parse(r.body);
  EXPECT_EQ(j["model"], "toy");
  EXPECT_EQ(j["max_model_len"], 4096);
  EXPECT_EQ(j["unhealthy"], "");
  EXPECT_GT(j["now_s"], 0);
  EXPECT_EQ(j["layout"], Json::parse(R"({"tp":2,"dcp":2,"pcp":1,"dp":1,"interleave":1})"));
  EXPECT_EQ(j["requests"]["running"], 0);
  EXPECT_GT(j["tokens"]["generated"], 0);
  EXPECT_GT(j["n_steps"], 0);
  EXPECT_EQ(j["ranks"][1], Json::parse(R"({"rank":1,"owner":1,"rows_used":29,"rows_cached":16,"rows_total":160})"));
  EXPECT_EQ(j["steps"][0], Json::parse(R"({"number":7,"seconds":0.25,"prefill_tokens":40,"decode_tokens":2})"));
  engine_->set_failure("rank 1 is gone");
  EXPECT_EQ(Json::parse(client().ask("GET", "/stats").body)["unhealthy"], "rank 1 is gone");
}

TEST_F(PageTest, StatsNeverWaitForAStep) {
  start([](const Request&) { return FakeScript{.hang = true}; });
  TestClient busy = client();
  busy.send(
      TestClient::request_bytes("POST", "/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})"));
  ASSERT_TRUE(eventually([&] { return engine_->n_live() == 1; }));
  engine_->pause(true);
  const auto asked = Clock::now();
  EXPECT_EQ(Json::parse(client().ask("GET", "/stats").body)["requests"]["running"], 1);
  EXPECT_LT(Clock::now() - asked, std::chrono::seconds(1));
}

// What the policy would catch in the browser only, and what it cannot.
TEST(PageFiles, HoldNoMarkupSinksAndNoOtherAddresses) {
  const std::regex forbidden(
      R"(innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|javascript:|\son[a-z]+=|\sstyle=)");
  const std::regex address(R"(https?://[^\s"']+)");
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    const std::string text = text_of(entry.path());
    std::smatch found;
    EXPECT_FALSE(std::regex_search(text, found, forbidden)) << entry.path() << ": " << found.str();
    for (std::sregex_iterator it(text.begin(), text.end(), address), end; it != end; ++it)
      EXPECT_EQ(it->str(), "http://www.w3.org/2000/svg") << entry.path();
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 600) << entry.path();
  }
}

TEST(PageFiles, EveryImportIsServed) {
  const std::regex import(R"re(from "\./([a-z_]+\.js)")re");
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    const std::string text = text_of(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), import), end; it != end; ++it)
      EXPECT_NE(find_page_file("/page/" + it->str(1)), nullptr) << entry.path() << " imports " << it->str(1);
  }
}

}  // namespace
}  // namespace braid
