#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"
#include "text/utf8.h"

namespace braid {

namespace {

bool ends_with_word(std::string_view text) {
  size_t pos = previous_utf8(text, text.size());
  return is_word(next_utf8(text, pos));
}

bool starts_with_word(std::string_view text) {
  size_t pos = 0;
  return is_word(next_utf8(text, pos));
}

// Where the blanks before `end` begin, not looking further back than `limit`.
size_t blanks_before(std::string_view text, size_t end, size_t limit) {
  while (end > limit) {
    const size_t previous = previous_utf8(text, end);
    size_t pos = previous;
    if (!is_whitespace(next_utf8(text, pos))) break;
    end = previous;
  }
  return std::max(end, limit);
}

size_t blanks_after(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t next = begin;
    if (!is_whitespace(next_utf8(text, next))) break;
    begin = next;
  }
  return begin;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens, const std::vector<std::string>& patterns)
    : tokens_(std::move(tokens)) {
  std::vector<std::pair<std::string_view, int32_t>> members;
  for (size_t i = 0; i < tokens_.size(); ++i) members.emplace_back(patterns[i], static_cast<int32_t>(i));
  trie_ = ByteTrie(std::move(members));
}

void AddedTokenMatcher::cut(std::string_view text, FunctionRef<void(size_t, size_t, int32_t)> sink) const {
  size_t done = 0;
  for (size_t pos = 0; pos < text.size() && !trie_.empty();) {
    if (!trie_.may_start_with(text[pos])) {
      ++pos;
      continue;
    }
    size_t length = 0;
    int32_t index = -1;
    trie_.prefixes(text.substr(pos), [&](size_t l, int32_t i) {
      length = l;
      index = i;
    });
    if (index < 0) {
      ++pos;
      continue;
    }
    size_t begin = pos, end = pos + length;
    pos = end;  // also when the match is refused: its text is not searched again
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    if (token.single_word && ((begin > 0 && ends_with_word(text.substr(0, begin))) ||
                              (end < text.size() && starts_with_word(text.substr(end)))))
      continue;
    // A match inside the blanks that the token before took (rstrip) still counts, without its own text.
    if (token.lstrip) begin = begin > done ? blanks_before(text, begin, done) : done;
    if (token.rstrip) end = blanks_after(text, end);
    if (done < begin) sink(done, begin, -1);
    sink(begin, end, token.id);
    done = end;
  }
  if (done < text.size()) sink(done, text.size(), -1);
}

}  // namespace braid
