// The question file of `braid eval` and its scoring: one JSON object a line with messages, the expected answer, and the
// reference's own tokens and log-probabilities.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace braid {

struct EvalItem {
  std::string id, task, answer;
  std::string request;  // JSON body for the chat template: messages, enable_thinking, add_generation_prompt
  std::vector<int32_t> prompt_ids, output_ids;
  std::vector<float> output_logprobs;
};

// `tasks` empty: all; `limit` 0: all, else the first so many of each task.
std::vector<EvalItem> read_eval_set(const std::string& file, const std::vector<std::string>& tasks, int limit);

bool is_correct(const EvalItem& item, const std::string& text);

struct TaskScore {
  int total = 0, correct = 0, equal_transcripts = 0;
  double max_abs_dlogprob = 0;  // over the run's own tokens up to the first that differs
};

// Compares one answer with the reference transcript.
void score(const EvalItem& item, const std::string& text, const std::vector<int32_t>& ids, const std::vector<float>& logprobs, TaskScore& task);

}  // namespace braid
