#include "text/decoder_stages.h"

#include <array>
#include <optional>
#include <utility>

#include "text/byte_alphabet.h"
#include "text/growth_limit.h"
#include "text/utf8.h"

namespace braid {

namespace {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  if (from.empty()) {  // Rust puts `to` around every character then
    out = to;
    for (size_t pos = 0; pos < text.size();) {
      const size_t length = utf8_length(text[pos]);
      out.append(text, pos, length).append(to);
      check_growth(out.size());
      pos += length;
    }
    return out;
  }
  size_t done = 0;
  for (size_t at; (at = text.find(from, done)) != std::string_view::npos; done = at + from.size()) {
    out.append(text, done, at - done).append(to);
    check_growth(out.size());
  }
  return out.append(text, done);
}

// What BERT's detokenizer does to English punctuation.
std::string clean_up(std::string text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kRules = {{{" .", "."},
                                                                                            {" ?", "?"},
                                                                                            {" !", "!"},
                                                                                            {" ,", ","},
                                                                                            {" ' ", "'"},
                                                                                            {" n't", "n't"},
                                                                                            {" 'm", "'m"},
                                                                                            {" do not", " don't"},
                                                                                            {" 's", "'s"},
                                                                                            {" 've", "'ve"},
                                                                                            {" 're", "'re"}}};
  for (const auto& [from, to] : kRules) text = replace_all(text, from, to);
  return text;
}

template <typename Self>
class Stage : public DecodeStage {
 public:
  std::unique_ptr<DecodeStage> fresh() const final { return std::make_unique<Self>(static_cast<const Self&>(*this)); }
};

class Join final : public Stage<Join> {
 public:
  void push(const Fragment& token, FragmentSink out) override {
    if (std::exchange(started_, true)) out({" "});
    out(token);
  }

 private:
  bool started_ = false;
};

class Gather final : public Stage<Gather> {
 public:
  void push(const Fragment& token, FragmentSink out) override {
    whole_ += token.text;
    if (token.ends) out({std::exchange(whole_, "")});
  }

 private:
  std::string whole_;
};

// Gives one token in parts; shared by the stages that fuse.
class Fuse final : public Stage<Fuse> {
 public:
  void push(const Fragment& token, FragmentSink out) override {
    if (!token.text.empty()) out({token.text, !std::exchange(started_, true), false});
  }
  void flush(FragmentSink out) override { out({"", !started_, true}); }

 private:
  bool started_ = false;
};

class ByteLevelDecoder final : public Stage<ByteLevelDecoder> {
 public:
  void push(const Fragment& token, FragmentSink out) override {
    append_bytes(token.text);
    const size_t open = incomplete_utf8_tail(bytes_);
    const std::string_view done = std::string_view(bytes_).substr(0, bytes_.size() - open);
    if (!done.empty()) fuse_.push({is_valid_utf8(done) ? done : replaced_ = to_valid_utf8(done)}, out);
    bytes_.erase(0, done.size());
  }
  void flush(FragmentSink out) override {
    fuse_.push({to_valid_utf8(std::exchange(bytes_, ""))}, out);
    fuse_.flush(out);
  }

 private:
  // A token with a character outside of the alphabet (an added one) stands for its own text.
  void append_bytes(std::string_view token) {
    const size_t before = bytes_.size();
    for (size_t pos = 0; pos < token.size();) {
      const auto byte = alphabet_to_byte(next_utf8(token, pos));
      if (!byte) {
        bytes_.resize(before);
        bytes_ += token;
        return;
      }
      bytes_ += static_cast<char>(*byte);
    }
  }

  std::string bytes_, replaced_;
  Fuse fuse_;
};

// A run of byte tokens is text if all of it is UTF-8, else one U+FFFD per byte; so it is held until it ends.
class ByteFallback final : public Stage<ByteFallback> {
 public:
  void push(const Fragment& token, FragmentSink out) override {
    if (const auto byte = parse_byte_token(token.text)) {
      run_ += static_cast<char>(*byte);
      return;
    }
    flush(out);
    out(token);
  }
  void flush(FragmentSink out) override {
    if (run_.empty()) return;
    const std::string run = std::exchange(run_, "");
    if (is_valid_utf8(run)) return out({run});
    for (size_t i = 0; i < run.size(); ++i) out({kReplacementCharacter});
  }

 private:
  std::string run_;
};

class MetaspaceDecoder final : public Stage<MetaspaceDecoder> {
 public:
  MetaspaceDecoder(char32_t replacement, bool keeps_first) : keeps_first_(keeps_first) {
    append_utf8(replacement_, replacement);
  }
  void push(const Fragment& token, FragmentSink out) override {
    // In the first token the marks stand for the blank that encoding put in front.
    if (token.begins) ++n_tokens_;
    const std::string_view blank = n_tokens_ == 1 && !keeps_first_ ? "" : " ";
    out({replace_all(token.text, replacement_, blank), token.begins, token.ends});
  }

 private:
  std::string replacement_;
  bool keeps_first_;
  size_t n_tokens_ = 0;
};

class ReplaceCharacter final : public Stage<ReplaceCharacter> {
 public:
  ReplaceCharacter(std::string character, std::string content)
      : character_(std::move(character)), content_(std::move(content)) {}
  void push(const Fragment& token, FragmentSink out) override {
    out({replace_all(token.text, character_, content_), token.begins, token.ends});
  }

 private:
  std::string character_, content_;
};

class ReplacePattern final : public Stage<ReplacePattern> {
 public:
  ReplacePattern(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void push(const Fragment& token, FragmentSink out) override {
    std::string text;
    size_t done = 0;
    RegexMatches matches(pattern_, token.text);
    while (const auto m = token.text.empty() ? std::nullopt : matches.next()) {
      text.append(token.text, done, m->first - done).append(content_);
      check_growth(text.size());
      done = m->second;
    }
    text.append(token.text, done);
    out({text});
  }

 private:
  Regex pattern_;
  std::string content_;
};

class StripDecoder final : public Stage<StripDecoder> {
 public:
  StripDecoder(char32_t content, size_t start, size_t stop) : start_(start), stop_(stop) {
    append_utf8(content_, content);
  }
  void push(const Fragment& token, FragmentSink out) override {
    if (token.begins) to_strip_ = start_;
    std::string_view text = token.text;
    while (!text.empty() && to_strip_ > 0) {
      if (text.substr(0, content_.size()) == content_) {
        text.remove_prefix(content_.size());
        --to_strip_;
      } else {
        to_strip_ = 0;
      }
    }
    for (size_t i = 0; i < stop_ && text.size() >= content_.size(); ++i) {
      if (text.substr(text.size() - content_.size()) != content_) break;
      text.remove_suffix(content_.size());
    }
    out({text, token.begins, token.ends});
  }

 private:
  std::string content_;
  size_t start_, stop_, to_strip_ = 0;
};

class WordPieceDecoder final : public Stage<WordPieceDecoder> {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void push(const Fragment& token, FragmentSink out) override {
    std::string text(token.text);
    if (std::exchange(started_, true)) {
      if (text.compare(0, prefix_.size(), prefix_) == 0)
        text.erase(0, prefix_.size());
      else
        text = " " + text;
    }
    out({cleanup_ ? clean_up(std::move(text)) : text});
  }

 private:
  std::string prefix_;
  bool cleanup_, started_ = false;
};

// The suffix of a word's last token becomes a blank, except at the very end: the last token waits for the next one.
class SuffixDecoder final : public Stage<SuffixDecoder> {
 public:
  explicit SuffixDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void push(const Fragment& token, FragmentSink out) override {
    if (last_) out({replace_all(*last_, suffix_, " ")});
    last_ = token.text;
  }
  void flush(FragmentSink out) override {
    if (last_) out({replace_all(*last_, suffix_, "")});
    last_.reset();
  }

 private:
  std::string suffix_;
  std::optional<std::string> last_;
};

class Ctc final : public Stage<Ctc> {
 public:
  Ctc(std::string pad, std::string delimiter, bool cleanup)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}
  void push(const Fragment& token, FragmentSink out) override {
    if (last_ == token.text) return;
    last_ = token.text;
    std::string text = replace_all(token.text, pad_, "");
    if (cleanup_) text = replace_all(clean_up(std::move(text)), delimiter_, " ");
    if (!text.empty()) out({text});
  }

 private:
  std::string pad_, delimiter_;
  bool cleanup_;
  std::optional<std::string> last_;
};

}  // namespace

std::optional<unsigned char> parse_byte_token(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (size_t i = 3; i < 5; ++i) {
    constexpr std::string_view kDigits = "0123456789abcdef0123456789ABCDEF";
    if (i == 3 && token[i] == '+') continue;  // Rust's parser of numbers takes a plus sign in front
    const size_t at = kDigits.find(token[i]);
    if (at == std::string_view::npos) return std::nullopt;
    value = value * 16 + static_cast<unsigned>(at % 16);
  }
  return static_cast<unsigned char>(value);
}

bool is_one_character(std::string_view text) { return !text.empty() && utf8_length(text[0]) == text.size(); }

std::unique_ptr<DecodeStage> make_join_stage() { return std::make_unique<Join>(); }
std::unique_ptr<DecodeStage> make_gather_stage() { return std::make_unique<Gather>(); }
std::unique_ptr<DecodeStage> make_byte_level_stage() { return std::make_unique<ByteLevelDecoder>(); }
std::unique_ptr<DecodeStage> make_byte_fallback_stage() { return std::make_unique<ByteFallback>(); }
std::unique_ptr<DecodeStage> make_fuse_stage() { return std::make_unique<Fuse>(); }
std::unique_ptr<DecodeStage> make_metaspace_stage(char32_t replacement, bool keeps_first) {
  return std::make_unique<MetaspaceDecoder>(replacement, keeps_first);
}
std::unique_ptr<DecodeStage> make_replace_stage(std::string character, std::string content) {
  return std::make_unique<ReplaceCharacter>(std::move(character), std::move(content));
}
std::unique_ptr<DecodeStage> make_replace_stage(Regex pattern, std::string content) {
  return std::make_unique<ReplacePattern>(std::move(pattern), std::move(content));
}
std::unique_ptr<DecodeStage> make_strip_stage(char32_t content, size_t start, size_t stop) {
  return std::make_unique<StripDecoder>(content, start, stop);
}
std::unique_ptr<DecodeStage> make_wordpiece_stage(std::string prefix, bool cleanup) {
  return std::make_unique<WordPieceDecoder>(std::move(prefix), cleanup);
}
std::unique_ptr<DecodeStage> make_suffix_stage(std::string suffix) {
  return std::make_unique<SuffixDecoder>(std::move(suffix));
}
std::unique_ptr<DecodeStage> make_ctc_stage(std::string pad, std::string delimiter, bool cleanup) {
  return std::make_unique<Ctc>(std::move(pad), std::move(delimiter), cleanup);
}

}  // namespace braid
