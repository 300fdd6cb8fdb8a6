#include "text/token_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "text/byte_trie.h"
#include "text/config_reader.h"
#include "text/utf8.h"

namespace braid {

namespace {

int32_t required_unknown(const ConfigReader& c, const Vocab& vocab) {
  const std::string token = c.string("unk_token");
  const int32_t id = vocab.find(token);
  if (id < 0) throw c.bad("has the unk_token \"" + token + "\" that its vocabulary lacks");
  return id;
}

class WordPiece final : public TokenModel {
 public:
  WordPiece(const ConfigReader& c, const Vocab& vocab)
      : vocab_(vocab),
        unknown_(required_unknown(c, vocab)),
        prefix_(c.string("continuing_subword_prefix")),
        max_characters_(c.count_or("max_input_chars_per_word", 100)) {}

  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    const size_t n_before = ids.size();
    const auto n_characters = std::count_if(word.begin(), word.end(), [](char b) { return (b & 0xC0) != 0x80; });
    if (static_cast<size_t>(n_characters) > max_characters_) return ids.push_back(unknown_);
    std::string piece;
    for (size_t start = 0; start < word.size();) {
      // Nothing longer than the longest token can be in the vocabulary.
      size_t end = std::min(word.size(), start + vocab_.longest());
      while (end < word.size() && end > start && (word[end] & 0xC0) == 0x80) --end;
      int32_t id = -1;
      for (; end > start; end = previous_utf8(word, end)) {
        piece = start > 0 ? prefix_ : "";
        piece += word.substr(start, end - start);
        if ((id = vocab_.find(piece)) >= 0) break;
      }
      if (id < 0) {  // one part that is not known makes the whole word unknown
        ids.resize(n_before);
        return ids.push_back(unknown_);
      }
      ids.push_back(id);
      start = end;
    }
  }

 private:
  const Vocab& vocab_;
  int32_t unknown_;
  std::string prefix_;
  size_t max_characters_;
};

class WordLevel final : public TokenModel {
 public:
  WordLevel(const ConfigReader& c, const Vocab& vocab) : vocab_(vocab), unknown_(required_unknown(c, vocab)) {}
  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    const int32_t id = vocab_.find(word);
    ids.push_back(id >= 0 ? id : unknown_);
  }

 private:
  const Vocab& vocab_;
  int32_t unknown_;
};

class Unigram final : public TokenModel {
 public:
  Unigram(const ConfigReader& c, const Vocab& vocab, std::vector<double> scores)
      : vocab_(vocab), scores_(std::move(scores)) {
    if (scores_.empty()) throw c.bad("has an empty vocabulary");
    // Without it there are texts that cannot be encoded at all.
    const size_t unknown = c.count_or("unk_id", std::numeric_limits<size_t>::max());
    if (unknown >= scores_.size()) throw c.bad("has no unk_id that is in its vocabulary");
    unknown_ = static_cast<int32_t>(unknown);
    constexpr double kUnknownPenalty = 10.0;
    unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
    if (c.boolean_or("byte_fallback", false)) byte_ids_ = byte_token_ids(vocab);
    std::vector<std::pair<std::string_view, int32_t>> members;
    for (size_t id = 0; id < scores_.size(); ++id) {
      const std::string_view token = vocab.token(static_cast<int32_t>(id));
      members.emplace_back(token, vocab.find(token));  // of equal tokens the last one's id and score count
    }
    trie_ = ByteTrie(std::move(members));
  }

  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    thread_local Scratch scratch;
    std::vector<Step>& best = scratch.best;
    find_best_path(word, best);
    // From the end to the start; neighbouring unknown characters become one.
    size_t unknown_end = 0;
    std::vector<Part>& parts = scratch.parts;
    parts.clear();
    for (size_t end = word.size(); end > 0; end = best[end].start) {
      if (best[end].id == unknown_) {
        if (unknown_end == 0) unknown_end = end;
        if (best[end].start == 0) parts.push_back({0, unknown_end, unknown_});
        continue;
      }
      if (unknown_end > 0) parts.push_back({end, unknown_end, unknown_});
      unknown_end = 0;
      parts.push_back({best[end].start, end, best[end].id});
    }
    for (auto part = parts.rbegin(); part != parts.rend(); ++part)
      if (part->id == unknown_)
        add_unknown(word.substr(part->begin, part->end - part->begin), ids);
      else
        ids.push_back(part->id);
    if (word.size() > kScratchBytes) scratch = {};
  }

 private:
  struct Step {  // the best way to get to a byte position
    double score = 0;
    size_t start = std::string_view::npos;
    int32_t id = 0;
  };
  struct Part {
    size_t begin, end;
    int32_t id;
  };
  struct Scratch {  // words are short and many: their buffers are kept, those of a text without blanks are not
    std::vector<Step> best;
    std::vector<Part> parts;
  };
  static constexpr size_t kScratchBytes = 4096;

  void find_best_path(std::string_view word, std::vector<Step>& best) const {
    best.assign(word.size() + 1, Step());
    for (size_t start = 0; start < word.size();) {
      const double so_far = best[start].score;
      const size_t character = utf8_length(word[start]);
      bool has_single = false;
      const auto offer = [&](size_t length, double score, int32_t id) {
        Step& target = best[start + length];
        if (target.start == std::string_view::npos || score + so_far > target.score)
          target = {score + so_far, start, id};
      };
      trie_.prefixes(word.substr(start), [&](size_t length, int32_t id) {
        offer(length, scores_[id], id);
        has_single |= length == character;
      });
      if (!has_single) offer(character, unknown_score_, unknown_);
      start += character;
    }
  }

  // Characters that no piece has; together they may still spell a token, such as the unknown one's own name.
  void add_unknown(std::string_view part, std::vector<int32_t>& ids) const {
    const int32_t id = vocab_.find(part);
    if (id >= 0) return ids.push_back(id);
    const auto byte_id = [&](char b) { return byte_ids_[static_cast<unsigned char>(b)]; };
    const bool spelled =
        !byte_ids_.empty() && std::all_of(part.begin(), part.end(), [&](char b) { return byte_id(b) >= 0; });
    if (!spelled) return ids.push_back(unknown_);
    for (const char b : part) ids.push_back(byte_id(b));
  }

  const Vocab& vocab_;
  std::vector<double> scores_;
  ByteTrie trie_;
  std::vector<int32_t> byte_ids_;
  int32_t unknown_ = 0;
  double unknown_score_ = 0;
};

}  // namespace

std::vector<int32_t> byte_token_ids(const Vocab& vocab) {
  std::vector<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) ids.push_back(vocab.find(fmt::format("<0x{:02X}>", byte)));
  return ids;
}

std::unique_ptr<const TokenModel> make_wordpiece(const Json& config, const Vocab& vocab) {
  return std::make_unique<WordPiece>(ConfigReader(config, "model", 0), vocab);
}
std::unique_ptr<const TokenModel> make_unigram(const Json& config, const Vocab& vocab, std::vector<double> scores) {
  return std::make_unique<Unigram>(ConfigReader(config, "model", 0), vocab, std::move(scores));
}
std::unique_ptr<const TokenModel> make_word_level(const Json& config, const Vocab& vocab) {
  return std::make_unique<WordLevel>(ConfigReader(config, "model", 0), vocab);
}

}  // namespace braid
