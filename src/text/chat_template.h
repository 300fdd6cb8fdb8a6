// A model's chat template: compiled once at start, rendered per request by any thread.
//
//   const auto t = ChatTemplate::compile(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
//   const std::string prompt = t.render(request, local_now());
#pragma once
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/jinja/runtime.h"

namespace braid {

struct TemplateCode;

using SpecialTokens = std::vector<std::pair<std::string, std::string>>;  // "bos_token" -> "<s>"

class ChatTemplate {
 public:
  // Throws Error with line and column when the source is not a template.
  static ChatTemplate compile(std::string_view source, const SpecialTokens& special_tokens, JinjaLimits limits = {});

  // The prompt for the body of a chat request, its messages as they are. The template sees `messages`, `tools` and
  // `documents` (none when absent), `add_generation_prompt` (false when absent), `enable_thinking` and
  // `reasoning_effort` when present, the special tokens, and every key of `chat_template_kwargs`. Throws Error for a
  // malformed body and for whatever the template raises.
  std::string render(const OrderedJson& request, const std::tm& now) const;

  // Whether a message's content may be a list of parts, and whether it may be null: found out by rendering a message of
  // each kind once, when the template is compiled.
  bool takes_parts() const { return takes_parts_; }
  bool takes_null_content() const { return takes_null_content_; }

 private:
  std::shared_ptr<const TemplateCode> code_;
  SpecialTokens special_tokens_;
  JinjaLimits limits_;
  bool takes_parts_ = false;
  bool takes_null_content_ = false;
};

// What the server does to a request before render(), and `braid render` does not: tool-call arguments that are JSON
// text become objects; text parts are joined, and null content becomes "", where the template cannot take them. Returns
// the request with new messages.
OrderedJson prepare_messages_for_server(const ChatTemplate& chat_template, OrderedJson request);

// "2026-01-15T10:30:00", a blank for T and a trailing Z or fraction allowed. Throws Error.
std::tm parse_iso_time(std::string_view text);
std::tm local_now();

// The template and the special tokens of a model folder: chat_template.jinja, else the `chat_template` of
// tokenizer_config.json (a list of named ones: "default"). Throws Error when there is none.
struct ChatTemplateSource {
  std::string text;
  SpecialTokens special_tokens;
};
ChatTemplateSource read_chat_template(const std::string& model_dir);
void set_special_token(SpecialTokens& tokens, const std::string& name, const std::string& text);  // adds or replaces

// What `braid render` prints: the messages unchanged, the order of keys kept.
std::string render_request(const ChatTemplateSource& source, const OrderedJson& request, const std::tm& now);

}  // namespace braid
