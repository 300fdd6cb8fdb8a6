// Tokens that are found in the text itself, before (or after) it is normalized and before it is cut into words:
// special tokens and those a fine-tuner added.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_trie.h"
#include "text/function_ref.h"

namespace braid {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false, normalized = true, special = false;
};

// One of the two sets (matched before normalizing, and after) with the rules of where a match counts.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  // patterns[i] is what tokens[i] looks like in the text: its content, normalized where the text is.
  AddedTokenMatcher(std::vector<AddedToken> tokens, const std::vector<std::string>& patterns);

  // Cuts the text into stretches, in order: sink(begin, end, id), id < 0 for text in between. A text without any
  // added token is one stretch.
  void cut(std::string_view text, FunctionRef<void(size_t begin, size_t end, int32_t id)> sink) const;

 private:
  std::vector<AddedToken> tokens_;
  ByteTrie trie_;  // pattern to index in tokens_
};

}  // namespace braid
