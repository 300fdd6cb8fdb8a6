// For tests/oracle/tokenizer_oracle.py: reads {"text": ...} or {"ids": [...]} a line from stdin, writes what the
// tokenizer given as argument makes of it.
#include <fmt/core.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/tokenizer.h"

namespace braid {

Json answer(const Tokenizer& tokenizer, const Json& question) {
  if (question.contains("text")) {
    const std::string text = question["text"];
    return {{"ids", tokenizer.encode(text, true)}, {"plain", tokenizer.encode(text, false)}};
  }
  const std::vector<int32_t> ids = question["ids"];
  return {{"decoded", tokenizer.decode(ids, false)}, {"skip", tokenizer.decode(ids, true)}};
}

int run(int argc, char** argv) try {
  if (argc != 2) throw Error("usage: tokenizer_driver TOKENIZER_JSON");
  const auto tokenizer = Tokenizer::load(argv[1]);
  for (std::string line; std::getline(std::cin, line);)
    std::cout << to_string(answer(*tokenizer, Json::parse(line))) << '\n';
  return 0;
} catch (const Error& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 2;
}

}  // namespace braid

int main(int argc, char** argv) { return braid::run(argc, argv); }
