#include "text/detokenizer.h"

#include <utility>

namespace braid {

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, DetokenizerOptions options)
    : tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      stream_(tokenizer_->decode_stream()),
      stops_(options_.stop) {}

std::string Detokenizer::push(int32_t id) { return push(std::span(&id, 1)); }

std::string Detokenizer::push(std::span<const int32_t> ids) {
  if (matched_) return "";
  std::string fresh;
  for (const int32_t id : ids)
    if (const auto token = tokenizer_->decoded_spelling(id, options_.skip_special_tokens)) stream_.push(*token, fresh);
  return release(std::move(fresh));
}

std::string Detokenizer::flush() {
  if (matched_) return "";
  std::string fresh;
  stream_.flush(fresh);
  std::string out = release(std::move(fresh));
  return matched_ ? out : out + std::exchange(held_, "");
}

std::string Detokenizer::release(std::string&& fresh) {
  const auto match = stops_.feed(fresh);
  if (match) {
    matched_ = match->index;
    held_.append(fresh, 0, match->end);
    if (!options_.include_stop) held_.resize(held_.size() - stops_.stop(match->index).size());
    return std::exchange(held_, "");
  }
  held_ += fresh;
  std::string out = held_.substr(0, held_.size() - stops_.held());
  held_.erase(0, out.size());
  return out;
}

}  // namespace braid
