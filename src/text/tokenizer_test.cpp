#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace braid {

TEST(Tokenizer, DemoCasesAreExact) {
  const auto tokenizer = Tokenizer::load(BRAID_SOURCE_DIR "/models/demo");
  std::ifstream in(BRAID_SOURCE_DIR "/tests/data/demo/tokenizer_cases.jsonl");
  int n_cases = 0;
  for (std::string line; std::getline(in, line); ++n_cases) {
    const Json c = Json::parse(line);
    const std::string text = c["text"];
    const auto ids = tokenizer->encode(text, true);
    EXPECT_EQ(ids, c["ids"].get<std::vector<int32_t>>()) << text;
    EXPECT_EQ(tokenizer->encode(text, false), c["ids_no_special"].get<std::vector<int32_t>>()) << text;
    EXPECT_EQ(tokenizer->decode(c["ids_no_special"].get<std::vector<int32_t>>(), false), c["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer->decode(ids, true), c["decoded_skip"].get<std::string>());
  }
  EXPECT_GT(n_cases, 20);
}

}  // namespace braid
