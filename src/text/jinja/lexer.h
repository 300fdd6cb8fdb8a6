// Splits a template into tokens as Jinja 2 does with trim_blocks and lstrip_blocks on: the white-space rules around
// tags
// (`-`, `+`, the newline after a block, the blanks before it) are settled here, the parser sees clean text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace braid {

enum class TokenKind : uint8_t {
  kText,        // text
  kPrintBegin,  // {{
  kPrintEnd,    // }}
  kBlockBegin,  // {%
  kBlockEnd,    // %}
  kName,        // text
  kString,      // text, escapes resolved
  kNumber,      // value
  kOperator,    // text
  kEnd,
};

struct Token {
  TokenKind kind;
  size_t offset;  // in the normalised source, see TemplateSource
  std::string text;
  Value value = {};
};

// The source as Jinja reads it: every line ending is \n, one at the very end is gone.
struct TemplateSource {
  explicit TemplateSource(std::string_view raw);
  std::string text;

  int line_of(size_t offset) const;
  [[noreturn]] void fail(size_t offset, const std::string& what) const;  // an Error with line and column
};

std::vector<Token> tokenize(const TemplateSource& source);

}  // namespace braid
