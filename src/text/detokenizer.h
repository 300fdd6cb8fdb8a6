// Token ids of one stream to text, as they come. What is given out never has to be taken back: bytes wait until they
// are whole characters, and text waits while it may become a stop string. All that was given out, joined, is what
// Tokenizer::decode makes of all ids. The cost of a token does not depend on how many came before.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace braid {

struct DetokenizerOptions {
  bool skip_special_tokens = true;
  bool include_stop = false;  // whether the text ends with the stop string or before it
  std::vector<std::string> stop = {};
};

class Detokenizer {
 public:
  Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, DetokenizerOptions options);

  // The text that is certain now. Nothing once a stop string was found.
  std::string push(int32_t id);
  std::string push(std::span<const int32_t> ids);
  // The text that was held back, when no more ids come: incomplete characters as U+FFFD.
  std::string flush();

  // The stop string that was found, as an index of options.stop.
  std::optional<size_t> matched_stop() const { return matched_; }

 private:
  std::string release(std::string&& fresh);

  std::shared_ptr<const Tokenizer> tokenizer_;
  DetokenizerOptions options_;
  DecodeStream stream_;
  StopMatcher stops_;
  std::string held_;  // decoded but not given out
  std::optional<size_t> matched_;
};

}  // namespace braid
