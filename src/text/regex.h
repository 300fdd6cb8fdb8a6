// A Unicode regular expression in Oniguruma's dialect (what tokenizer.json files are written in), run by PCRE2's JIT.
// Known gap: PCRE2 10.42 has the tables of Unicode 14, so characters that came later count as unassigned.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace braid {

struct RegexCode;  // the compiled pattern

class Regex {
 public:
  explicit Regex(const std::string& oniguruma_pattern);  // throws Error naming pattern and reason
  static Regex literal(const std::string& text);

  // The leftmost match at or after `from` of valid UTF-8. Throws Error when the pattern needs too many steps.
  std::optional<std::pair<size_t, size_t>> find(std::string_view text, size_t from) const;

 private:
  Regex(const std::string& pcre_pattern, const std::string& shown_as);
  std::shared_ptr<const RegexCode> code_;
};

// All matches one after another. An empty match right behind the previous match is passed over, as Oniguruma's
// iterator does it.
class RegexMatches {
 public:
  RegexMatches(const Regex& regex, std::string_view text) : regex_(regex), text_(text) {}
  std::optional<std::pair<size_t, size_t>> next();

 private:
  const Regex& regex_;
  std::string_view text_;
  size_t from_ = 0;
  std::optional<size_t> last_end_;
};

std::string oniguruma_to_pcre(const std::string& pattern);

}  // namespace braid
