// Text to token ids and back, exactly as Hugging Face's tokenizers library does it with the same tokenizer.json.
// Immutable after load: any number of threads may use one Tokenizer.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/decoder.h"
#include "text/token_id_set.h"

namespace braid {

// A token that tokenizer_config.json gives a role, with its id if the vocabulary has it.
struct NamedToken {
  std::string content;
  std::optional<int32_t> id;
};

// What tokenizer_config.json (and chat_template.jinja beside it) say to chat templates. Templates are as they are in
// the file, unparsed.
struct ChatTemplates {
  std::string standard;                                    // empty if the folder has none
  std::vector<std::pair<std::string, std::string>> named;  // name and template, without "default"
};

class Tokenizer {
 public:
  // From a folder with tokenizer.json (tokenizer_config.json and chat_template.jinja where there are), or from the
  // path of a tokenizer.json. Throws Error that names the file.
  static std::shared_ptr<const Tokenizer> load(const std::string& folder_or_file);
  // From the contents of the two files; an empty config is none.
  static std::shared_ptr<const Tokenizer> parse(std::string_view tokenizer_json, std::string_view config_json = "");
  ~Tokenizer();

  // Invalid UTF-8 is read as U+FFFD. With add_special_tokens the post-processor's tokens are put around.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;

  // A rendered chat prompt: templates write their special tokens themselves, so nothing is put around, as transformers'
  // apply_chat_template has it.
  std::vector<int32_t> encode_chat(std::string_view rendered) const { return encode(rendered, false); }

  // Ids without a token give nothing (a model's vocabulary is often padded).
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  int vocab_size() const { return static_cast<int>(n_ids_); }  // largest id + 1
  std::optional<int32_t> token_to_id(std::string_view token) const;
  std::string_view id_to_token(int32_t id) const;  // as the vocabulary spells it; empty if there is none
  // The bytes that the token adds to a text in the middle of a sentence (byte alphabet, byte tokens and blank marks
  // resolved).
  std::string token_bytes(int32_t id) const;
  bool is_special(int32_t id) const { return special_.contains(id); }
  const std::vector<int32_t>& special_ids() const { return special_.ids(); }

  const std::optional<NamedToken>& bos() const { return bos_; }
  const std::optional<NamedToken>& eos() const { return eos_; }
  const std::optional<NamedToken>& pad() const { return pad_; }
  const std::optional<NamedToken>& unk() const { return unk_; }
  const ChatTemplates& chat_templates() const { return chat_templates_; }

  // One token's part in decoding, for streams: its spelling for the decoder, or nothing if it has no part.
  DecodeStream decode_stream() const { return decoder_.stream(); }
  std::optional<std::string_view> decoded_spelling(int32_t id, bool skip_special_tokens) const;

 private:
  class Parts;  // what encoding needs: normalizer, pre-tokenizer, model, added tokens
  friend class TokenizerBuilder;
  explicit Tokenizer(const Json& decoder_config);

  std::unique_ptr<Parts> parts_;
  Decoder decoder_;
  TokenIdSet special_;
  size_t n_ids_ = 0;
  std::optional<NamedToken> bos_, eos_, pad_, unk_;
  ChatTemplates chat_templates_;
};

}  // namespace braid
