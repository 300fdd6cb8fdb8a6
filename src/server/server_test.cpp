// The OpenAI routes over a fake engine and toy text, through real loopback sockets: requests and expected replies.
#include "base/error.h"
#include "server/testing/server_fixture.h"

namespace braid {
namespace {

TEST_F(ServerTest, ChatReply) {
  start([](const Request&) { return FakeScript{.answer = "Hello \"w\xC3\xB6rld\"\n", .cached_tokens = 3}; });
  const TestReply r = post("/v1/chat/completions", R"({"model":"toy","messages":[{"role":"user","content":"hi"}]})",
                           "X-Request-Id: abc-1\r\n");
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.headers.at("X-Request-Id"), "abc-1");
  EXPECT_EQ(r.headers.at("Access-Control-Allow-Origin"), "*");
  const Json j = Json::parse(r.body);
  EXPECT_EQ(j["id"], "chatcmpl-abc-1");
  EXPECT_EQ(j["object"], "chat.completion");
  EXPECT_EQ(j["model"], "toy");
  const Json& c = j["choices"][0];
  EXPECT_EQ(c["index"], 0);
  EXPECT_EQ(c["message"]["role"], "assistant");
  EXPECT_EQ(c["message"]["content"], "Hello \"w\xC3\xB6rld\"\n");
  EXPECT_EQ(c["finish_reason"], "stop");
  EXPECT_TRUE(c["logprobs"].is_null());
  EXPECT_EQ(j["usage"]["prompt_tokens"], std::string("<user>hi<assistant>").size());
  EXPECT_EQ(j["usage"]["completion_tokens"], 16);  // 15 bytes and the end token
  EXPECT_EQ(j["usage"]["total_tokens"], 16 + 19);
  EXPECT_EQ(j["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
}

TEST_F(ServerTest, StreamOrder) {
  start(answer("a\xC3\xB6z"));
  const auto events = chat_stream(R"(,"stream_options":{"include_usage":true})");
  ASSERT_GE(events.size(), 5u);
  EXPECT_EQ(events.back(), "[DONE]");
  std::vector<Json> chunks;
  for (size_t i = 0; i + 1 < events.size(); ++i) chunks.push_back(Json::parse(events[i]));
  EXPECT_EQ(chunks[0]["choices"][0]["delta"], Json::parse(R"({"role":"assistant","content":""})"));
  std::string text;
  for (size_t i = 1; i + 2 < chunks.size(); ++i) {
    EXPECT_TRUE(chunks[i]["choices"][0]["finish_reason"].is_null());
    text += chunks[i]["choices"][0]["delta"]["content"];
    EXPECT_EQ(chunks[i]["id"], chunks[0]["id"]);
    EXPECT_EQ(chunks[i]["object"], "chat.completion.chunk");
  }
  EXPECT_EQ(text, "a\xC3\xB6z");
  const Json& finish = chunks[chunks.size() - 2];
  EXPECT_EQ(finish["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(finish["choices"][0]["delta"], Json::object());
  EXPECT_EQ(chunks.back()["choices"], Json::array());
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 5);
}

TEST_F(ServerTest, StreamWithoutUsageEndsWithFinish) {
  start(answer("ab"));
  const auto events = chat_stream("");
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["choices"][0]["finish_reason"], "stop");
}

TEST_F(ServerTest, StopStringEndsInsideAStep) {
  start([](const Request&) { return FakeScript{.answer = "one two STOP three", .tokens_per_step = 5}; });
  const Json j = chat_ok(R"(,"stop":["STOP"])");
  EXPECT_EQ(j["choices"][0]["message"]["content"], "one two ");
  EXPECT_EQ(j["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(j["choices"][0]["stop_reason"], "STOP");
  EXPECT_EQ(j["usage"]["completion_tokens"], 12);  // the tokens after the match do not count
  EXPECT_TRUE(eventually([&] { return engine_->n_live() == 0; }));
  const Json kept = chat_ok(R"(,"stop":"STOP","include_stop_str_in_output":true)");
  EXPECT_EQ(kept["choices"][0]["message"]["content"], "one two STOP");
}

TEST_F(ServerTest, LengthAndStopIds) {
  start(answer("abcdefgh"));
  EXPECT_EQ(chat_ok(R"(,"max_tokens":3)")["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(chat_ok(R"(,"max_tokens":3,"max_completion_tokens":2)")["usage"]["completion_tokens"], 2);
  const Json j = chat_ok(R"(,"stop_token_ids":[100])");
  EXPECT_EQ(j["choices"][0]["message"]["content"], "abc");
  EXPECT_EQ(j["choices"][0]["finish_reason"], "stop");
}

TEST_F(ServerTest, SamplingReachesTheEngine) {
  ServerOptions options;
  options.default_sampling.top_p = 0.95f;
  start(answer("x"), {}, options);
  chat_ok(
      R"(,"temperature":0,"top_k":-1,"min_p":0.1,"seed":-1,"presence_penalty":0.5,"frequency_penalty":-0.5,"repetition_penalty":1.1,"logit_bias":{"5":-100,"7":1.5},"min_tokens":1,"ignore_eos":true,"max_tokens":2)");
  chat_ok(R"(,"n":2,"seed":7)");
  const auto seen = engine_->submitted();
  ASSERT_EQ(seen.size(), 3u);
  const SamplingParams& s = seen[0].sampling;
  EXPECT_EQ(s.temperature, 0.0f);
  EXPECT_EQ(s.top_p, 0.95f);
  EXPECT_EQ(s.top_k, 0);
  EXPECT_EQ(s.min_p, 0.1f);
  EXPECT_EQ(s.seed, ~0ull);
  EXPECT_EQ(s.presence_penalty, 0.5f);
  EXPECT_EQ(s.frequency_penalty, -0.5f);
  EXPECT_EQ(s.repetition_penalty, 1.1f);
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, -100.0f}, {7, 1.5f}}));
  EXPECT_EQ(s.min_tokens, 1);
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_EQ(s.max_tokens, 2);
  EXPECT_EQ(seen[1].sampling.temperature, 1.0f);
  EXPECT_EQ(seen[1].sampling.max_tokens, 4096 - 19);  // what is left of the context
  EXPECT_EQ(seen[1].sampling.seed, 7u);
  EXPECT_NE(seen[2].sampling.seed, 7u);
}

TEST_F(ServerTest, SeveralChoices) {
  start([](const Request& r) { return FakeScript{.answer = fmt::format("answer {}", r.id.value)}; });
  const Json j = chat_ok(R"(,"n":3)");
  ASSERT_EQ(j["choices"].size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(j["choices"][i]["index"], i);
    EXPECT_EQ(j["choices"][i]["message"]["content"], fmt::format("answer {}", i + 1));
  }
  EXPECT_EQ(j["usage"]["prompt_tokens"], 19);
  EXPECT_EQ(j["usage"]["completion_tokens"], 27);
  std::map<int, std::string> texts;
  std::map<int, int> finishes;
  for (const std::string& e : chat_stream(R"(,"n":3)")) {
    if (e == "[DONE]") continue;
    const Json chunk = Json::parse(e);
    const Json& c = chunk["choices"][0];
    texts[c["index"]] += c["delta"].value("content", "");
    finishes[c["index"]] += !c["finish_reason"].is_null();
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "answer 4"}, {1, "answer 5"}, {2, "answer 6"}}));
  EXPECT_EQ(finishes, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}}));
}

TEST_F(ServerTest, ReasoningAndTools) {
  start(answer("<think>hm</think>so [look {\"q\":1}]"));
  constexpr const char* kTools = R"(,"tools":[{"type":"function","function":{"name":"look","parameters":{}}}])";
  const Json j = chat_ok("");
  EXPECT_EQ(j["choices"][0]["message"]["reasoning_content"], "hm");
  EXPECT_EQ(j["choices"][0]["message"]["content"], "so [look {\"q\":1}]");  // no tools offered, none parsed
  const Json t = chat_ok(kTools);
  EXPECT_EQ(t["choices"][0]["finish_reason"], "tool_calls");
  const Json& call = t["choices"][0]["message"]["tool_calls"][0];
  EXPECT_EQ(call["function"]["name"], "look");
  EXPECT_EQ(call["function"]["arguments"], "{\"q\":1}");
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(chat_ok(fmt::format(R"({},"tool_choice":"none")", kTools))["choices"][0]["finish_reason"], "stop");
  std::string reasoning, content, finish;
  Json streamed;
  for (const std::string& e : chat_stream(kTools)) {
    if (e == "[DONE]") continue;
    const Json chunk = Json::parse(e);
    const Json& c = chunk["choices"][0];
    reasoning += c["delta"].value("reasoning_content", "");
    content += c["delta"].value("content", "");
    if (c["delta"].contains("tool_calls")) streamed = c["delta"]["tool_calls"][0];
    if (c["finish_reason"].is_string()) finish = c["finish_reason"];
  }
  EXPECT_EQ(reasoning, "hm");
  EXPECT_EQ(content, "so ");
  EXPECT_EQ(streamed["index"], 0);
  EXPECT_EQ(streamed["function"]["name"], "look");
  EXPECT_EQ(finish, "tool_calls");
}

TEST_F(ServerTest, MessagesReachTheTemplate) {
  start();
  const Json j = post_ok("/v1/chat/completions",
                         R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":
    [{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"r"}],
    "chat_template_kwargs":{"enable_thinking":true}})");
  const auto prompt = text_.decode(engine_->submitted()[0].prompt, true);
  EXPECT_TRUE(prompt.starts_with("<user>a<assistant>[{\"id\"")) << prompt;  // keys in the client's order
  EXPECT_TRUE(prompt.ends_with("<tool>r<assistant><think>")) << prompt;
  EXPECT_TRUE(j["choices"][0]["message"].contains("reasoning_content"));  // the prompt had opened the block
}

TEST_F(ServerTest, ChatLogprobs) {
  start(answer("a\xC3\xB6"));
  const Json j = chat_ok(R"(,"logprobs":true,"top_logprobs":2)");
  const Json& content = j["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 4u);  // a, two halves of a letter, the end
  EXPECT_EQ(content[0]["token"], "a");
  EXPECT_EQ(content[0]["logprob"], -0.25);
  EXPECT_EQ(content[0]["bytes"], Json::parse("[97]"));
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(content[0]["top_logprobs"][1]["token"], "b");
  EXPECT_EQ(content[1]["bytes"], Json::parse("[195]"));
  size_t n_streamed = 0;
  for (const std::string& e : chat_stream(R"(,"logprobs":true)"))
    if (e != "[DONE]")
      if (const Json chunk = Json::parse(e); chunk["choices"][0]["logprobs"].is_object())
        n_streamed += chunk["choices"][0]["logprobs"]["content"].size();
  EXPECT_EQ(n_streamed, 4u);
}

TEST_F(ServerTest, CompletionPrompts) {
  start();
  EXPECT_EQ(post_ok("/v1/completions", R"({"prompt":"abc"})")["choices"][0]["text"], "ABC");
  EXPECT_EQ(post_ok("/v1/completions", R"({"prompt":[97,98]})")["choices"][0]["text"], "AB");
  const Json many = post_ok("/v1/completions", R"({"model":"alias","prompt":["a","b"],"n":2})");
  EXPECT_EQ(many["model"], "alias");
  EXPECT_EQ(many["object"], "text_completion");
  ASSERT_EQ(many["choices"].size(), 4u);
  EXPECT_EQ(many["choices"][1]["text"], "A");
  EXPECT_EQ(many["choices"][2]["text"], "B");
  EXPECT_EQ(many["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(post_ok("/v1/completions", R"({"prompt":[[97],[98,99]]})")["choices"][1]["text"], "BC");
  EXPECT_EQ(post_ok("/v1/completions", R"({"prompt":"abc","echo":true,"max_tokens":1})")["choices"][0]["text"], "abcA");
  const TestReply r = post("/v1/completions", R"({"prompt":"abc","stream":true,"echo":true})");
  std::string text;
  for (const std::string& e : sse_events(r.body))
    if (e != "[DONE]") text += Json::parse(e)["choices"][0]["text"];
  EXPECT_EQ(text, "abcABC");
}

// As lm-eval's local-completions asks and reads it.
TEST_F(ServerTest, EchoWithLogprobs) {
  start();
  for (const int max_tokens : {1, 0}) {
    const Json j = post_ok("/v1/completions", fmt::format(R"({{"prompt":[[97,98,99],[100,101]],"echo":true,"logprobs":1,
                                                               "temperature":0,"max_tokens":{}}})",
                                                          max_tokens));
    ASSERT_EQ(j["choices"].size(), 2u);
    const Json& l = j["choices"][0]["logprobs"];
    const size_t n = 3 + max_tokens;
    EXPECT_EQ(l["tokens"].size(), n);
    EXPECT_EQ(l["tokens"][1], "b");
    ASSERT_EQ(l["token_logprobs"].size(), n);
    EXPECT_TRUE(l["token_logprobs"][0].is_null());
    EXPECT_EQ(l["token_logprobs"][1], -0.25);
    ASSERT_EQ(l["top_logprobs"].size(), n);
    EXPECT_TRUE(l["top_logprobs"][0].is_null());
    EXPECT_EQ(l["top_logprobs"][2]["c"], -0.25);
    EXPECT_EQ(l["text_offset"][2], 2);
    EXPECT_EQ(j["choices"][0]["text"], max_tokens ? "abcA" : "abc");
    EXPECT_EQ(j["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(j["usage"]["completion_tokens"], 2 * max_tokens);
  }
}

struct BadCase {
  const char* path;
  const char* body;
  int status;
  const char* param;     // "" null
  const char* mentions;  // part of the message
};

TEST_F(ServerTest, BadRequestsSayWhatIsWrong) {
  start();
  constexpr const char* kChat = "/v1/chat/completions";
  constexpr const char* kText = "/v1/completions";
  const BadCase cases[] = {
      {kChat, "", 400, "", "JSON"},
      {kChat, "{", 400, "", "JSON"},
      {kChat, "[]", 400, "", "object"},
      {kChat, "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", 400, "", "JSON"},
      {kChat, R"({"temperature":1e999})", 400, "", "JSON"},
      {kChat, R"({})", 400, "messages", "required"},
      {kChat, R"({"messages":[]})", 400, "messages", "empty"},
      {kChat, R"({"messages":"hi"})", 400, "messages", "list"},
      {kChat, R"({"messages":[3]})", 400, "messages[0]", "object"},
      {kChat, R"({"messages":[{"content":"x"}]})", 400, "messages[0].role", "string"},
      {kChat, R"({"messages":[{"role":"user"}]})", 400, "messages[0].content", "required"},
      {kChat, R"({"messages":[{"role":"user","content":5}]})", 400, "messages[0].content", "number"},
      {kChat, R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", 400, "messages[0].content[0]",
       "image_url"},
      {kChat, R"({"messages":[{"role":"refuse","content":"x"}]})", 400, "messages", "no such role"},
      {kChat, R"({"model":"gpt-9","messages":[{"role":"user","content":"x"}]})", 404, "model", "gpt-9"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"temperature":"hot"})", 400, "temperature", "string"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"temperature":-1})", 400, "temperature", "-1"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"top_p":0})", 400, "top_p", "above 0"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"n":0})", 400, "n", "from 1"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"n":1.5})", 400, "n", "integer"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"max_tokens":99999999999999999999})", 400, "max_tokens",
       ""},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"max_tokens":18446744073709551615})", 400, "max_tokens",
       ""},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"max_tokens":4096})", 400, "messages",
       "4096 tokens, but 4114"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"stream":"yes"})", 400, "stream", "true or false"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"stop":[1]})", 400, "stop", "strings"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"stop":""})", 400, "stop", "empty"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"logit_bias":{"300":1}})", 400, "logit_bias", "299"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"logit_bias":{"1":101}})", 400, "logit_bias", "100"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":3})", 400, "top_logprobs", "logprobs"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":21})", 400, "top_logprobs",
       "20"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"9x"}}]})",
       400, "tools[0].function.name", "9x"},
      {kChat,
       R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"a"}}]})",
       400, "tools[1].function.name", "twice"},
      {kChat,
       R"({"messages":[{"role":"user","content":"x"}],"tool_choice":{"type":"function","function":{"name":"b"}}})", 400,
       "tool_choice", "b"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"response_format":{"type":"xml"}})", 400,
       "response_format.type", "xml"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_object"}})", 400,
       "response_format", "yet"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"stream_options":{"include_usage":1}})", 400,
       "include_usage", "true or false"},
      {kText, R"({})", 400, "prompt", "required"},
      {kText, R"({"prompt":[]})", 400, "prompt", "empty"},
      {kText, R"({"prompt":""})", 400, "prompt", "no tokens"},
      {kText, R"({"prompt":{}})", 400, "prompt", "object"},
      {kText, R"({"prompt":[300]})", 400, "prompt", "299"},
      {kText, R"({"prompt":[-1]})", 400, "prompt", "-1"},
      {kText, R"({"prompt":["a",3]})", 400, "prompt", "number"},
      {kText, R"({"prompt":"a","max_tokens":0})", 400, "max_tokens", "echo"},
      {kText, R"({"prompt":"a","best_of":3})", 400, "best_of", "best_of"},
      {"/tokenize", R"({})", 400, "prompt", "messages"},
      {"/detokenize", R"({"tokens":["a"]})", 400, "tokens", "string"},
      {"/nowhere", R"({})", 404, "", "/nowhere"},
      {"/v1/models", R"({})", 405, "GET", "POST"},
  };
  TestClient one = client();  // one connection for all: an error does not end it
  for (const BadCase& c : cases) {
    const TestReply r = one.ask("POST", c.path, c.body);
    ASSERT_EQ(r.status, c.status) << c.path << ' ' << c.body << '\n' << r.body;
    const Json error = Json::parse(r.body)["error"];
    EXPECT_EQ(error["param"].is_null() ? "" : error["param"].get<std::string>(), c.param) << c.body;
    EXPECT_NE(error["message"].get<std::string>().find(c.mentions), std::string::npos) << r.body;
    EXPECT_TRUE(error["type"].is_string());
  }
  EXPECT_EQ(engine_->submitted().size(), 0u);
  EXPECT_EQ(chat_ok(R"(,"no_such_field":1,"user":"u")")["object"], "chat.completion");  // unknown fields are accepted
}

TEST_F(ServerTest, LengthMayFillTheContextExactly) {
  start();
  engine_->set_max_model_len(4096);
  const auto ask = [&](int n, const char* more) {
    return post("/v1/completions", fmt::format(R"({{"prompt":"{:a>{}}"{}}})", "", n, more));
  };
  EXPECT_EQ(ask(4000, R"(,"max_tokens":96)").status, 200);
  EXPECT_EQ(ask(4000, R"(,"max_tokens":97)").status, 400);
  EXPECT_EQ(ask(4095, "").status, 200);
  EXPECT_EQ(ask(4096, "").status, 400);
  const TestReply r = ask(50000, "");  // long enough for the worker pool
  EXPECT_EQ(r.status, 400);
  EXPECT_NE(r.body.find("50000 in the prompt"), std::string::npos) << r.body;
}

TEST_F(ServerTest, BoundsOnBodies) {
  ServerOptions options;
  options.http.max_body_bytes = 1 << 20;
  start(FakeEngine::upper_case, {}, options);
  const std::string deep = fmt::format("{{\"messages\":{:[>100000}{:]>100000}}}", "", "");
  EXPECT_NE(post("/v1/chat/completions", deep).body.find("nested"), std::string::npos);
  std::string wide = "{\"logit_bias\":{";
  for (int i = 0; i < 5000; ++i) wide += fmt::format("\"{}\":1,", i);
  wide += "\"x\":1}}";
  EXPECT_NE(post("/v1/chat/completions", wide).body.find("4096 keys"), std::string::npos);
  const TestReply r = post("/v1/chat/completions", std::string(2 << 20, ' '));
  EXPECT_EQ(r.status, 413);
  EXPECT_EQ(Json::parse(r.body)["error"]["type"], "invalid_request_error");
}

TEST_F(ServerTest, ApiKey) {
  ServerOptions options;
  options.api_keys = {"sesame", "second"};
  start(FakeEngine::upper_case, {}, options);
  constexpr const char* kBody = R"({"prompt":"a"})";
  EXPECT_EQ(post("/v1/completions", kBody).status, 401);
  EXPECT_EQ(post("/v1/completions", kBody, "Authorization: Bearer wrong\r\n").status, 401);
  EXPECT_EQ(post("/v1/completions", kBody, "Authorization: Bearer sesam\r\n").status, 401);
  EXPECT_EQ(post("/v1/completions", kBody, "Authorization: Bearer sesamee\r\n").status, 401);
  EXPECT_EQ(post("/v1/completions", kBody, "Authorization: sesame\r\n").status, 401);
  EXPECT_EQ(post("/v1/completions", kBody, "Authorization: Bearer sesame\r\n").status, 200);
  EXPECT_EQ(post("/v1/completions", kBody, "Authorization: Bearer second\r\n").status, 200);
  EXPECT_EQ(client().ask("GET", "/v1/models").status, 401);
  EXPECT_EQ(client().ask("GET", "/health").status, 200);
}

TEST_F(ServerTest, SmallRoutes) {
  start();
  TestClient c = client();
  const Json models = Json::parse(c.ask("GET", "/v1/models").body);
  EXPECT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][0]["id"], "toy");
  EXPECT_EQ(models["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(Json::parse(c.ask("GET", "/v1/models/alias").body)["id"], "alias");
  EXPECT_EQ(c.ask("GET", "/v1/models/other").status, 404);
  EXPECT_EQ(c.ask("GET", "/ping").status, 200);
  EXPECT_EQ(c.ask("HEAD", "/health").status, 200);
  EXPECT_EQ(Json::parse(c.ask("GET", "/version").body)["version"], "0.1.0");
  const Json info = Json::parse(c.ask("GET", "/server_info").body);
  EXPECT_EQ(info["options"][0],
            Json::parse(R"({"option":"block-size","asked":"auto","active":"16","reason":"the default"})"));
  EXPECT_EQ(Json::parse(c.ask("GET", "/load").body)["server_load"], 0);
  EXPECT_EQ(c.ask("POST", "/reset_prefix_cache").status, 200);
  EXPECT_EQ(Json::parse(c.ask("POST", "/tokenize", R"({"prompt":"ab","return_token_strs":true})").body),
            Json::parse(R"({"count":2,"max_model_len":4096,"tokens":[97,98],"token_strs":["a","b"]})"));
  EXPECT_EQ(Json::parse(c.ask("POST", "/tokenize", R"({"messages":[{"role":"user","content":"x"}]})").body)["count"],
            18);
  EXPECT_EQ(Json::parse(c.ask("POST", "/detokenize", R"({"tokens":[97,98]})").body)["prompt"], "ab");
  const TestReply options = c.ask("OPTIONS", "/v1/chat/completions", "", "Access-Control-Request-Headers: x-a\r\n");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("Access-Control-Allow-Headers"), "x-a");
}

TEST_F(ServerTest, MetricsUnderBothNames) {
  start(answer("abc"));
  chat_ok("");
  const std::string text = client().ask("GET", "/metrics").body;
  for (const char* line : {"vllm:num_requests_running{model_name=\"toy\",engine=\"0\"} 0\n",
                           "braid_generation_tokens_total{model_name=\"toy\",engine=\"0\"} 4\n",
                           "vllm:request_success_total{finished_reason=\"stop\",model_name=\"toy\",engine=\"0\"} 1\n",
                           "vllm:request_queue_time_seconds_count{model_name=\"toy\",engine=\"0\"} 1\n",
                           "vllm:request_prefill_time_seconds_count{model_name=\"toy\",engine=\"0\"} 1\n",
                           "vllm:request_decode_time_seconds_count{model_name=\"toy\",engine=\"0\"} 1\n",
                           "vllm:request_inference_time_seconds_count{model_name=\"toy\",engine=\"0\"} 1\n",
                           "vllm:time_to_first_token_seconds_count{model_name=\"toy\",engine=\"0\"} 1\n",
                           "vllm:inter_token_latency_seconds_count{model_name=\"toy\",engine=\"0\"} 3\n",
                           "braid_request_latency_seconds_bucket{le=\"+Inf\",model_name=\"toy\",engine=\"0\"} 1\n"})
    EXPECT_NE(text.find(line), text.npos) << line << text;
}

TEST_F(ServerTest, EngineRefusalsAndErrors) {
  start([](const Request& r) {
    const bool reject = r.prompt[0] == 'r';
    return FakeScript{.fail = reject ? FinishReason::kRejected : FinishReason::kError, .message = "because"};
  });
  for (const char* stream : {"false", "true"}) {  // nothing was sent yet, so both kinds get a status
    const TestReply rejected = post("/v1/completions", fmt::format(R"({{"prompt":"r","stream":{}}})", stream));
    EXPECT_EQ(rejected.status, 400);
    EXPECT_EQ(Json::parse(rejected.body)["error"]["message"], "because");
    EXPECT_EQ(post("/v1/completions", fmt::format(R"({{"prompt":"e","stream":{}}})", stream)).status, 500);
  }
}

TEST(SamplingDefaults, FromGenerationConfig) {
  const SamplingParams s =
      sampling_defaults(Json::parse(R"({"do_sample":true,"temperature":0.7,"top_p":0.95,"max_new_tokens":5})"));
  EXPECT_EQ(s.temperature, 0.7f);
  EXPECT_EQ(s.top_p, 0.95f);
  EXPECT_EQ(s.max_tokens, -1);
  EXPECT_EQ(sampling_defaults(Json()).temperature, 1.0f);
}

}  // namespace
}  // namespace braid
