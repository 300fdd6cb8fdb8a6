// A recursive reader that accepts what models write, bounded in depth.
#include "text/parsers/json_repair.h"

#include <charconv>
#include <nlohmann/json.hpp>

namespace braid {
namespace {

constexpr int kMaxDepth = 100;

class LenientReader {
 public:
  explicit LenientReader(std::string_view text) : text_(text) {}

  std::optional<OrderedJson> value(int depth = 0) {
    skip_space();
    if (at_ >= text_.size() || depth > kMaxDepth) return std::nullopt;
    const char c = text_[at_];
    if (c == '{') return object(depth);
    if (c == '[') return array(depth);
    if (c == '"' || c == '\'') return OrderedJson(string(c));
    return scalar();
  }

  size_t position() const { return at_; }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || (text_[at_] >= 9 && text_[at_] <= 13))) ++at_;
  }
  bool at_end() const { return at_ >= text_.size(); }

 private:
  bool skip(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::optional<OrderedJson> object(int depth) {
    ++at_;
    OrderedJson out = OrderedJson::object();
    while (true) {
      while (skip(',')) {
      }
      if (skip('}') || at_end()) return out;
      std::optional<std::string> key;
      if (text_[at_] == '"' || text_[at_] == '\'')
        key = string(text_[at_]);
      else
        key = bare_key();
      if (!key) return std::nullopt;
      if (!skip(':')) {
        if (at_end()) return out;  // cut off inside a key: there is no value to keep
        return std::nullopt;
      }
      skip_space();
      if (at_end()) return out;
      auto item = value(depth + 1);
      if (!item) return std::nullopt;
      out[*key] = std::move(*item);
      skip_space();
      if (!at_end() && text_[at_] != ',' && text_[at_] != '}') return std::nullopt;
    }
  }

  std::optional<OrderedJson> array(int depth) {
    ++at_;
    OrderedJson out = OrderedJson::array();
    while (true) {
      while (skip(',')) {
      }
      if (skip(']') || at_end()) return out;
      auto item = value(depth + 1);
      if (!item) return std::nullopt;
      out.push_back(std::move(*item));
      skip_space();
      if (!at_end() && text_[at_] != ',' && text_[at_] != ']') return std::nullopt;
    }
  }

  std::optional<std::string> bare_key() {
    const size_t start = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    if (at_ == start) return std::nullopt;
    return std::string(text_.substr(start, at_ - start));
  }

  std::string string(char quote) {
    ++at_;
    std::string out;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == quote) break;
      if (c == '\\' && at_ < text_.size())
        escape(out);
      else if (c != '\\')
        out += c;
    }
    return out;
  }

  void escape(std::string& out) {
    const char c = text_[at_++];
    switch (c) {
      case 'n':
        out += '\n';
        return;
      case 't':
        out += '\t';
        return;
      case 'r':
        out += '\r';
        return;
      case 'b':
        out += '\b';
        return;
      case 'f':
        out += '\f';
        return;
      case '"':
      case '\'':
      case '\\':
      case '/':
        out += c;
        return;
      case 'u':
        unicode_escape(out);
        return;
      default:  // no escape of JSON, such as \d or \(: the backslash was meant
        out += '\\';
        out += c;
    }
  }

  // Lets nlohmann decode \uXXXX and its surrogate pair; a broken one is kept as it was written.
  void unicode_escape(std::string& out) {
    const size_t start = at_ - 2;
    for (const size_t length : {size_t{12}, size_t{6}}) {
      const std::string_view candidate = text_.substr(start, length);
      if (candidate.size() != length || (length == 12 && candidate.substr(6, 2) != "\\u")) continue;
      const auto parsed = OrderedJson::parse('"' + std::string(candidate) + '"', nullptr, false);
      if (!parsed.is_string()) continue;
      out += parsed.get<std::string>();
      at_ = start + length;
      return;
    }
    out += "\\u";
  }

  std::optional<OrderedJson> scalar() {
    const size_t start = at_;
    while (at_ < text_.size() && std::string_view(",]}: \t\r\n").find(text_[at_]) == std::string_view::npos) ++at_;
    const std::string word(text_.substr(start, at_ - start));
    if (word == "True") return OrderedJson(true);
    if (word == "False") return OrderedJson(false);
    if (word == "None") return OrderedJson(nullptr);
    auto parsed = OrderedJson::parse(word, nullptr, false);
    if (!parsed.is_discarded()) return parsed;
    if (at_end())  // cut off: 'tru', '1.', '-'
      for (const std::string_view whole : {"true", "false", "null"})
        if (!word.empty() && whole.starts_with(word)) return OrderedJson::parse(whole);
    return std::nullopt;
  }

  std::string_view text_;
  size_t at_ = 0;
};

std::string dump(const OrderedJson& value) { return to_string(value); }

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::string_view without_fence(std::string_view text) {
  if (!text.starts_with("```")) return text;
  const size_t line = text.find('\n');
  if (line == std::string_view::npos) return text;
  text.remove_prefix(line + 1);
  if (text.ends_with("```")) text.remove_suffix(3);
  return trimmed(text);
}

// nlohmann's parser does not recurse, its values do when copied: deep text is not handed to it.
bool is_deep(std::string_view text) {
  int depth = 0;
  for (const char c : text) {
    if (c == '{' || c == '[') ++depth;
    if (depth > 4 * kMaxDepth) return true;
    if (c == '}' || c == ']') --depth;
  }
  return false;
}

}  // namespace

std::optional<OrderedJson> parse_lenient(std::string_view text, size_t* used) {
  LenientReader reader(text);
  auto value = reader.value();
  if (used != nullptr) *used = reader.position();
  return value;
}

std::string repair_arguments(std::string_view text) {
  const std::string_view body = without_fence(trimmed(text));
  if (body.empty()) return "{}";
  if (!is_deep(body)) {
    OrderedJson valid = OrderedJson::parse(body, nullptr, false);
    if (valid.is_object()) return std::string(body);
    if (valid.is_null()) return "{}";
    if (valid.is_string()) {
      const auto inner = OrderedJson::parse(valid.get_ref<const std::string&>(), nullptr, false);
      if (inner.is_object()) return dump(inner);
    }
    LenientReader reader(body);
    auto repaired = body[0] == '{' ? reader.value() : std::nullopt;
    // Anything but closers after the object means that it was not understood.
    if (repaired && body.find_first_not_of("}] \t\r\n", reader.position()) == std::string_view::npos)
      return dump(*repaired);
  }
  return dump(OrderedJson{{"_raw", std::string(text)}});
}

}  // namespace braid
