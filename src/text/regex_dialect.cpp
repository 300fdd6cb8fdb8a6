// Oniguruma's dialect rewritten for PCRE2: where the two read one spelling differently, the pattern is spelled out.
//   \s \S      Oniguruma takes Unicode's White_Space; PCRE2 adds U+180E
//   \w \W \b   marks and connectors count as word characters in Oniguruma only
//   \h \H      hexadecimal digit, not blank
//   \p{Han}    the script itself, not its extensions; long names of categories
//   [a&&[^b]]  intersections and nested classes, which PCRE2 10.42 does not know
//   x{1,3}+    a repeat of a repeat, not a possessive one;  {,n} means {0,n}
//   (?m:       the dot takes newlines, which PCRE2 calls s
#include <array>
#include <cctype>
#include <vector>

#include "base/error.h"
#include "text/regex.h"

namespace braid {

namespace {

constexpr std::string_view kSpace =
    "\\t-\\r\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kNotSpace =
    "\\x00-\\x08\\x0e-\\x1f!-\\x84\\x86-\\x9f\\xa1-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";
constexpr std::string_view kWord =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{"
    "1f189}";

struct LongName {
  std::string_view name, category;
};
constexpr std::array kLongNames = {LongName{"letter", "L"},
                                   LongName{"uppercaseletter", "Lu"},
                                   LongName{"lowercaseletter", "Ll"},
                                   LongName{"titlecaseletter", "Lt"},
                                   LongName{"modifierletter", "Lm"},
                                   LongName{"otherletter", "Lo"},
                                   LongName{"mark", "M"},
                                   LongName{"nonspacingmark", "Mn"},
                                   LongName{"spacingmark", "Mc"},
                                   LongName{"enclosingmark", "Me"},
                                   LongName{"number", "N"},
                                   LongName{"decimalnumber", "Nd"},
                                   LongName{"letternumber", "Nl"},
                                   LongName{"othernumber", "No"},
                                   LongName{"punctuation", "P"},
                                   LongName{"symbol", "S"},
                                   LongName{"mathsymbol", "Sm"},
                                   LongName{"currencysymbol", "Sc"},
                                   LongName{"separator", "Z"},
                                   LongName{"spaceseparator", "Zs"},
                                   LongName{"other", "C"},
                                   LongName{"control", "Cc"},
                                   LongName{"format", "Cf"},
                                   LongName{"alnum", "Xan"}};

// A character class: its own items, classes nested in it, and what it is intersected with.
struct CharClass {
  bool negated = false;
  std::string items;
  std::vector<CharClass> nested;
  std::vector<CharClass> intersected;
  bool simple() const { return nested.empty() && intersected.empty(); }
};

class Translator {
 public:
  explicit Translator(const std::string& pattern) : in_(pattern) {}

  std::string run() {
    while (pos_ < in_.size()) step();
    return std::move(out_);
  }

 private:
  bool at(char c, size_t ahead = 0) const { return pos_ + ahead < in_.size() && in_[pos_ + ahead] == c; }

  void atom(std::string_view text) {
    atom_start_ = out_.size();
    out_ += text;
  }

  void step() {
    const char c = in_[pos_];
    if (c == '\\') {
      escape();
    } else if (c == '[') {
      ++pos_;
      atom(spelled(parse_class(0)));
    } else if (c == '(') {
      open_group();
    } else if (c == ')') {
      ++pos_;
      out_ += ')';
      if (!groups_.empty()) {
        atom_start_ = groups_.back();
        groups_.pop_back();
      }
    } else if (c == '{') {
      interval();
    } else {
      size_t length = 1;
      while (pos_ + length < in_.size() && (static_cast<unsigned char>(in_[pos_ + length]) & 0xC0) == 0x80) ++length;
      if (std::string_view("*+?|^$").find(c) == std::string_view::npos) atom_start_ = out_.size();
      out_.append(in_, pos_, length);
      pos_ += length;
    }
  }

  void open_group() {
    groups_.push_back(out_.size());
    out_ += in_[pos_++];
    if (!at('?')) return;
    size_t end = pos_ + 1;
    while (end < in_.size() && std::string_view("imx-").find(in_[end]) != std::string_view::npos) ++end;
    if (end == pos_ + 1 || end >= in_.size() || (in_[end] != ':' && in_[end] != ')')) return;
    for (; pos_ < end; ++pos_) out_ += in_[pos_] == 'm' ? 's' : in_[pos_];
  }

  void interval() {
    const size_t end = in_.find('}', pos_);
    const std::string body = end == std::string::npos ? "" : in_.substr(pos_ + 1, end - pos_ - 1);
    if (body.empty() || body == "," || body.find_first_not_of("0123456789,") != std::string::npos) {
      atom("\\{");
      ++pos_;
      return;
    }
    out_ += '{' + (body[0] == ',' ? "0" + body : body) + '}';
    pos_ = end + 1;
    if (!at('+')) return;
    out_.insert(atom_start_, "(?:");
    out_ += ')';
  }

  void escape() {
    const char c = pos_ + 1 < in_.size() ? in_[pos_ + 1] : '\0';
    if (c == 'b' || c == 'B') {
      const std::string w = "[" + std::string(kWord) + "]";
      atom(c == 'b' ? "(?:(?<=" + w + ")(?!" + w + ")|(?<!" + w + ")(?=" + w + "))"
                    : "(?:(?<=" + w + ")(?=" + w + ")|(?<!" + w + ")(?!" + w + "))");
      pos_ += 2;
      return;
    }
    if (c == 'O') {
      atom("(?s:.)");
      pos_ += 2;
      return;
    }
    const bool as_class = std::string_view("sSwWhH").find(c) != std::string_view::npos;
    if (c == 'W') {
      atom("[^" + std::string(kWord) + "]");
      pos_ += 2;
    } else if (as_class) {
      atom("[" + class_escape() + "]");
    } else {
      atom(class_escape());
    }
  }

  // The escape at pos_ spelled so that it is right inside of [...].
  std::string class_escape() {
    const char c = pos_ + 1 < in_.size() ? in_[pos_ + 1] : '\0';
    if (c == 'p' || c == 'P') return property();
    if (c == 'u') {
      const std::string digits = in_.substr(pos_ + 2, 4);
      if (digits.size() == 4 && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos) {
        pos_ += 6;
        return "\\x{" + digits + "}";
      }
    }
    size_t length = 2;
    while (pos_ + length < in_.size() && (static_cast<unsigned char>(in_[pos_ + length]) & 0xC0) == 0x80) ++length;
    const std::string same = in_.substr(pos_, length);
    pos_ += length;
    if (c == 's') return std::string(kSpace);
    if (c == 'S') return std::string(kNotSpace);
    if (c == 'w') return std::string(kWord);
    if (c == 'h') return "0-9A-Fa-f";
    if (c == 'H') return "\\x00-/:-@G-`g-\\x{10ffff}";
    if (c == 'v') return "\\x0b";
    return same;
  }

  std::string property() {
    const bool negated = in_[pos_ + 1] == 'P';
    if (!at('{', 2)) {  // Oniguruma wants braces; let PCRE2 judge
      const std::string same = in_.substr(pos_, 2);
      pos_ += 2;
      return same;
    }
    const size_t end = in_.find('}', pos_);
    if (end == std::string::npos) throw Error("regular expression \"{}\": \\p{{ without its brace", in_);
    std::string name = in_.substr(pos_ + 3, end - pos_ - 3);
    pos_ = end + 1;
    const bool caret = !name.empty() && name[0] == '^';
    if (caret) name.erase(0, 1);
    std::string key;
    for (const char c : name)
      if (c != '_' && c != ' ' && c != '-') key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (const LongName& l : kLongNames)
      if (l.name == key) name = l.category;
    const bool category_or_flag = name.size() <= 2 || key == "any" || key == "alphabetic" || key == "lowercase" ||
                                  key == "uppercase" || key == "emoji" || key == "ideographic" || name == "Xan" ||
                                  name.find('=') != std::string::npos || name.find(':') != std::string::npos;
    return std::string(negated != caret ? "\\P{" : "\\p{") + (category_or_flag ? "" : "sc:") + name + "}";
  }

  // Reads a class whose '[' is read.
  CharClass parse_class(int depth) {
    if (depth > 20) throw Error("regular expression \"{}\": character classes nested too deep", in_);
    CharClass whole;
    if (at('^')) {
      whole.negated = true;
      ++pos_;
    }
    CharClass* part = &whole;
    if (at(']')) {  // first in a class, a bracket is a character
      part->items += "\\]";
      ++pos_;
    }
    while (!at(']')) {
      if (pos_ >= in_.size()) throw Error("regular expression \"{}\": character class without its ]", in_);
      if (at('&') && at('&', 1)) {
        pos_ += 2;
        whole.intersected.emplace_back();
        part = &whole.intersected.back();
      } else if (at('[') && at(':', 1) && in_.find(":]", pos_) != std::string::npos) {
        const size_t end = in_.find(":]", pos_) + 2;
        part->items.append(in_, pos_, end - pos_);
        pos_ = end;
      } else if (at('[')) {
        ++pos_;
        part->nested.push_back(parse_class(depth + 1));
      } else if (at('\\') && (at('W', 1))) {
        pos_ += 2;
        CharClass not_word;
        not_word.negated = true;
        not_word.items = kWord;
        part->nested.push_back(std::move(not_word));
      } else if (at('\\')) {
        part->items += class_escape();
      } else {
        part->items += in_[pos_++];
      }
    }
    ++pos_;
    return whole;
  }

  static std::string spelled(const CharClass& c) {
    if (c.simple()) return (c.negated ? "[^" : "[") + c.items + "]";
    std::string any = "(?:";
    for (const CharClass& other : c.intersected) any += "(?=" + spelled(other) + ")";
    std::string choice = c.items.empty() ? "" : "[" + c.items + "]";
    for (const CharClass& n : c.nested) {
      if (!choice.empty()) choice += '|';
      choice += spelled(n);
    }
    any += "(?:" + choice + "))";
    return c.negated ? "(?:(?!" + any + ")(?s:.))" : any;
  }

  const std::string& in_;
  size_t pos_ = 0;
  std::string out_;
  size_t atom_start_ = 0;       // where in out_ the thing begins that a repeat would repeat
  std::vector<size_t> groups_;  // where in out_ the open groups begin
};

}  // namespace

std::string oniguruma_to_pcre(const std::string& pattern) { return Translator(pattern).run(); }

}  // namespace braid
