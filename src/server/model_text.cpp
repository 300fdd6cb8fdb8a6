// See model_text.h.
#include "server/model_text.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/detokenizer.h"

namespace braid {
namespace {

// Which special tokens still reach the text when they are to be skipped: the parser's markers may be among them.
enum class KeptSpecials { kNone, kThinkMarks, kAll };

class ModelTextStream final : public TextStream {
 public:
  ModelTextStream(std::shared_ptr<const Tokenizer> tokenizer, const StreamSpec& spec, const OutputDialect& dialect)
      : tokenizer_(tokenizer),
        spec_(spec),
        detokenizer_(tokenizer, {.skip_special_tokens = false, .include_stop = spec.include_stop, .stop = spec.stop}) {
    const std::string reasoning = spec.parse_reasoning ? dialect.reasoning : "";
    const std::string tools = spec.parse_tools ? dialect.tools : "";
    if (!tools.empty() || reasoning == "gpt_oss")
      kept_ = KeptSpecials::kAll;
    else if (!reasoning.empty())
      kept_ = KeptSpecials::kThinkMarks;
    if (reasoning.empty() && tools.empty()) return;
    parser_ = make_output_parser({.reasoning = reasoning,
                                  .tools = tools,
                                  .reasoning_open = spec.inside_reasoning,
                                  .tool_schemas = spec.tools.get(),
                                  .make_id = nullptr});
  }

  void push(int32_t token, TextDelta& out) override {
    if (spec_.skip_special_tokens && tokenizer_->is_special(token) && !keeps(token)) return;
    add(detokenizer_.push(token), out);
    if (const auto stop = detokenizer_.matched_stop()) {
      stopped_by_ = spec_.stop[*stop];
      finish_parser(out);
    }
  }

  void finish(TextDelta& out) override {
    add(detokenizer_.flush(), out);
    finish_parser(out);
  }

  std::optional<std::string> stopped_by() const override { return stopped_by_; }

 private:
  bool keeps(int32_t token) const {
    if (kept_ != KeptSpecials::kThinkMarks) return kept_ == KeptSpecials::kAll;
    const std::string_view spelling = tokenizer_->id_to_token(token);
    return spelling == "<think>" || spelling == "</think>";
  }
  void add(std::string&& text, TextDelta& out) {
    if (text.empty()) return;
    if (parser_)
      append(parser_->push(text), out);
    else
      out.content += text;
  }
  void finish_parser(TextDelta& out) {
    if (parser_) append(parser_->finish(), out);
    parser_ = nullptr;
  }
  static void append(std::vector<OutputEvent>&& events, TextDelta& out) {
    for (OutputEvent& e : events) {
      switch (e.kind) {
        case OutputEvent::Kind::kContent:
          out.content += e.text;
          break;
        case OutputEvent::Kind::kReasoning:
          out.reasoning += e.text;
          break;
        case OutputEvent::Kind::kToolStart:
          out.tool_calls.push_back({e.index, std::move(e.id), std::move(e.name), std::move(e.text)});
          break;
        case OutputEvent::Kind::kToolArguments:
          // Clients add up pieces of one call by its index, so neighbours may as well travel together.
          if (out.tool_calls.empty() || out.tool_calls.back().index != e.index)
            out.tool_calls.push_back({e.index, "", "", std::move(e.text)});
          else
            out.tool_calls.back().arguments += e.text;
          break;
      }
    }
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  StreamSpec spec_;
  Detokenizer detokenizer_;
  KeptSpecials kept_ = KeptSpecials::kNone;
  std::unique_ptr<OutputParser> parser_;  // null: the text is content as it is
  std::optional<std::string> stopped_by_;
};

std::string choose(const std::string& asked, const std::string& detected) {
  return asked == "auto" ? detected : asked == "none" ? "" : asked;
}

}  // namespace

std::unique_ptr<ModelText> ModelText::load(const std::string& model_dir, const ModelTextOptions& options) {
  auto tokenizer = Tokenizer::load(model_dir);
  std::optional<ChatTemplate> chat_template;
  OutputDialect dialect;
  std::string source = options.chat_template;
  SpecialTokens special_tokens;
  try {
    ChatTemplateSource found = read_chat_template(model_dir);
    special_tokens = std::move(found.special_tokens);
    if (source.empty()) source = std::move(found.text);
  } catch (const Error&) {  // no template: chat requests say so
    if (tokenizer->bos()) special_tokens.emplace_back("bos_token", tokenizer->bos()->content);
    if (tokenizer->eos()) special_tokens.emplace_back("eos_token", tokenizer->eos()->content);
  }
  if (!source.empty()) {
    chat_template = ChatTemplate::compile(source, special_tokens);
    dialect = detect_output_dialect(source);
  }
  dialect = {choose(options.reasoning_parser, dialect.reasoning), choose(options.tool_parser, dialect.tools)};
  make_output_parser(
      {.reasoning = dialect.reasoning, .tools = dialect.tools, .tool_schemas = nullptr, .make_id = nullptr});
  return std::unique_ptr<ModelText>(new ModelText(std::move(tokenizer), std::move(chat_template), std::move(dialect)));
}

ChatPrompt ModelText::render_chat(const ChatInput& input) const {
  if (!template_) throw Error("the model has no chat template; use /v1/completions or start with --chat-template");
  OrderedJson request = {{"messages", *input.messages}, {"add_generation_prompt", input.add_generation_prompt}};
  if (input.tools) request["tools"] = *input.tools;
  if (input.kwargs) request["chat_template_kwargs"] = *input.kwargs;
  const std::string prompt =
      template_->render(prepare_messages_for_server(*template_, std::move(request)), local_now());
  return {tokenizer_->encode_chat(prompt), prompt_opens_reasoning(prompt)};
}

std::vector<int32_t> ModelText::encode(std::string_view text, bool add_special_tokens) const {
  return tokenizer_->encode(text, add_special_tokens);
}

std::string ModelText::decode(std::span<const int32_t> tokens, bool skip_special_tokens) const {
  return tokenizer_->decode(tokens, skip_special_tokens);
}

std::unique_ptr<TextStream> ModelText::open_stream(const StreamSpec& spec) const {
  return std::make_unique<ModelTextStream>(tokenizer_, spec, dialect_);
}

}  // namespace braid
