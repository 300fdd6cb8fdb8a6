// Prints how fast a tokenizer loads, encodes and decodes. Without an argument it makes its own tokenizer.json of 150
// 000 entries (byte-level BPE, Llama 3's pattern) from synthetic words, so that the numbers can be had anywhere.
//   tokenizer_bench [TOKENIZER_JSON [TEXT_FILE]]
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

// Merges that build each word from left to right until the vocabulary is full.
std::string make_tokenizer_json(Synthetic& s, const std::vector<std::string>& words, size_t size) {
  Json vocab = Json::object(), merges = Json::array();
  for (int b = 0; b < 256; ++b) {
    std::string symbol;
    append_utf8(symbol, byte_to_alphabet(static_cast<unsigned char>(b)));
    vocab[symbol] = b;
  }
  size_t n = 256;
  for (size_t i = 0; n < size; ++i) {
    std::string spelled;
    append_as_alphabet(spelled, " " + (i < words.size() ? words[i] : s.word(i % 3 == 0)));
    size_t end = utf8_length(spelled[0]);
    while (end < spelled.size() && n < size) {
      const size_t next = end + utf8_length(spelled[end]);
      const std::string whole = spelled.substr(0, next);
      if (!vocab.contains(whole)) {
        vocab[whole] = n++;
        merges.push_back({spelled.substr(0, end), spelled.substr(end, next - end)});
      }
      end = next;
    }
  }
  const std::string pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const Json json = {{"version", "1.0"},
                     {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
                     {"decoder", bytes},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  return json.dump();
}

void measure(const Tokenizer& t, std::string_view name, const std::string& text) {
  std::vector<int32_t> ids;
  const double seconds = best_seconds(5, [&] { ids = t.encode(text, false); });
  std::string back;
  const double decoding = best_seconds(5, [&] { back = t.decode(ids, false); });
  const double mb = static_cast<double>(text.size()) / 1e6;
  fmt::print("{:<14} {:6.1f} MB  encode {:7.1f} MB/s  {:5.2f} bytes/token  decode {:7.1f} MB/s  {}\n", name, mb,
             mb / seconds, static_cast<double>(text.size()) / static_cast<double>(ids.size()), mb / decoding,
             back == text ? "round trip" : "NO ROUND TRIP");
}

void measure_stream(const std::shared_ptr<const Tokenizer>& t, const std::string& text) {
  const std::vector<int32_t> ids = t->encode(text, false);
  size_t n_bytes = 0;
  const double seconds = best_seconds(3, [&] {
    Detokenizer d(t, {.stop = {"<|im_end|>", "\n\nUser:"}});
    for (const int32_t id : ids) n_bytes += d.push(id).size();
  });
  fmt::print("{:<14} {:6.0f} ns a token\n", "detokenize", seconds / static_cast<double>(ids.size()) * 1e9);
}

}  // namespace

int bench(int argc, char** argv) try {
  Synthetic s;
  const std::vector<std::string> english = s.words(20000, false), multilingual = s.words(40000, true);
  std::vector<std::string> all = english;
  all.insert(all.end(), multilingual.begin(), multilingual.end());
  const std::string json = argc > 1 ? read_text_file(argv[1]) : make_tokenizer_json(s, all, 150000);
  std::shared_ptr<const Tokenizer> t;
  const double loading = best_seconds(3, [&] { t = Tokenizer::parse(json); });
  fmt::print("{:<14} {:6.1f} MB  {:.3f} s  {} tokens\n", "load", static_cast<double>(json.size()) / 1e6, loading,
             t->vocab_size());
  if (argc > 2) {
    measure(*t, "file", read_text_file(argv[2]));
    return 0;
  }
  const std::string text = s.text(english, 8'000'000);
  measure(*t, "English", text);
  measure(*t, "multilingual", s.text(multilingual, 8'000'000));
  measure(*t, "one letter", std::string(2'000'000, 'a'));
  measure(*t, "blanks", std::string(2'000'000, ' '));
  measure_stream(t, text);
  return 0;
} catch (const Error& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 2;
}

}  // namespace braid

int main(int argc, char** argv) { return braid::bench(argc, argv); }
