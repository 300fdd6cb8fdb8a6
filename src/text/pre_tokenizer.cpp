#include "text/pre_tokenizer.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/config_reader.h"
#include "text/growth_limit.h"
#include "text/regex.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace braid {

namespace {

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior parse_behavior(const ConfigReader& c, const std::string& name) {
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  throw c.bad("has the unknown behavior \"" + name + "\"");
}

// Receives the stretches of a piece from left to right, each a match of the delimiter or not, and passes them on
// joined as the behavior says.
class Joiner {
 public:
  Joiner(const Piece& piece, Behavior behavior, PieceSink sink) : piece_(piece), behavior_(behavior), sink_(sink) {}

  void add(size_t begin, size_t end, bool is_match) {
    if (behavior_ == Behavior::kIsolated) return emit(begin, end);
    if (behavior_ == Behavior::kRemoved) return is_match ? void() : emit(begin, end);
    if (has_pending_ && joins(is_match)) {
      end_ = end;
    } else {
      flush();
      begin_ = begin;
      end_ = end;
      has_pending_ = true;
    }
    last_is_match_ = is_match;
  }

  void flush() {
    if (has_pending_) emit(begin_, end_);
    has_pending_ = false;
  }

 private:
  bool joins(bool is_match) const {
    switch (behavior_) {
      case Behavior::kContiguous:
        return is_match == last_is_match_;
      case Behavior::kMergedWithPrevious:
        return is_match && !last_is_match_;
      case Behavior::kMergedWithNext:
        return last_is_match_ && !is_match;
      default:
        return false;
    }
  }

  void emit(size_t begin, size_t end) {
    if (begin < end) sink_(piece_.slice(begin, end));
  }

  const Piece& piece_;
  Behavior behavior_;
  PieceSink sink_;
  bool has_pending_ = false, last_is_match_ = false;
  size_t begin_ = 0, end_ = 0;
};

void split_by_regex(const Piece& piece, const Regex& regex, Behavior behavior, bool invert, PieceSink sink) {
  Joiner joiner(piece, behavior, sink);
  RegexMatches matches(regex, piece.text);
  size_t done = 0;
  while (const auto match = matches.next()) {
    if (done != match->first) joiner.add(done, match->first, invert);
    joiner.add(match->first, match->second, !invert);
    done = match->second;
  }
  if (done != piece.text.size()) joiner.add(done, piece.text.size(), invert);
  joiner.flush();
}

template <typename IsDelimiter>
void split_by_character(const Piece& piece, const IsDelimiter& is_delimiter, Behavior behavior, PieceSink sink) {
  Joiner joiner(piece, behavior, sink);
  size_t done = 0;
  for (size_t pos = 0; pos < piece.text.size();) {
    const size_t begin = pos;
    if (!is_delimiter(next_utf8(piece.text, pos))) continue;
    if (done < begin) joiner.add(done, begin, false);
    joiner.add(begin, pos, true);
    done = pos;
  }
  if (done < piece.text.size()) joiner.add(done, piece.text.size(), false);
  joiner.flush();
}

class SplitByRegex final : public PreTokenizer {
 public:
  SplitByRegex(Regex regex, Behavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}
  void split(const Piece& piece, PieceSink sink) const override {
    split_by_regex(piece, regex_, behavior_, invert_, sink);
  }

 private:
  Regex regex_;
  Behavior behavior_;
  bool invert_;
};

class SplitByCharacter final : public PreTokenizer {
 public:
  SplitByCharacter(bool (*is_delimiter)(char32_t), Behavior behavior)
      : is_delimiter_(is_delimiter), behavior_(behavior) {}
  void split(const Piece& piece, PieceSink sink) const override {
    split_by_character(piece, is_delimiter_, behavior_, sink);
  }

 private:
  bool (*is_delimiter_)(char32_t);
  Behavior behavior_;
};

class CharDelimiterSplit final : public PreTokenizer {
 public:
  explicit CharDelimiterSplit(char32_t delimiter) : delimiter_(delimiter) {}
  void split(const Piece& piece, PieceSink sink) const override {
    split_by_character(
        piece, [this](char32_t c) { return c == delimiter_; }, Behavior::kRemoved, sink);
  }

 private:
  char32_t delimiter_;
};

// `\w+|[^\w\s]+`, the rest removed: runs of word characters and runs of signs.
class Whitespace final : public PreTokenizer {
 public:
  void split(const Piece& piece, PieceSink sink) const override {
    enum Kind { kBlank, kWord, kSign };
    Kind running = kBlank;
    size_t begin = 0;
    for (size_t pos = 0; pos < piece.text.size();) {
      const size_t at = pos;
      const char32_t c = next_utf8(piece.text, pos);
      const Kind kind = is_word(c) ? kWord : is_whitespace(c) ? kBlank : kSign;
      if (kind == running) continue;
      if (running != kBlank) sink(piece.slice(begin, at));
      running = kind;
      begin = at;
    }
    if (running != kBlank) sink(piece.slice(begin, piece.text.size()));
  }
};

class PrefixSpace final : public PreTokenizer {  // ByteLevel's add_prefix_space
 public:
  void split(const Piece& piece, PieceSink sink) const override {
    if (piece.text[0] == ' ') return sink(piece);
    const std::string text = ' ' + std::string(piece.text);
    sink({text, piece.at_start, piece.start_bytes > 0 ? piece.start_bytes + 1 : 0});
  }
};

class ByteSpelling final : public PreTokenizer {
 public:
  void split(const Piece& piece, PieceSink sink) const override {
    std::string text, start;
    append_as_alphabet(text, piece.text);
    append_as_alphabet(start, piece.text.substr(0, piece.start_bytes));
    sink({text, piece.at_start, start.size()});
  }
  bool spells_bytes() const override { return true; }
};

class Metaspace final : public PreTokenizer {
 public:
  enum class Prepend { kNever, kFirst, kAlways };
  Metaspace(char32_t replacement, Prepend prepend, bool split)
      : character_(replacement), prepend_(prepend), split_(split) {
    append_utf8(replacement_, replacement);
  }

  void split(const Piece& piece, PieceSink sink) const override {
    std::string text;
    text.reserve(piece.text.size() + piece.text.size() / 4 + replacement_.size());
    size_t start_bytes = 0;
    for (size_t i = 0; i < piece.text.size(); ++i) {
      if (piece.text[i] == ' ')
        text += replacement_;
      else
        text += piece.text[i];
      if (i < piece.start_bytes) start_bytes = text.size();
    }
    const bool wanted = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && piece.at_start);
    if (wanted && text.compare(0, replacement_.size(), replacement_) != 0) {
      text.insert(0, replacement_);
      if (start_bytes > 0) start_bytes += replacement_.size();
    }
    const Piece whole{text, piece.at_start, start_bytes};
    if (!split_) return sink(whole);
    split_by_character(
        whole, [this](char32_t c) { return c == character_; }, Behavior::kMergedWithNext, sink);
  }

 private:
  char32_t character_;
  std::string replacement_;
  Prepend prepend_;
  bool split_;
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(size_t length) : length_(length) {}
  void split(const Piece& piece, PieceSink sink) const override {
    for (size_t pos = 0; pos < piece.text.size();) {
      const size_t begin = pos;
      for (size_t i = 0; i < length_ && pos < piece.text.size(); ++i) pos += utf8_length(piece.text[pos]);
      sink(piece.slice(begin, pos));
    }
  }

 private:
  size_t length_;
};

using Steps = std::vector<std::unique_ptr<const PreTokenizer>>;

void add_metaspace(const ConfigReader& c, Steps& steps) {
  const std::string scheme = c.string_or("prepend_scheme", "always");
  auto prepend = Metaspace::Prepend::kAlways;
  if (scheme == "never")
    prepend = Metaspace::Prepend::kNever;
  else if (scheme == "first")
    prepend = Metaspace::Prepend::kFirst;
  else if (scheme != "always")
    throw c.bad("has the unknown prepend_scheme \"" + scheme + "\"");
  if (!c.boolean_or("add_prefix_space", true)) {
    if (prepend != Metaspace::Prepend::kNever) throw c.bad("says add_prefix_space false but prepend_scheme " + scheme);
  }
  steps.push_back(std::make_unique<Metaspace>(c.character("replacement"), prepend, c.boolean_or("split", true)));
}

void add_byte_level(const ConfigReader& c, Steps& steps) {
  static const std::string kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  if (c.boolean("add_prefix_space")) steps.push_back(std::make_unique<PrefixSpace>());
  if (c.boolean_or("use_regex", true))
    steps.push_back(std::make_unique<SplitByRegex>(Regex(kGpt2), Behavior::kIsolated, false));
  steps.push_back(std::make_unique<ByteSpelling>());
}

void add_steps(const Json& config, int depth, Steps& steps) {
  if (config.is_null()) return;
  const ConfigReader c(config, "pre_tokenizer", depth);
  const std::string type = c.type();
  if (type == "Sequence") {
    for (const Json& part : c.list("pretokenizers")) add_steps(part, depth + 1, steps);
  } else if (type == "Split") {
    steps.push_back(std::make_unique<SplitByRegex>(c.pattern("pattern"), parse_behavior(c, c.string("behavior")),
                                                   c.boolean("invert")));
  } else if (type == "ByteLevel") {
    add_byte_level(c, steps);
  } else if (type == "Metaspace") {
    add_metaspace(c, steps);
  } else if (type == "Whitespace") {
    steps.push_back(std::make_unique<Whitespace>());
  } else if (type == "WhitespaceSplit") {
    steps.push_back(std::make_unique<SplitByCharacter>(is_whitespace, Behavior::kRemoved));
  } else if (type == "BertPreTokenizer") {
    steps.push_back(std::make_unique<SplitByCharacter>(is_whitespace, Behavior::kRemoved));
    steps.push_back(std::make_unique<SplitByCharacter>(is_punctuation, Behavior::kIsolated));
  } else if (type == "Punctuation") {
    const Behavior behavior = parse_behavior(c, c.string_or("behavior", "Isolated"));
    steps.push_back(std::make_unique<SplitByCharacter>(is_punctuation, behavior));
  } else if (type == "Digits") {
    const Behavior behavior = c.boolean("individual_digits") ? Behavior::kIsolated : Behavior::kContiguous;
    steps.push_back(std::make_unique<SplitByCharacter>(is_numeric, behavior));
  } else if (type == "CharDelimiterSplit") {
    steps.push_back(std::make_unique<CharDelimiterSplit>(c.character("delimiter")));
  } else if (type == "FixedLength") {
    const size_t length = c.count_or("length", 5);
    if (length == 0) throw c.bad("has the length 0");
    steps.push_back(std::make_unique<FixedLength>(length));
  } else {
    throw c.unknown_type();
  }
}

}  // namespace

PreTokenizerChain::PreTokenizerChain(const Json& config) {
  add_steps(config, 0, steps_);
  // Each step is a level of the stack while a piece passes through.
  if (steps_.size() > 64) throw Error("pre_tokenizer has {} steps; at most 64 are taken", steps_.size());
}

bool PreTokenizerChain::drop_last_byte_spelling() {
  if (steps_.empty() || !steps_.back()->spells_bytes()) return false;
  steps_.pop_back();
  return true;
}

void PreTokenizerChain::run(size_t step, const Piece& piece, PieceSink sink) const {
  if (step == steps_.size()) return sink(piece);
  check_growth(piece.text.size());
  steps_[step]->split(piece, [&](const Piece& part) { run(step + 1, part, sink); });
}

}  // namespace braid
