// The text service of a model folder: its tokenizer, chat template and output dialect behind the server's seam.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "server/text_service.h"
#include "text/chat_template.h"
#include "text/parsers/output_parser.h"
#include "text/tokenizer.h"

namespace braid {

struct ModelTextOptions {
  std::string chat_template;              // replaces the folder's; empty: the folder's
  std::string reasoning_parser = "auto";  // "auto": by the template's markers; "none", or a name of make_output_parser
  std::string tool_parser = "auto";       // likewise
};

class ModelText final : public TextService {
 public:
  // Throws Error for a folder without tokenizer, a template that does not parse or an unknown parser. A folder without
  // a chat template serves completions only.
  static std::unique_ptr<ModelText> load(const std::string& model_dir, const ModelTextOptions& options = {});

  ChatPrompt render_chat(const ChatInput& input) const override;
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const override;
  std::string decode(std::span<const int32_t> tokens, bool skip_special_tokens) const override;
  std::string token_bytes(int32_t token) const override { return tokenizer_->token_bytes(token); }
  std::unique_ptr<TextStream> open_stream(const StreamSpec& spec) const override;

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const OutputDialect& dialect() const { return dialect_; }

 private:
  ModelText(std::shared_ptr<const Tokenizer> tokenizer, std::optional<ChatTemplate> chat_template,
            OutputDialect dialect)
      : tokenizer_(std::move(tokenizer)), template_(std::move(chat_template)), dialect_(std::move(dialect)) {}

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  OutputDialect dialect_;
};

}  // namespace braid
