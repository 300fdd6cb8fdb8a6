// The inside of a Tokenizer: the steps of encoding, and how a Tokenizer is built from its files.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/token_model.h"
#include "text/tokenizer.h"
#include "text/tokenizer_file.h"
#include "text/vocab.h"
#include "text/word_cache.h"

namespace braid {

class Tokenizer::Parts {
 public:
  explicit Parts(const Json& pre_tokenizer_config) : pre_tokenizer(pre_tokenizer_config) {}

  void encode(std::string_view valid_utf8, std::vector<int32_t>& ids) const;

  std::unique_ptr<const Normalizer> normalizer;
  PreTokenizerChain pre_tokenizer;
  std::unique_ptr<const TokenModel> model;
  Surround surround;
  Vocab vocab;                                              // the model's
  Vocab added;                                              // content to id of the added tokens
  std::unordered_map<int32_t, std::string> added_spelling;  // as the decoder gets them
  AddedTokenMatcher raw_matcher, normalized_matcher;

 private:
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;
  uint32_t cache_owner_ = WordCache::new_owner();
};

}  // namespace braid
