#include "text/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/byte_alphabet.h"
#include "text/decoder_stages.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

namespace braid {

Tokenizer::Tokenizer(const Json& decoder_config) : decoder_(decoder_config) {}
Tokenizer::~Tokenizer() = default;

void Tokenizer::Parts::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  WordCache& cache = WordCache::of_this_thread();
  for (size_t begin = 0; begin < word.size();) {
    const size_t end = model->part_end(word, begin);
    const std::string_view part = word.substr(begin, end - begin);
    begin = end;
    if (!WordCache::takes(part)) {
      model->encode(part, ids);
    } else if (!cache.find(cache_owner_, part, ids)) {
      const size_t before = ids.size();
      model->encode(part, ids);
      cache.put(cache_owner_, part, std::span(ids).subspan(before));
    }
  }
}

void Tokenizer::Parts::encode(std::string_view text, std::vector<int32_t>& ids) const {
  const auto encode_normal = [&](const Piece& whole) {
    normalized_matcher.cut(whole.text, [&](size_t begin, size_t end, int32_t id) {
      if (id >= 0) return ids.push_back(id);
      pre_tokenizer.split(whole.slice(begin, end), [&](const Piece& word) { encode_word(word.text, ids); });
    });
  };
  raw_matcher.cut(text, [&](size_t begin, size_t end, int32_t id) {
    if (id >= 0) return ids.push_back(id);
    const std::string_view stretch = text.substr(begin, end - begin);
    const bool at_start = begin == 0;
    const size_t start_bytes = at_start ? utf8_length(stretch[0]) : 0;
    if (!normalizer) return encode_normal({stretch, at_start, start_bytes});
    NormalText t{std::string(stretch), at_start, start_bytes};
    normalizer->normalize(t);
    if (!t.text.empty()) encode_normal(Piece{t.text, t.at_start, t.start_bytes}.slice(0, t.text.size()));
  });
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  if (add_special_tokens) ids = parts_->surround.before;
  if (is_valid_utf8(text))
    parts_->encode(text, ids);
  else
    parts_->encode(to_valid_utf8(text), ids);
  if (add_special_tokens) ids.insert(ids.end(), parts_->surround.after.begin(), parts_->surround.after.end());
  return ids;
}

std::optional<std::string_view> Tokenizer::decoded_spelling(int32_t id, bool skip_special_tokens) const {
  if (skip_special_tokens && special_.contains(id)) return std::nullopt;
  if (const auto added = parts_->added_spelling.find(id); added != parts_->added_spelling.end()) return added->second;
  if (parts_->vocab.has(id)) return parts_->vocab.token(id);
  return std::nullopt;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string out;
  DecodeStream stream = decoder_.stream();
  for (const int32_t id : ids)
    if (const auto token = decoded_spelling(id, skip_special_tokens)) stream.push(*token, out);
  stream.flush(out);
  return out;
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  int32_t id = parts_->added.find(token);
  if (id < 0) id = parts_->vocab.find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::string_view Tokenizer::id_to_token(int32_t id) const {
  return parts_->added.has(id) ? parts_->added.token(id) : parts_->vocab.token(id);
}

std::string Tokenizer::token_bytes(int32_t id) const {
  const auto spelling = decoded_spelling(id, false);
  if (!spelling) return "";
  if (decoder_.spells_bytes()) return bytes_of_alphabet(*spelling).value_or(std::string(*spelling));
  if (const auto byte = decoder_.has_byte_tokens() ? parse_byte_token(*spelling) : std::nullopt)
    return std::string(1, static_cast<char>(*byte));
  // A token behind a neutral one, which takes the decoder's special case for the first token upon itself.
  std::string alone, both;
  DecodeStream stream = decoder_.stream();
  stream.push("a", alone);
  stream.flush(alone);
  stream = decoder_.stream();
  stream.push("a", both);
  stream.push(*spelling, both);
  stream.flush(both);
  return both.compare(0, alone.size(), alone) == 0 ? both.substr(alone.size()) : std::string(*spelling);
}

}  // namespace braid
