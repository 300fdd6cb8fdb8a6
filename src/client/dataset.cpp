#include "client/dataset.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace braid {
namespace {

constexpr int kMaxRounds = 10;  // of decoding and encoding, until a random text keeps its length
// Of conversations: shorter or longer ones say little (vLLM's bounds).
constexpr size_t kMinTokens = 4, kMaxPromptTokens = 1024, kMaxTotalTokens = 2048;

class Draws {
 public:
  explicit Draws(uint64_t seed) : generator_(seed) {}

  // From 0 to n - 1. Written out, since the standard's distributions differ between libraries.
  uint64_t below(uint64_t n) { return static_cast<uint64_t>((static_cast<__uint128_t>(generator_()) * n) >> 64); }
  int between(int low, int high) { return low + static_cast<int>(below(static_cast<uint64_t>(high - low) + 1)); }
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::mt19937_64 generator_;
};

// Whole characters: parts of them would come back as something else.
bool is_text(const Tokenizer& tokenizer, int32_t id) {
  const std::string bytes = tokenizer.token_bytes(id);
  return !tokenizer.is_special(id) && !bytes.empty() && is_valid_utf8(bytes);
}

class RandomTokens {
 public:
  RandomTokens(Draws& draws, const Tokenizer* tokenizer, int vocab_size) : draws_(draws), tokenizer_(tokenizer) {
    const int n = tokenizer ? tokenizer->vocab_size() : vocab_size;
    for (int32_t id = 0; id < n; ++id) {
      if (!tokenizer || is_text(*tokenizer, id)) allowed_.push_back(id);
    }
    if (allowed_.empty()) throw Error("random prompts need a vocabulary, and this one has no ordinary token");
  }

  std::vector<int32_t> draw(int n) {
    std::vector<int32_t> ids(static_cast<size_t>(n));
    for (int32_t& id : ids) id = allowed_[draws_.below(allowed_.size())];
    return ids;
  }

  // A prompt of these tokens. Most random sequences are not what their text's tokens are; cutting and filling up what
  // comes back soon gives one that is.
  BenchPrompt prompt(std::vector<int32_t> ids, int n_output) {
    BenchPrompt p{"", std::move(ids), n_output};
    if (!tokenizer_) return p;
    const size_t wanted = p.tokens.size();
    for (int round = 0; round < kMaxRounds; ++round) {
      p.text = tokenizer_->decode(p.tokens, true);
      std::vector<int32_t> again = tokenizer_->encode(p.text, false);
      if (again == p.tokens) break;
      if (round + 1 < kMaxRounds) again.resize(std::min(again.size(), wanted));
      if (round + 1 < kMaxRounds && again.size() < wanted) {
        const auto more = draw(static_cast<int>(wanted - again.size()));
        again.insert(again.end(), more.begin(), more.end());
      }
      p.tokens = std::move(again);
    }
    return p;
  }

 private:
  Draws& draws_;
  const Tokenizer* tokenizer_;
  std::vector<int32_t> allowed_;
};

std::vector<BenchPrompt> random_prompts(const DatasetOptions& o, Draws& draws, RandomTokens& random) {
  const auto shortest = [&](int length) { return std::max(1, static_cast<int>(length * o.range_ratio)); };
  const std::vector<int32_t> prefix = random.draw(o.prefix_len);
  std::vector<BenchPrompt> prompts;
  for (int i = 0; i < o.num_prompts; ++i) {
    const int n_input = draws.between(shortest(o.input_len), o.input_len);
    const int n_output = draws.between(shortest(o.output_len), o.output_len);
    std::vector<int32_t> ids = prefix;
    const std::vector<int32_t> own = random.draw(n_input);
    ids.insert(ids.end(), own.begin(), own.end());
    prompts.push_back(random.prompt(std::move(ids), n_output));
  }
  return prompts;
}

std::vector<BenchPrompt> repeated_prefixes(const DatasetOptions& o, Draws& draws, RandomTokens& random) {
  std::vector<std::vector<int32_t>> prefixes;
  for (int i = 0; i < o.num_prefixes; ++i) prefixes.push_back(random.draw(o.repeated_prefix_len));
  std::vector<BenchPrompt> prompts;
  for (int i = 0; i < o.num_prompts; ++i) {
    std::vector<int32_t> ids = prefixes[static_cast<size_t>(i % o.num_prefixes)];
    const std::vector<int32_t> suffix = random.draw(o.suffix_len);
    ids.insert(ids.end(), suffix.begin(), suffix.end());
    prompts.push_back(random.prompt(std::move(ids), o.repeated_output_len));
  }
  draws.shuffle(prompts);
  return prompts;
}

// [{"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}, ...]}, ...]: the first turn is
// the prompt, the second its answer.
std::vector<BenchPrompt> conversations(const DatasetOptions& o, const Tokenizer& tokenizer) {
  const Json file = read_json_file(o.path);
  if (!file.is_array()) throw Error("{} must hold a JSON list of conversations", o.path);
  std::vector<BenchPrompt> prompts;
  for (const Json& entry : file) {
    const Json turns = entry.is_object() ? entry.value("conversations", Json::array()) : Json::array();
    if (turns.size() < 2 || !turns[0].contains("value") || !turns[1].contains("value")) continue;
    BenchPrompt p{turns[0]["value"], {}, o.sharegpt_output_len};
    p.tokens = tokenizer.encode(p.text, true);
    const size_t n_answer = tokenizer.encode(turns[1]["value"].get<std::string>(), false).size();
    if (p.n_output == 0) p.n_output = static_cast<int>(n_answer);
    const size_t n = p.tokens.size(), n_output = static_cast<size_t>(p.n_output);
    if (n < kMinTokens || n_output < kMinTokens || n > kMaxPromptTokens || n + n_output > kMaxTotalTokens) continue;
    prompts.push_back(std::move(p));
  }
  if (prompts.empty()) throw Error("{} has no conversation of two turns and up to {} tokens", o.path, kMaxTotalTokens);
  return prompts;
}

// One JSON object a line: prompt, and output_tokens or not.
std::vector<BenchPrompt> custom_prompts(const DatasetOptions& o, const Tokenizer& tokenizer) {
  std::istringstream lines(read_text_file(o.path));
  std::vector<BenchPrompt> prompts;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json entry = Json::parse(line, nullptr, false);
    if (!entry.is_object() || !entry.contains("prompt") || !entry["prompt"].is_string()) {
      throw Error("{}:{} must be a JSON object with a text 'prompt'", o.path, number);
    }
    const Json n_output = entry.value("output_tokens", Json(o.custom_output_len));
    if (!n_output.is_number_integer() || n_output.get<int64_t>() < 1 || n_output.get<int64_t>() > (1 << 30)) {
      throw Error("{}:{}: 'output_tokens' must be a whole number from 1", o.path, number);
    }
    BenchPrompt p{entry["prompt"], {}, n_output.get<int>()};
    p.tokens = tokenizer.encode(p.text, true);
    prompts.push_back(std::move(p));
  }
  if (prompts.empty()) throw Error("{} holds no prompt", o.path);
  return prompts;
}

// As many as asked for: the first of a shuffled file, over and over where it has fewer.
std::vector<BenchPrompt> pick(std::vector<BenchPrompt> prompts, const DatasetOptions& o, Draws& draws) {
  draws.shuffle(prompts);
  const size_t n_file = prompts.size();
  if (n_file < static_cast<size_t>(o.num_prompts)) {
    log_info("{} has {} usable prompts; they are repeated to make {}", o.path, n_file, o.num_prompts);
  }
  prompts.reserve(static_cast<size_t>(o.num_prompts));
  for (size_t i = 0; prompts.size() < static_cast<size_t>(o.num_prompts); ++i) prompts.push_back(prompts[i % n_file]);
  prompts.resize(static_cast<size_t>(o.num_prompts));
  return prompts;
}

bool from_file(const std::string& name) { return name == "sharegpt" || name == "custom"; }

}  // namespace

void add_dataset_options(OptionTable& t, DatasetOptions& o) {
  const auto least = [](OptionRow& row, double min) { row.min = min, row.max = 1 << 30; };
  t.set_group("data set");
  t.add("dataset-name", &o.name, "where prompts come from").choices = {"random", "prefix_repetition",
                                                                       "prefix-repetition", "sharegpt", "custom"};
  t.add("dataset-path", &o.path, "file of sharegpt (JSON) or custom (a JSON object with 'prompt' a line)");
  least(t.add("num-prompts", &o.num_prompts, "requests in all"), 1);
  least(t.add("random-input-len", &o.input_len, "random: most tokens of a prompt, less the prefix", {"input-len"}), 1);
  least(t.add("random-output-len", &o.output_len, "random: most tokens of an answer", {"output-len"}), 1);
  least(t.add("random-prefix-len", &o.prefix_len, "random: tokens that all prompts begin with"), 0);
  auto& ratio = t.add("random-range-ratio", &o.range_ratio, "random: the least length as a share of the most");
  ratio.min = 0, ratio.max = 1;
  least(t.add("prefix-repetition-prefix-len", &o.repeated_prefix_len, "tokens of a shared prefix"), 0);
  least(t.add("prefix-repetition-suffix-len", &o.suffix_len, "tokens after it"), 1);
  least(t.add("prefix-repetition-num-prefixes", &o.num_prefixes, "different prefixes"), 1);
  least(t.add("prefix-repetition-output-len", &o.repeated_output_len, "tokens of an answer"), 1);
  least(t.add("sharegpt-output-len", &o.sharegpt_output_len, "tokens of an answer; 0: as in the file"), 0);
  least(t.add("custom-output-len", &o.custom_output_len, "tokens of an answer where the line does not say"), 1);
}

void check_dataset(const DatasetOptions& o, bool has_tokenizer, std::vector<std::string>& problems) {
  if (from_file(o.name) && o.path.empty())
    problems.push_back("--dataset-name " + o.name + " needs --dataset-path FILE");
  if (!from_file(o.name) && !o.path.empty()) {
    problems.push_back("--dataset-path is not read by --dataset-name " + o.name + "; use sharegpt or custom");
  }
  if (from_file(o.name) && !has_tokenizer) problems.push_back("--dataset-name " + o.name + " needs a tokenizer");
}

std::vector<BenchPrompt> make_dataset(const DatasetOptions& o, uint64_t seed, const Tokenizer* tokenizer,
                                      int vocab_size) {
  Draws draws(seed);
  if (o.name == "sharegpt") return pick(conversations(o, *tokenizer), o, draws);
  if (o.name == "custom") return pick(custom_prompts(o, *tokenizer), o, draws);
  RandomTokens random(draws, tokenizer, vocab_size);
  return o.name == "random" ? random_prompts(o, draws, random) : repeated_prefixes(o, draws, random);
}

}  // namespace braid
