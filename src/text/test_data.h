// What the tests of this module share: the golden tokenizers under tests/data.
#pragma once
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

namespace braid {

struct GoldenTokenizer {
  std::string name;
  Json cases;  // "encode" and "decode", see tools/tokenizer_cases.py
  std::shared_ptr<const Tokenizer> tokenizer;
};

inline const std::vector<GoldenTokenizer>& golden_tokenizers() {
  static const std::vector<GoldenTokenizer> all = [] {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(BRAID_SOURCE_DIR "/tests/data/tokenizers"))
      paths.push_back(entry.path().string());
    std::sort(paths.begin(), paths.end());
    std::vector<GoldenTokenizer> list;
    for (const std::string& path : paths) {
      Json file = read_json_file(path);
      auto tokenizer = Tokenizer::parse(file["tokenizer"].dump());
      list.push_back({std::filesystem::path(path).stem().string(), std::move(file), std::move(tokenizer)});
    }
    return list;
  }();
  return all;
}

}  // namespace braid
