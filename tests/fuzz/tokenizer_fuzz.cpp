// Any bytes as tokenizer.json give an Error or a tokenizer that works: it encodes, decodes, streams what it encoded to
// the same text, and comes back. The input is the file, a zero byte, and the text to try.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace braid;
  set_log_level(LogLevel::kOff);
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find('\0');
  const std::string_view file = input.substr(0, cut);
  const std::string_view text =
      cut == std::string_view::npos ? "The 1st té\xFFxt,\n\n  日本 <s>!" : input.substr(cut + 1);
  try {
    const auto tokenizer = Tokenizer::parse(file, R"({"bos_token": "<s>"})");
    std::vector<int32_t> ids = tokenizer->encode(text, true);
    ids.push_back(tokenizer->vocab_size() / 2);
    ids.push_back(tokenizer->vocab_size() + 1);
    Detokenizer stream(tokenizer, {.skip_special_tokens = false});
    std::string streamed;
    for (const int32_t id : ids) {
      streamed += stream.push(id);
      tokenizer->token_bytes(id);
    }
    streamed += stream.flush();
    if (streamed != tokenizer->decode(ids, false)) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
