// braid serve: wires engine, text and HTTP together, and ends them in order. The first SIGTERM or SIGINT drains: new
// completions are refused, running ones finish; the second ends everything at once.
#include <signal.h>
#include <sys/stat.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/app.h"
#include "apps/engine_run.h"
#include "base/json.h"
#include "base/log.h"
#include "server/model_text.h"
#include "server/server.h"

namespace braid {
namespace {

struct ServeOptions {
  EngineConfig engine;
  ServerOptions server;
  ModelTextOptions text;
  std::string served_model_name, api_key;
  int port = 8000, server_port = -1;
  double drain_seconds = 30, exit_grace = 30;
};

void add_server_options(OptionTable& t, ServeOptions& o) {
  t.add("host", &o.server.http.host, "address to listen on");
  auto& port = t.add("port", &o.port, "HTTP port; 0: any free one");
  port.min = 0, port.max = 65535;
  auto& server_port = t.add("server-port", &o.server_port, "the same; wins over --port");
  server_port.min = -1, server_port.max = 65535;
  t.add("served-model-name", &o.served_model_name, "name in the API; default: --model as given");
  t.add("api-key", &o.api_key, "clients must send this bearer token");
  t.add("chat-template", &o.text.chat_template, "Jinja file that replaces the model's template");
  t.add("default-chat-template-kwargs", &o.server.chat_template_kwargs, "JSON object of template variables; a request's own win");
  t.add("reasoning-parser", &o.text.reasoning_parser, "dialect of thinking; auto: by the template, none: off");
  t.add("tool-call-parser", &o.text.tool_parser, "dialect of tool calls; auto: by the template, none: off");
  t.add("timeout-keep-alive", &o.server.http.keep_alive_s, "idle seconds after which a connection is closed").min = 0;
  t.add("drain-seconds", &o.drain_seconds, "how long SIGTERM waits for running requests").min = 0;
  t.add("exit-grace", &o.exit_grace, "seconds that /health answers 503 after the engine failed, before the process exits").min = 0;
}

// SIGINT and SIGTERM must reach the waiting thread alone, so they are blocked before any thread starts.
sigset_t block_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

// Until the server has ended; returns whether the engine failed.
bool run_until_end(Server& server, EngineLoop& engine, const sigset_t& signals, const ServeOptions& o) {
  std::atomic<bool> ended{false}, failed{false};
  std::atomic<int> asked{0};
  auto ask = [&] {
    if (asked++ == 0) {
      log_info("draining: running requests have {} s; a second signal ends at once", o.drain_seconds);
      server.drain(std::chrono::milliseconds(static_cast<int64_t>(1000 * o.drain_seconds)));
    } else {
      server.stop();
    }
  };
  engine.world().set_terminate_handler(ask);
  std::thread watcher([&] {
    double failed_seconds = 0;
    while (!ended) {
      const timespec tick{0, 100'000'000};
      if (sigtimedwait(&signals, nullptr, &tick) > 0) ask();
      if (engine.failure().empty()) continue;
      failed = true;
      if ((failed_seconds += 0.1) >= o.exit_grace) server.stop();
    }
  });
  server.wait();
  ended = true;
  watcher.join();
  return failed;
}

}  // namespace

int run_serve(const Arguments& arguments) {
  ServeOptions o;
  OptionTable table("server");
  add_server_options(table, o);
  add_engine_options(table, o.engine);
  std::vector<std::string> problems;
  if (parse_or_help("serve", "answer over an OpenAI-compatible API", table, arguments, problems)) return kOk;
  const RankSetup setup = resolve(o.engine, problems);
  const std::string tokenizer = tokenizer_folder(o.engine);
  struct stat s {};
  if (!tokenizer.empty() && (::stat(tokenizer.c_str(), &s) != 0 || !S_ISDIR(s.st_mode))) {
    problems.push_back("no tokenizer: " + tokenizer + " is not a folder; give --tokenizer FOLDER");
  }
  if (!problems.empty()) return refuse("serve", problems);

  o.server.http.port = o.server_port >= 0 ? o.server_port : o.port;
  if (o.server_port >= 0 && table.asked("port")) log_info("--server-port {} wins over --port {}", o.server_port, o.port);
  o.server.model_names = {o.served_model_name.empty() ? o.engine.model : o.served_model_name};
  if (!o.api_key.empty()) o.server.api_keys = {o.api_key};
  o.server.version = BRAID_VERSION;
  if (!o.text.chat_template.empty()) o.text.chat_template = read_text_file(o.text.chat_template);
  o.server.default_sampling = model_sampling_defaults(o.engine.model);
  const auto text = ModelText::load(tokenizer, o.text);

  const sigset_t signals = block_signals();
  const auto engine = start_engine(setup);
  if (!engine) return kOk;
  for (const Engine::OptionState& option : engine->options()) {
    log_info("{:<24} {}{}{}", option.option, option.active, option.reason.empty() ? "" : ": ", option.reason);
  }
  Server server(o.server, *engine, *text);
  server.start();
  log_info("{} serves {} on http://{}:{}", layout_text(setup), o.server.model_names[0], o.server.http.host, server.port());
  return run_until_end(server, *engine, signals, o) ? kFailed : kOk;
}

}  // namespace braid
