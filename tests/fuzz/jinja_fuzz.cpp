// Any bytes as a template, rendered with a fixed conversation: an Error or a prompt, within the limits. Input: the
// template, and after a 0xFF byte, if any, a JSON request to render it with.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "text/chat_template.h"

namespace {

const char* const kRequest = R"({"messages": [{"role": "system", "content": "Be brief."},
 {"role": "user", "content": [{"type": "text", "text": "Zürich?"}]}, {"role": "assistant", "content": null,
 "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": [1, 2.5, true, null]}}}]}],
 "add_generation_prompt": true, "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\xff');
  braid::OrderedJson request = braid::OrderedJson::parse(kRequest);
  if (split != std::string_view::npos) {
    auto given = braid::OrderedJson::parse(input.substr(split + 1), nullptr, false);
    if (!given.is_discarded()) request = std::move(given);
  }
  const braid::JinjaLimits limits{.steps = 200'000, .output_bytes = 1 << 20, .total_bytes = 64 << 20, .depth = 100};
  try {
    const auto t = braid::ChatTemplate::compile(input.substr(0, split), {{"bos_token", "<s>"}}, limits);
    (void)t.render(request, braid::parse_iso_time("2026-01-15T10:30:00"));
    (void)braid::prepare_messages_for_server(t, std::move(request));
  } catch (const braid::Error&) {  // the answer to a bad template or request
  }
  return 0;
}
