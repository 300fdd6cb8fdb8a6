// tokenizer.json read in one pass: vocabulary and merges (150 000 of each is usual) straight into arrays, everything
// else as ordinary JSON.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace braid {

struct TokenizerFile {
  struct Text {  // a part of `arena`
    uint64_t begin = 0;
    uint32_t size = 0;
  };
  struct VocabEntry {
    Text token;
    int64_t id = 0;    // of a vocabulary that is an object
    double score = 0;  // of a vocabulary that is a list of [token, score]
  };
  struct Merge {
    Text left, right;
  };

  std::string arena;
  std::vector<VocabEntry> vocab;
  bool vocab_has_scores = false;
  std::vector<Merge> merges;
  Json rest;  // the document with an empty vocab and empty merges

  std::string_view text(const Text& t) const { return std::string_view(arena).substr(t.begin, t.size); }
};

TokenizerFile parse_tokenizer_file(std::string_view json);  // throws Error (without the file's name)

}  // namespace braid
