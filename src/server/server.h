// The OpenAI-compatible server over an engine and a text service: routes, admission, health, drain.
//
//   Server server(options, engine, text);
//   server.start();                 // listens; throws Error when the address is taken
//   ... on SIGTERM: server.drain(30 s); on a second one: server.stop();
//   server.wait();                  // returns once drained or stopped
//
// Threads: one for sockets and replies, a few for long prompts. All public functions may be called from any thread but
// those. Engine and text must outlive the server.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "runtime/engine.h"
#include "server/http_server.h"
#include "server/text_service.h"

namespace braid {

// OpenAI's defaults; the second overrides them by what generation_config.json says of temperature, top_p, top_k, min_p
// and repetition_penalty. Its do_sample and lengths are not used (as vLLM does it).
SamplingParams sampling_defaults();
SamplingParams sampling_defaults(const Json& generation_config);

struct ServerOptions {
  HttpOptions http;
  std::vector<std::string> model_names;  // the first is the one in replies; any is accepted in requests
  std::vector<std::string> api_keys;     // empty: no key needed
  SamplingParams default_sampling = sampling_defaults();
  std::string chat_template_kwargs;  // JSON object of template variables that requests may override; empty: none
  std::string allowed_origin = "*";  // CORS; empty: no CORS headers
  std::string version = "0.1.0";
  int n_text_threads = 2;
  // A request waits and no step ends for this long (or 20 times the last step's time, if longer): unhealthy. 0: off.
  double stall_s = 60;
};

class Server {
 public:
  Server(ServerOptions options, Engine& engine, const TextService& text);  // throws Error on bad options
  ~Server();

  void start();
  int port() const;
  // Refuses new completions with 503 and waits for the running ones; what still runs after `deadline` is cut short.
  // Returns at once; wait() tells the end.
  void drain(std::chrono::milliseconds deadline);
  void stop();  // ends everything now, in well under 5 s
  void wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid
