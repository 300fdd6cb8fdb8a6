// What the server needs of the text module: prompts to tokens, tokens to text. A thin seam, so that the server's tests
// run on a toy alphabet. All functions but TextStream's may be called from several threads at once.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "sched/request.h"

namespace braid {

struct ChatInput {
  const OrderedJson* messages = nullptr;  // array, as the client sent it: shapes are checked, nothing is converted
  const OrderedJson* tools = nullptr;     // array, or null: none
  const OrderedJson* kwargs = nullptr;    // object: variables for the template (enable_thinking, ...)
  bool add_generation_prompt = true;
};

struct ChatPrompt {
  std::vector<int32_t> tokens;
  bool inside_reasoning = false;  // the prompt ends inside an opened think block
};

// How the tokens of one choice become text.
struct StreamSpec {
  std::vector<std::string> stop{};  // stop strings; the text ends before the first that occurs
  bool include_stop = false;        // ... or after it
  bool skip_special_tokens = true;
  bool parse_reasoning = false;  // split "<think>..</think>" and the like from the content
  bool parse_tools = false;
  bool inside_reasoning = false;               // from ChatPrompt
  std::shared_ptr<const OrderedJson> tools{};  // the request's, for dialects whose arguments need types
};

struct ToolCallDelta {
  int index = 0;          // of the call in this choice
  std::string id, name;   // set in the first delta of a call
  std::string arguments;  // JSON text to append
};

// Text that has become certain. Fields are appended to, so that a writer that cannot send merges deltas for free.
struct TextDelta {
  std::string content, reasoning;
  std::vector<ToolCallDelta> tool_calls;
  bool empty() const { return content.empty() && reasoning.empty() && tool_calls.empty(); }
};

// Incremental text of one choice. Never splits UTF-8; withholds what may become a stop string or a marker.
class TextStream {
 public:
  virtual ~TextStream() = default;
  virtual void push(int32_t token, TextDelta& out) = 0;
  virtual void finish(TextDelta& out) = 0;  // releases what is withheld; nothing follows
  // The stop string that ended the text, set by push(); push() must not be called after it.
  virtual std::optional<std::string> stopped_by() const = 0;
};

class TextService {
 public:
  virtual ~TextService() = default;
  // Throws Error when the template refuses the messages.
  virtual ChatPrompt render_chat(const ChatInput& input) const = 0;
  virtual std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const = 0;
  virtual std::string decode(std::span<const int32_t> tokens, bool skip_special_tokens) const = 0;
  virtual std::string token_bytes(int32_t token) const = 0;  // may be a part of a UTF-8 sequence; empty: unknown id
  virtual std::unique_ptr<TextStream> open_stream(const StreamSpec& spec) const = 0;
  // The constraint of a response_format object; null where the build has none for it.
  virtual std::shared_ptr<Constraint> constraint(const OrderedJson& response_format) const { return nullptr; }
};

}  // namespace braid
