// braid chat: a conversation in the terminal with a server, or with an engine of our own behind a server of our own:
// one way to talk for both. Answers go to stdout; prompts, reasoning and remarks to stderr. Without a terminal every
// line of stdin is a question or a command. ^C stops the answer, not the program.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>

#include <fmt/format.h>

#include "apps/app.h"
#include "apps/engine_run.h"
#include "base/error.h"
#include "base/log.h"
#include "client/chat_session.h"
#include "client/http_loop.h"
#include "client/sse.h"
#include "server/model_text.h"
#include "server/server.h"

namespace braid {
namespace {

struct ChatOptions {
  EngineConfig engine;
  std::string url, api_key, system, chat_template;
  double temperature = -1, top_p = -1;
  int max_tokens = -1;
};

// Signal handlers reach nothing but static objects.
std::atomic<bool> interrupt_asked{false};

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupt_asked = true; };
  sigaction(SIGINT, &action, nullptr);
}

// Lines of stdin. Waits in short turns, so that an interrupt is seen wherever it comes.
class LineReader {
 public:
  enum class Result { kLine, kEnd, kInterrupted };

  Result next(std::string& line) {
    while (true) {
      const size_t newline = rest_.find('\n');
      if (newline != std::string::npos || (ended_ && !rest_.empty())) {
        line = rest_.substr(0, newline);
        rest_.erase(0, newline == std::string::npos ? newline : newline + 1);
        return Result::kLine;
      }
      if (ended_) return Result::kEnd;
      if (interrupt_asked.exchange(false)) return Result::kInterrupted;
      read_some();
    }
  }

 private:
  void read_some() {
    pollfd fd{STDIN_FILENO, POLLIN, 0};
    if (::poll(&fd, 1, 100) <= 0) return;
    char bytes[4096];
    const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (n > 0) rest_.append(bytes, static_cast<size_t>(n));
    ended_ = n == 0 || (n < 0 && errno != EINTR);
  }

  std::string rest_;
  bool ended_ = false;
};

void block_interrupts(int how) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  pthread_sigmask(how, &set, nullptr);
}

// Engine, text and server in this process, on a free loopback port that nobody else has the key of.
class OwnServer {
 public:
  OwnServer(const ChatOptions& o, const RankSetup& setup) {
    block_interrupts(SIG_BLOCK);  // not for the engine's threads
    engine_ = start_engine(setup);
    if (engine_) serve(o);
    block_interrupts(SIG_UNBLOCK);
  }
  bool is_driver() const { return engine_ != nullptr; }
  HttpUrl url() const { return {"127.0.0.1", std::to_string(server_->port()), ""}; }
  const std::string& key() const { return key_; }

 private:
  void serve(const ChatOptions& o) {
    std::random_device random;
    key_ = fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
    text_ = ModelText::load(tokenizer_folder(o.engine),
                            {.chat_template = o.chat_template.empty() ? "" : read_text_file(o.chat_template)});
    ServerOptions options;
    options.http.host = "127.0.0.1";
    options.http.port = 0;
    options.model_names = {o.engine.model};
    options.api_keys = {key_};
    options.default_sampling = model_sampling_defaults(o.engine.model);
    server_ = std::make_unique<Server>(options, *engine_, *text_);
    server_->start();
  }

  std::string key_;
  std::unique_ptr<EngineLoop> engine_;
  std::unique_ptr<ModelText> text_;
  std::unique_ptr<Server> server_;
};

struct Answer {
  std::string text, error;
  bool stopped = false;  // by ^C
};

// Asks what the session ends with, and prints the answer as it comes.
class Asker {
 public:
  Asker(HttpUrl url, std::string key, Json settings)
      : loop_(std::move(url)),
        key_(std::move(key)),
        settings_(std::move(settings)),
        colour_(::isatty(STDERR_FILENO) == 1) {}

  Answer ask(const ChatSession& session) {
    Answer answer;
    OrderedJson body = settings_;
    body["messages"] = session.messages();
    bool thinking = false;
    const auto think = [&](bool on) {
      if (colour_ && thinking != on) std::fputs(on ? "\x1b[2m" : "\x1b[0m\n", stderr);
      thinking = on;
    };
    SseParser events([&](std::string_view data) {
      const Json event = Json::parse(data, nullptr, false);
      if (!event.is_object()) return;  // [DONE]
      if (event.contains("error")) answer.error = event["error"].value("message", to_string(event["error"]));
      if (!event.contains("choices") || event["choices"].empty()) return;
      const Json delta = event["choices"][0].value("delta", Json::object());
      if (const std::string reasoning = text_of(delta, "reasoning_content"); !reasoning.empty()) {
        think(true);
        std::fputs(reasoning.c_str(), stderr);
      }
      const std::string piece = text_of(delta, "content");
      if (piece.empty()) return;
      think(false);
      std::fputs(piece.c_str(), stdout);
      std::fflush(stdout);
      answer.text += piece;
    });
    const auto call = loop_.post("/v1/chat/completions", to_string(body), key_,
                                 {.data = [&](std::string_view bytes) { events.feed(bytes); },
                                  .end =
                                      [&](const HttpEnd& end) {
                                        if (!answer.stopped && answer.error.empty()) answer.error = end.error;
                                      }});
    interrupt_asked = false;
    while (loop_.run_for(std::chrono::milliseconds(50))) {
      if (!interrupt_asked.exchange(false)) continue;
      answer.stopped = true;
      call->cancel();
    }
    think(false);
    if (!answer.text.empty()) std::fputc('\n', stdout);
    std::fflush(stdout);
    return answer;
  }

 private:
  static std::string text_of(const Json& delta, const char* field) {
    const auto it = delta.find(field);
    return it != delta.end() && it->is_string() ? it->get<std::string>() : "";
  }

  HttpLoop loop_;
  std::string key_;
  Json settings_;
  bool colour_;
};

constexpr const char* kHelp =
    "/help            this list\n"
    "/system [TEXT]   sets the system text, or takes it away\n"
    "/reset           forgets the conversation\n"
    "/regen           asks the last question again\n"
    "/save FILE       writes the messages as JSON\n"
    "/load FILE       goes on with a saved conversation\n"
    "/quit            ends (so does ^D); ^C stops an answer\n"
    "//...            a question that begins with a slash\n";

class Conversation {
 public:
  Conversation(Asker& asker, const std::string& system) : asker_(asker), terminal_(::isatty(STDIN_FILENO) == 1) {
    session_.set_system(system);
  }

  // Until the input ends or /quit; whether every answer came and every command worked.
  bool run() {
    std::string line;
    while (read_line(line)) {
      if (line.starts_with("//")) {
        ask(line.substr(1));
      } else if (line.starts_with("/")) {
        if (!command(line)) break;
      } else if (line.find_first_not_of(" \t\r") != std::string::npos) {
        ask(line);
      }
    }
    return good_;
  }

 private:
  bool read_line(std::string& line) {
    while (true) {
      if (terminal_) std::fputs("> ", stderr);
      const LineReader::Result result = lines_.next(line);
      if (result == LineReader::Result::kLine) return true;
      std::fputs(result == LineReader::Result::kInterrupted ? "\n(/quit or ^D ends)\n" : terminal_ ? "\n" : "", stderr);
      if (result == LineReader::Result::kEnd) return false;
    }
  }

  void ask(const std::string& question) {
    session_.ask(question);
    ask_again();
  }

  void ask_again() {
    const Answer answer = asker_.ask(session_);
    if (!answer.error.empty()) {
      complain(answer.error);
      return session_.take_back();
    }
    if (answer.stopped) std::fputs("(stopped)\n", stderr);
    session_.answered(answer.text);
  }

  bool command(const std::string& line) {  // false: to end
    const size_t space = std::min(line.find(' '), line.size());
    const std::string name = line.substr(1, space - 1), rest = line.substr(std::min(space + 1, line.size()));
    try {
      if (name == "quit" || name == "exit") return false;
      if (name == "help")
        std::fputs(kHelp, stderr);
      else if (name == "reset")
        session_.reset();
      else if (name == "system")
        session_.set_system(rest);
      else if (name == "regen")
        regenerate();
      else if (name == "save" || name == "load")
        file_command(name, rest);
      else
        complain("/" + name + " is unknown; /help lists the commands");
    } catch (const Error& e) {
      complain(e.what());
    }
    return true;
  }

  void regenerate() {
    if (session_.reopen()) return ask_again();
    complain("/regen: there is no answer yet");
  }

  void file_command(const std::string& name, const std::string& file) {
    if (file.empty()) throw Error("/{} needs a file", name);
    name == "save" ? session_.save(file) : session_.load(file);
    std::fprintf(stderr, "(%zu answers)\n", session_.n_answers());
  }

  void complain(const std::string& what) {
    good_ = false;
    std::fprintf(stderr, "braid chat: %s\n", what.c_str());
  }

  Asker& asker_;
  LineReader lines_;
  ChatSession session_;
  const bool terminal_;
  bool good_ = true;
};

// The fields that go with every question; what is not given is the server's default.
Json request_settings(const ChatOptions& o, const std::string& model) {
  Json settings = {{"model", model}, {"stream", true}};
  if (o.temperature >= 0) settings["temperature"] = o.temperature;
  if (o.top_p >= 0) settings["top_p"] = o.top_p;
  if (o.max_tokens > 0) settings["max_tokens"] = o.max_tokens;
  return settings;
}

int converse(const ChatOptions& o, const HttpUrl& url, const std::string& key) {
  const std::string model = ask_json(url, "/v1/models", nullptr, key).at("data").at(0).at("id");
  catch_interrupts();
  if (::isatty(STDIN_FILENO) == 1) std::fprintf(stderr, "%s; /help lists the commands\n", model.c_str());
  Asker asker(url, key, request_settings(o, model));
  return Conversation(asker, o.system).run() || ::isatty(STDIN_FILENO) == 1 ? kOk : kFailed;
}

}  // namespace

int run_chat(const Arguments& arguments) {
  ChatOptions o;
  OptionTable table("chat");
  table.add("url", &o.url, "talk to this OpenAI-compatible server (http://HOST:PORT) instead of an engine of our own");
  table.add("api-key", &o.api_key, "bearer token of that server");
  table.add("system", &o.system, "system text");
  table.add("temperature", &o.temperature, "0: greedy; -1: the server's default").min = -1;
  auto& top_p = table.add("top-p", &o.top_p, "share of probability kept; -1: the server's default");
  top_p.min = -1, top_p.max = 1;
  table.add("max-tokens", &o.max_tokens, "most tokens of an answer; -1: what is left of the context").min = -1;
  table.add("chat-template", &o.chat_template, "Jinja file that replaces the model's template");
  add_engine_options(table, o.engine);
  std::vector<std::string> problems;
  if (parse_or_help("chat", "a conversation in the terminal", table, arguments, problems)) return kOk;
  HttpUrl url;
  RankSetup setup;
  try {
    if (!o.url.empty())
      url = parse_http_url(o.url);
    else if (o.engine.model.empty())
      throw Error("give either --url http://HOST:PORT or --model DIR");
    else
      setup = resolve(o.engine, problems);
  } catch (const Error& e) {
    problems.push_back(e.what());
  }
  if (!problems.empty()) return refuse("chat", problems);
  if (!table.asked("log-level")) set_log_level(LogLevel::kWarn);  // log lines would stand in the conversation
  if (!o.url.empty()) return converse(o, url, o.api_key);
  const OwnServer own(o, setup);
  return own.is_driver() ? converse(o, own.url(), own.key()) : kOk;
}

}  // namespace braid
