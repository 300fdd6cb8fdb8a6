// Starting an engine and waiting for answers: what generate, verify and eval share.
#pragma once
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/json.h"
#include "runtime/engine_loop.h"

namespace braid {

// On process 0: the engine. On other processes: serves until process 0 is done and returns null.
std::unique_ptr<EngineLoop> start_engine(const RankSetup& setup, const Executor::Observer& observer = {});

struct Completion {
  RequestId id;
  std::vector<TokenOutput> tokens;
  FinishReason finish = FinishReason::kNone;
  std::string message;
  int64_t cached_tokens = 0;
  std::vector<std::pair<int64_t, std::vector<float>>> logits;  // (position, row), in the order computed
};

// Collects the answers of a set of requests. Usable from one thread.
class Completions {
 public:
  explicit Completions(EngineLoop& engine) : engine_(&engine) {}
  size_t submit(Request request);                        // index of its completion; the id is given here
  void submit_together(std::vector<Request> requests);   // the same for all, before the engine's next step
  Completion& wait(size_t index);                        // until that request has ended

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable ended;
    std::vector<std::unique_ptr<Completion>> completions;

    size_t add(RequestId id);
  };
  Engine::Sink sink(size_t index) const;

  EngineLoop* engine_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

const std::string& tokenizer_folder(const EngineConfig&);  // the model's, where none is named

// Where nothing was asked, a config.json alone means dummy weights: for commands that measure or plan.
void default_to_dummy_weights(OptionTable&, EngineConfig&);

// OpenAI's defaults, overridden by the folder's generation_config.json where there is one.
SamplingParams model_sampling_defaults(const std::string& model_dir);

std::string layout_text(const RankSetup&);  // "tp2 float32 reproducible"

// What was really active, on stderr: steps, collectives by name and bytes, bytes read and held per rank, KV rows.
void print_counters(const EngineLoop&);
Json collectives_json(const std::map<std::string, CollectiveCount>&);
Json counters_json(int first_rank, const std::vector<RankCounters>&);  // a list, an object a rank

}  // namespace braid
