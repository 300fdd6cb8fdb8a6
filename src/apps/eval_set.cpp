#include "apps/eval_set.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace braid {
namespace {

EvalItem read_item(const OrderedJson& line) {
  EvalItem item;
  item.id = line.at("id");
  item.task = line.at("task");
  item.answer = line.at("answer");
  item.prompt_ids = line.at("prompt_ids").get<std::vector<int32_t>>();
  item.output_ids = line.at("output_ids").get<std::vector<int32_t>>();
  item.output_logprobs = line.at("output_logprobs").get<std::vector<float>>();
  OrderedJson request;
  request["messages"] = line.at("messages");
  request["add_generation_prompt"] = true;
  request["enable_thinking"] = line.value("enable_thinking", false);
  item.request = to_string(request);
  return item;
}

std::string trimmed(const std::string& s) {
  const char* blanks = " \t\r\n\f\v";
  const size_t first = s.find_first_not_of(blanks);
  if (first == std::string::npos) return "";
  return s.substr(first, s.find_last_not_of(blanks) - first + 1);
}

bool ends_with(const std::string& s, const std::string& end) {
  return s.size() >= end.size() && s.compare(s.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

std::vector<EvalItem> read_eval_set(const std::string& file, const std::vector<std::string>& tasks, int limit) {
  std::ifstream in(file);
  if (!in) throw Error("cannot read {}", file);
  std::vector<EvalItem> items;
  std::map<std::string, int> taken;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (trimmed(line).empty()) continue;
    try {
      EvalItem item = read_item(OrderedJson::parse(line));
      if (!tasks.empty() && std::find(tasks.begin(), tasks.end(), item.task) == tasks.end()) continue;
      if (limit > 0 && taken[item.task]++ >= limit) continue;
      items.push_back(std::move(item));
    } catch (const OrderedJson::exception& e) {
      throw Error("{}, line {}: {}", file, number, e.what());
    }
  }
  if (items.empty()) throw Error("{} holds no question of the chosen tasks", file);
  return items;
}

bool is_correct(const EvalItem& item, const std::string& text) {
  const std::string said = trimmed(text);
  if (item.task.rfind("gsm_think", 0) == 0) return ends_with(said, "The answer is " + item.answer + ".");
  if (item.task == "gsm") return ends_with(said, "#### " + item.answer);
  if (item.task.rfind("recall", 0) == 0) return ends_with(said, "is " + item.answer + ".");
  return said == trimmed(item.answer);
}

void score(const EvalItem& item, const std::string& text, const std::vector<int32_t>& ids, const std::vector<float>& logprobs, TaskScore& task) {
  ++task.total;
  task.correct += is_correct(item, text);
  task.equal_transcripts += ids == item.output_ids;
  for (size_t i = 0; i < std::min({ids.size(), item.output_ids.size(), logprobs.size(), item.output_logprobs.size()}); ++i) {
    if (ids[i] != item.output_ids[i]) break;
    task.max_abs_dlogprob = std::max(task.max_abs_dlogprob, std::fabs(static_cast<double>(logprobs[i]) - item.output_logprobs[i]));
  }
}

}  // namespace braid
