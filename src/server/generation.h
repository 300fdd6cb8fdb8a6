// One completion request in work: its choices in the engine, their text, and the reply as it grows. IO thread only.
//
// A streaming reply is started by the engine's first sign of life, so that a request that can never run still gets a
// proper status; the role event waits for the first token, because clients take it for the first token's time. While
// the client does not read, deltas merge in TextDelta and no more than one piece is queued.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/engine.h"
#include "server/delta_mailbox.h"
#include "server/http_types.h"
#include "server/openai_request.h"
#include "server/openai_writer.h"
#include "server/server_metrics.h"
#include "server/text_service.h"

namespace braid {

class Generation;

// What all requests share; owned by the Server.
struct GenerationContext {
  Engine& engine;
  const TextService& text;
  ServerMetrics& metrics;
  std::shared_ptr<DeltaMailbox> mailbox;
  struct Waiter {
    Generation* generation = nullptr;
    int choice = 0;
  };
  std::unordered_set<std::shared_ptr<Generation>> live{};  // from start() to the end of the reply
  // Engine request -> who waits for its deltas. A finished or aborted one is not here, so late deltas fall away.
  std::unordered_map<int64_t, Waiter> by_id{};
  int64_t max_model_len = 0;
  std::vector<std::pair<std::string, std::string>> reply_headers{};  // CORS
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(GenerationContext& context, std::shared_ptr<Exchange> exchange, PreparedRequest request, std::string id,
             std::string model);

  void start();  // submits every choice
  void on_delta(int choice, Delta&& delta, Clock::time_point now);
  void flush();                      // writes what the deltas since the last flush made certain; once per engine step
  void fail(const ApiError& error);  // ends every choice: a status while nothing was sent, else an error event
  void cut_short();                  // drain deadline: the choices end as they are, with finish reason "abort"
  void on_wait(Clock::time_point now);  // now and then: a stream that still queues shows its head, against time-outs

 private:
  struct Choice {
    int index = 0, prompt = 0;
    RequestId engine_id;
    std::unique_ptr<TextStream> stream;
    TextDelta text;                     // certain and, when streaming, not sent yet
    std::vector<TokenOutput> logprobs;  // likewise
    std::vector<TokenOutput> prompt_logprobs;
    int64_t n_output = 0, cached_tokens = 0;
    Clock::time_point begun{}, first_token{}, last_token{};  // begun: about when its first step began
    bool called_tool = false;
    std::string finish_reason, stop_string;
    bool finished = false, finish_sent = false;
  };

  void submit(Choice& choice);
  void take_tokens(Choice& choice, Delta& delta, Clock::time_point now);
  void finish(Choice& choice, FinishReason reason);
  void release(Choice& choice, bool abort);  // no more deltas; abort: the engine still works on it
  void release_all();
  void open_stream();
  void write_events();
  void send_whole();
  void end(int status);
  void on_gone();
  ChoiceView view(const Choice& choice) const;
  Usage usage() const;
  HttpReply head(int status, std::string content_type) const;

  GenerationContext& context_;
  std::shared_ptr<Exchange> exchange_;
  PreparedRequest request_;
  std::string id_;
  OpenAiWriter writer_;
  std::vector<Choice> choices_;
  Clock::time_point arrived_;
  bool stream_open_ = false, roles_sent_ = false, ended_ = false;
  bool admitted_ = false;  // the engine has answered for at least one choice
};

}  // namespace braid
