// What turns a word into token ids: BPE, WordPiece, Unigram or a plain list of words.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/vocab.h"

namespace braid {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  virtual void encode(std::string_view word, std::vector<int32_t>& ids) const = 0;
  // Where the part of a word that starts at `from` ends if parts can be encoded one by one with the same result.
  virtual size_t part_end(std::string_view word, size_t /*from*/) const { return word.size(); }
};

// The ids of "<0x00>" ... "<0xFF>", -1 where the vocabulary lacks one.
std::vector<int32_t> byte_token_ids(const Vocab& vocab);

std::unique_ptr<const TokenModel> make_wordpiece(const Json& config, const Vocab& vocab);  // throws Error
std::unique_ptr<const TokenModel> make_unigram(const Json& config, const Vocab& vocab, std::vector<double> scores);
std::unique_ptr<const TokenModel> make_word_level(const Json& config, const Vocab& vocab);

}  // namespace braid
