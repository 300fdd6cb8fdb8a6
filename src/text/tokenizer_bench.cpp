// Prints how fast tokenizers load, encode and decode, one after the other. A golden file (tests/data/tokenizers) lends
// its normalizer, pre-tokenizer and decoder to a synthetic model of 150 000 entries, so that the numbers of every kind
// can be had anywhere; a real tokenizer.json is measured as it is. Without arguments: the kinds that models in use
// have.
//   tokenizer_bench [--text FILE] [JSON...]
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace braid {

namespace {

// Processor time, the best of a few runs: the machine may do other things too.
template <typename F>
double best_seconds(int n_runs, const F& f) {
  double best = 1e9;
  for (int i = 0; i < n_runs; ++i) {
    const std::clock_t start = std::clock();
    f();
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return best;
}

class Synthetic {
 public:
  // Words as English has them: letters by frequency, short words most often.
  std::string word(bool multilingual) {
    static constexpr std::string_view kLetters =
        "eeeeeeeeeeeetttttttttaaaaaaaaooooooooiiiiiiinnnnnnnssssssrrrrrrhhhhhhldddcuummffggyyppwwbbvk";
    std::string w;
    const int kind = multilingual ? pick(5) : 0;
    const int length = 2 + pick(4) + pick(4);
    for (int i = 0; i < length; ++i) {
      if (kind == 0) w += kLetters[static_cast<size_t>(pick(static_cast<int>(kLetters.size())))];
      if (kind == 1) append_utf8(w, static_cast<char32_t>(0x430 + pick(32)));               // Cyrillic
      if (kind == 2) append_utf8(w, static_cast<char32_t>(0x4E00 + pick(1 + pick(6000))));  // Han
      if (kind == 3) append_utf8(w, static_cast<char32_t>(0x627 + pick(36)));               // Arabic
      if (kind == 4) append_utf8(w, static_cast<char32_t>(0x905 + pick(52)));               // Devanagari
    }
    return w;
  }

  std::string text(const std::vector<std::string>& words, size_t n_bytes) {
    std::string t;
    while (t.size() < n_bytes) {
      // Zipf's law, nearly: a rank drawn with a logarithmic density.
      const double rank = std::pow(static_cast<double>(words.size()), uniform_(random_)) - 1;
      std::string w = words[static_cast<size_t>(rank)];
      if (pick(12) == 0 && w[0] >= 'a' && w[0] <= 'z') w[0] = static_cast<char>(w[0] - 32);
      t += w;
      const int sign = pick(60);
      t += sign == 0 ? ".\n\n" : sign < 4 ? ". " : sign < 8 ? ", " : sign == 8 ? " 1987 " : " ";
    }
    return t;
  }

  std::vector<std::string> words(size_t n, bool multilingual) {
    std::vector<std::string> list;
    for (size_t i = 0; i < n; ++i) list.push_back(word(multilingual));
    return list;
  }

  int pick(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

 private:
  std::mt19937 random_{7};
  std::uniform_real_distribution<double> uniform_{0, 1};
};

// The model of a golden tokenizer.json anew, with `size` entries that know these words.
class BigModel {
 public:
  BigModel(const Json& tokenizer, size_t size) : model_(tokenizer["model"]), size_(size) {
    byte_level_ = tokenizer["decoder"].is_object() && tokenizer["decoder"]["type"] == "ByteLevel";
    const Json unknown = model_.value("unk_token", Json());
    add(unknown.is_string() ? unknown.get<std::string>() : "<unk>");
    for (int b = 0; b < 256; ++b) {
      std::string symbol = fmt::format("<0x{:02X}>", b);
      if (byte_level_) append_utf8(symbol = "", byte_to_alphabet(static_cast<unsigned char>(b)));
      add(symbol);
    }
  }

  Json make(Synthetic& s, const std::vector<std::string>& words) {
    const std::string type = model_["type"];
    for (size_t i = 0; n_ < size_; ++i) {
      const std::string word = i < words.size() ? words[i] : s.word(i % 3 == 0);
      if (type == "WordPiece")
        add_pieces(word, "##");
      else if (type == "Unigram")
        add_pieces("\u2581" + word, "");
      else
        add_merges(byte_level_ ? alphabet_of(" " + word) : "\u2581" + word);
    }
    if (type != "Unigram") {
      model_["vocab"] = std::move(vocab_);
      if (type == "BPE") model_["merges"] = std::move(merges_);
      return std::move(model_);
    }
    model_["unk_id"] = 0;
    Json scored = Json::array_t(n_);
    for (const auto& [token, id] : vocab_.items())  // earlier words are more frequent, longer pieces worth their length
      scored[id.get<size_t>()] = {token, -std::log(id.get<double>() + 10.0)};
    model_["vocab"] = std::move(scored);
    return std::move(model_);
  }

 private:
  static std::string alphabet_of(const std::string& bytes) {
    std::string spelled;
    append_as_alphabet(spelled, bytes);
    return spelled;
  }

  bool add(const std::string& token) {
    if (n_ == size_ || vocab_.contains(token)) return false;
    vocab_[token] = n_++;
    return true;
  }

  // Merges that build a word from left to right.
  void add_merges(const std::string& word) {
    size_t end = utf8_length(word[0]);
    add(word.substr(0, end));
    while (end < word.size()) {
      const size_t next = end + utf8_length(word[end]);
      add(word.substr(end, next - end));
      if (n_ == size_) return;
      if (add(word.substr(0, next))) merges_.push_back({word.substr(0, end), word.substr(end, next - end)});
      end = next;
    }
  }

  // The word, its first half, and its characters as they stand at the start of a word and inside.
  void add_pieces(const std::string& word, const std::string& inside) {
    add(word);
    size_t half = 0;
    for (size_t at = 0; at < word.size(); at += utf8_length(word[at])) {
      const std::string character = word.substr(at, utf8_length(word[at]));
      add(character);
      add(inside + character);
      if (at <= word.size() / 2) half = at;
    }
    if (half > 0) add(word.substr(0, half));
    if (half > 0) add(inside + word.substr(half));
  }

  Json model_, vocab_ = Json::object(), merges_ = Json::array();
  size_t size_, n_ = 0;
  bool byte_level_ = false;
};

// A tokenizer.json around the parts of a golden one.
std::string make_tokenizer_json(const Json& golden, Synthetic& s, const std::vector<std::string>& words) {
  Json json = golden;
  json["post_processor"] = nullptr;
  json["added_tokens"] = Json::array();
  json["model"] = BigModel(golden, 150000).make(s, words);
  return json.dump();
}

void measure(const Tokenizer& t, std::string_view name, const std::string& text) {
  std::vector<int32_t> ids;
  const double seconds = best_seconds(3, [&] { ids = t.encode(text, false); });
  std::string back;
  const double decoding = best_seconds(3, [&] { back = t.decode(ids, false); });
  const double mb = static_cast<double>(text.size()) / 1e6;
  fmt::print("  {:<14} {:4.1f} MB  encode {:7.1f} MB/s  {:5.2f} bytes/token  decode {:7.1f} MB/s  {}\n", name, mb,
             mb / seconds, static_cast<double>(text.size()) / static_cast<double>(ids.size()), mb / decoding,
             back == text ? "round trip" : "other text");
}

void measure_stream(const std::shared_ptr<const Tokenizer>& t, const std::string& text) {
  const std::vector<int32_t> ids = t->encode(text, false);
  size_t n_bytes = 0;
  const double seconds = best_seconds(3, [&] {
    Detokenizer d(t, {.stop = {"<|im_end|>", "\n\nUser:"}});
    for (const int32_t id : ids) n_bytes += d.push(id).size();
  });
  fmt::print("  {:<14} {:5.0f} ns a token\n", "detokenize", seconds / static_cast<double>(ids.size()) * 1e9);
}

}  // namespace

int bench(int argc, char** argv) try {
  std::vector<std::string> files(argv + 1, argv + argc);
  std::string given_text;
  if (files.size() >= 2 && files[0] == "--text") {
    given_text = read_text_file(files[1]);
    files.erase(files.begin(), files.begin() + 2);
  }
  if (files.empty())
    for (const char* kind : {"llama3", "qwen2", "deepseek_v3", "kimi", "o200k", "cl100k", "gpt2", "llama2",
                             "llama2_metaspace", "gemma", "t5", "unigram_bytes", "precompiled", "bert"})
      files.push_back(fmt::format("tests/data/tokenizers/{}.json", kind));
  for (const std::string& file : files) {
    Synthetic s;
    const std::vector<std::string> english = s.words(20000, false), multilingual = s.words(40000, true);
    std::vector<std::string> all = english;
    all.insert(all.end(), multilingual.begin(), multilingual.end());
    std::string json = read_text_file(file);
    const Json parsed = Json::parse(json);
    if (parsed.contains("tokenizer")) json = make_tokenizer_json(parsed["tokenizer"], s, all);
    std::shared_ptr<const Tokenizer> t;
    const double loading = best_seconds(3, [&] { t = Tokenizer::parse(json); });
    fmt::print("{}: {:.1f} MB, {} tokens, loads in {:.3f} s\n", file, static_cast<double>(json.size()) / 1e6,
               t->vocab_size(), loading);
    if (!given_text.empty()) measure(*t, "file", given_text);
    const std::string text = s.text(english, 4'000'000);
    measure(*t, "English", text);
    measure(*t, "multilingual", s.text(multilingual, 4'000'000));
    measure(*t, "one letter", std::string(2'000'000, 'a'));
    measure(*t, "blanks", std::string(2'000'000, ' '));
    measure_stream(t, text);
  }
  return 0;
} catch (const Error& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 2;
}

}  // namespace braid

int main(int argc, char** argv) { return braid::bench(argc, argv); }
