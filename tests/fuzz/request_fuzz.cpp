// Any bytes as the body of a completion request: either a checked request or an ApiError, never another exception, and
// what is accepted renders and fits the context. Input: one byte for the route, then the body.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/api_error.h"
#include "server/openai_request.h"
#include "server/testing/fake_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size < 1) return 0;
  const auto kind = bytes[0] % 2 ? braid::ApiKind::kChat : braid::ApiKind::kCompletion;
  const std::string_view body(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const braid::OrderedJson kwargs = braid::OrderedJson::object();
  braid::RequestRules rules;
  rules.default_kwargs = &kwargs;
  rules.max_model_len = 1000;
  rules.vocab_size = braid::kFakeVocab;
  const braid::FakeText text;
  try {
    const auto request = braid::prepare(braid::parse_api_request(kind, body, rules), text, rules);
    for (const auto& prompt : request.prompts)
      if (prompt.tokens.empty() || static_cast<int64_t>(prompt.tokens.size()) >= rules.max_model_len + 1) std::abort();
  } catch (const braid::ApiError& e) {
    if (nlohmann::json::parse(braid::error_body(e)).size() != 1) std::abort();
  }
  return 0;
}
