#include "text/normalizer.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/config_reader.h"
#include "text/growth_limit.h"
#include "text/precompiled.h"
#include "text/regex.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace braid {

namespace {

// Rewrites t character by character: emit(out, c) appends what stands for c. Keeps count of the leading bytes that
// stem from the input's first character.
template <typename Emit>
void map_characters(NormalText& t, const Emit& emit) {
  std::string out;
  out.reserve(t.text.size());
  size_t start_bytes = 0;
  for (size_t pos = 0; pos < t.text.size();) {
    const bool from_start = pos < t.start_bytes;
    emit(out, next_utf8(t.text, pos));
    check_growth(out.size());
    if (from_start) start_bytes = out.size();
  }
  t.text = std::move(out);
  t.start_bytes = start_bytes;
}

void apply_normal_form(NormalText& t, NormalForm form) {
  if (t.start_bytes == 0) {
    t.text = to_normal_form(t.text, form);
    return;
  }
  // The first character's share: what its own bytes become. A mark behind it may compose with it, which the share
  // then covers as well.
  const size_t share = to_normal_form(std::string_view(t.text).substr(0, t.start_bytes), form).size();
  t.text = to_normal_form(t.text, form);
  t.start_bytes = std::min(share, t.text.size());
  while (t.start_bytes < t.text.size() && (static_cast<unsigned char>(t.text[t.start_bytes]) & 0xC0) == 0x80)
    ++t.start_bytes;
}

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  void normalize(NormalText& t) const override { apply_normal_form(t, form_); }

 private:
  NormalForm form_;
};

class Lowercase final : public Normalizer {
 public:
  void normalize(NormalText& t) const override { map_characters(t, append_lowercase); }
};

class StripAccents final : public Normalizer {
 public:
  void normalize(NormalText& t) const override {
    map_characters(t, [](std::string& out, char32_t c) {
      if (!is_mark(c)) append_utf8(out, c);
    });
  }
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void normalize(NormalText& t) const override {
    size_t begin = 0, end = t.text.size();
    while (left_ && begin < end) {
      size_t next = begin;
      if (!is_whitespace(next_utf8(t.text, next))) break;
      begin = next;
    }
    while (right_ && end > begin) {
      size_t previous = previous_utf8(t.text, end), pos = previous;
      if (!is_whitespace(next_utf8(t.text, pos))) break;
      end = previous;
    }
    t.text = t.text.substr(begin, end - begin);
    t.start_bytes = std::min(t.start_bytes > begin ? t.start_bytes - begin : 0, t.text.size());
  }

 private:
  bool left_, right_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void normalize(NormalText& t) const override {
    if (t.text.empty()) return;
    t.text.insert(0, prefix_);
    if (t.start_bytes > 0) t.start_bytes += prefix_.size();
  }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  Replace(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void normalize(NormalText& t) const override {
    std::string out;
    size_t copied = 0, start_bytes = 0;
    const auto copy_to = [&](size_t end) {
      out.append(t.text, copied, end - copied);
      if (copied < t.start_bytes) start_bytes = out.size() - (end - std::min(end, t.start_bytes));
      copied = end;
    };
    RegexMatches matches(pattern_, t.text);
    while (const auto m = t.text.empty() ? std::nullopt : matches.next()) {
      copy_to(m->first);
      out += content_;
      check_growth(out.size());
      if (m->second == 0 || m->second - 1 < t.start_bytes) start_bytes = out.size();
      copied = m->second;
    }
    copy_to(t.text.size());
    t.text = std::move(out);
    t.start_bytes = start_bytes;
  }

 private:
  Regex pattern_;
  std::string content_;
};

class ReplaceCharacter final : public Normalizer {  // the usual " " to "▁", without a regular expression
 public:
  ReplaceCharacter(char from, std::string to) : from_(from), to_(std::move(to)) {}
  void normalize(NormalText& t) const override {
    map_characters(t, [this](std::string& out, char32_t c) {
      if (c == static_cast<unsigned char>(from_))
        out += to_;
      else
        append_utf8(out, c);
    });
  }

 private:
  char from_;
  std::string to_;
};

class ByteLevelNormalizer final : public Normalizer {
 public:
  void normalize(NormalText& t) const override {
    map_characters(t, [](std::string& out, char32_t c) {
      std::string bytes;
      append_utf8(bytes, c);
      append_as_alphabet(out, bytes);
    });
  }
};

class Nmt final : public Normalizer {
 public:
  void normalize(NormalText& t) const override {
    map_characters(t, [](std::string& out, char32_t c) {
      if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) return;
      const bool blank = c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680 ||
                         (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                         c == 0xFFFD;
      append_utf8(out, blank ? U' ' : c);
    });
  }
};

class Precompiled final : public Normalizer {
 public:
  explicit Precompiled(const std::string& base64) : map_(base64) {}
  void normalize(NormalText& t) const override {
    const size_t share = t.start_bytes == 0 ? 0 : map_.apply(std::string_view(t.text).substr(0, t.start_bytes)).size();
    t.text = map_.apply(t.text);
    t.start_bytes = std::min(share, t.text.size());
  }

 private:
  CharsMap map_;
};

class BertNormalizer final : public Normalizer {
 public:
  BertNormalizer(bool clean, bool chinese, bool strip_accents, bool lowercase)
      : clean_(clean), chinese_(chinese), strip_accents_(strip_accents), lowercase_(lowercase) {}

  void normalize(NormalText& t) const override {
    if (clean_)
      map_characters(t, [](std::string& out, char32_t c) {
        if (c == 0 || c == 0xFFFD || (is_other(c) && c != '\t' && c != '\n' && c != '\r')) return;
        append_utf8(out, is_whitespace(c) ? U' ' : c);
      });
    if (chinese_)
      map_characters(t, [](std::string& out, char32_t c) {
        if (is_chinese(c)) out += ' ';
        append_utf8(out, c);
        if (is_chinese(c)) out += ' ';
      });
    if (strip_accents_) {
      apply_normal_form(t, NormalForm::kD);
      map_characters(t, [](std::string& out, char32_t c) {
        if (!is_nonspacing_mark(c)) append_utf8(out, c);
      });
    }
    if (lowercase_) map_characters(t, append_lowercase);
  }

 private:
  // The blocks as the original BERT lists them (0x2B920 is its own spelling of 0x2B820).
  static bool is_chinese(char32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
  }
  bool clean_, chinese_, strip_accents_, lowercase_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<const Normalizer>> parts) : parts_(std::move(parts)) {}
  void normalize(NormalText& t) const override {
    for (const auto& part : parts_) {
      part->normalize(t);
      check_growth(t.text.size());
    }
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> parts_;
};

std::unique_ptr<const Normalizer> make_replace(const ConfigReader& c) {
  const Json& pattern = c.required("pattern");
  const std::string content = c.string("content");
  if (pattern.is_object() && pattern.contains("String") && pattern["String"].is_string()) {
    const std::string from = pattern["String"];
    if (from.size() == 1) return std::make_unique<ReplaceCharacter>(from[0], content);
  }
  return std::make_unique<Replace>(c.pattern("pattern"), content);
}

std::unique_ptr<const Normalizer> build(const Json& config, int depth) {
  if (config.is_null()) return nullptr;
  const ConfigReader c(config, "normalizer", depth);
  const std::string type = c.type();
  if (type == "NFC") return std::make_unique<UnicodeForm>(NormalForm::kC);
  if (type == "NFD") return std::make_unique<UnicodeForm>(NormalForm::kD);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(NormalForm::kKC);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(NormalForm::kKD);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Strip") return std::make_unique<Strip>(c.boolean("strip_left"), c.boolean("strip_right"));
  if (type == "Prepend") return std::make_unique<Prepend>(c.string("prepend"));
  if (type == "Replace") return make_replace(c);
  if (type == "Precompiled") return std::make_unique<Precompiled>(c.string("precompiled_charsmap"));
  if (type == "BertNormalizer") {
    const bool lowercase = c.boolean("lowercase");
    return std::make_unique<BertNormalizer>(c.boolean("clean_text"), c.boolean("handle_chinese_chars"),
                                            c.boolean_or("strip_accents", lowercase), lowercase);
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<const Normalizer>> parts;
    for (const Json& part : c.list("normalizers")) parts.push_back(build(part, depth + 1));
    std::erase(parts, nullptr);
    return std::make_unique<NormalizerSequence>(std::move(parts));
  }
  throw c.unknown_type();
}

}  // namespace

std::unique_ptr<const Normalizer> make_normalizer(const Json& config) { return build(config, 0); }

}  // namespace braid
