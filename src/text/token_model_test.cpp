#include "text/token_model.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/bpe.h"
#include "text/byte_trie.h"
#include "text/word_cache.h"

namespace braid {

namespace {

using Ids = std::vector<int32_t>;

Vocab vocab_of(const std::vector<std::string>& tokens) {
  Vocab vocab;
  for (size_t i = 0; i < tokens.size(); ++i) vocab.add(tokens[i], static_cast<int32_t>(i));
  return vocab;
}

Ids encoded(const TokenModel& model, std::string_view word) {
  Ids ids;
  for (size_t begin = 0; begin < word.size();) {
    const size_t end = model.part_end(word, begin);
    model.encode(word.substr(begin, end - begin), ids);
    begin = end;
  }
  return ids;
}

}  // namespace

TEST(Vocab, FindsBothWays) {
  Vocab vocab;
  for (int i = 0; i < 1000; ++i) vocab.add("token" + std::to_string(i), 2 * i);
  EXPECT_EQ(vocab.find("token7"), 14);
  EXPECT_EQ(vocab.find("token"), -1);
  EXPECT_EQ(vocab.token(14), "token7");
  EXPECT_FALSE(vocab.has(15));
  EXPECT_EQ(vocab.token(-1), "");
  vocab.add("token7", 15);
  EXPECT_EQ(vocab.find("token7"), 15);
  EXPECT_EQ(vocab.count(), 1000u);
}

TEST(ByteTrie, GivesAllPrefixes) {
  const ByteTrie trie({{"ab", 1}, {"abc", 2}, {"", 9}, {"b", 3}, {"ab", 4}});
  Ids found;
  trie.prefixes("abcd", [&](size_t, int32_t value) { found.push_back(value); });
  EXPECT_EQ(found, (Ids{4, 2}));
  EXPECT_FALSE(trie.may_start_with('c'));
  EXPECT_TRUE(ByteTrie().empty());
}

TEST(WordCache, KeepsOwnersApartAndRefusesLongOnes) {
  WordCache& cache = WordCache::of_this_thread();
  const uint32_t a = WordCache::new_owner(), b = WordCache::new_owner();
  cache.put(a, "word", Ids{1, 2});
  Ids ids{0};
  EXPECT_TRUE(cache.find(a, "word", ids));
  EXPECT_EQ(ids, (Ids{0, 1, 2}));
  EXPECT_FALSE(cache.find(b, "word", ids));
  cache.put(a, "many", Ids(8, 1));
  EXPECT_FALSE(cache.find(a, "many", ids));
  EXPECT_FALSE(WordCache::takes(std::string(31, 'a')));
}

TEST(Bpe, UnknownCharacters) {
  const Vocab vocab = vocab_of({"<unk>", "a", "b", "ab", "<0xC3>", "<0xA9>"});
  const Merges merges = {{"a", "b"}};
  EXPECT_EQ(encoded(Bpe({{"unk_token", "<unk>"}}, vocab, merges, false), "abxxa"), (Ids{3, 0, 0, 1}));
  EXPECT_EQ(encoded(Bpe({{"unk_token", "<unk>"}, {"fuse_unk", true}}, vocab, merges, false), "abxxa"), (Ids{3, 0, 1}));
  EXPECT_EQ(encoded(Bpe(Json::object(), vocab, merges, false), "axb"), Ids{3});  // dropped, so its neighbours meet
  const Json bytes = {{"unk_token", "<unk>"}, {"byte_fallback", true}};
  EXPECT_EQ(encoded(Bpe(bytes, vocab, merges, false), "aéxb"), (Ids{1, 4, 5, 0, 2}));
}

TEST(Bpe, AffixesAndWholeWords) {
  const Vocab vocab = vocab_of({"a", "b", "b</w>", "ab</w>", "##b", "ab", "abab"});
  EXPECT_EQ(encoded(Bpe({{"end_of_word_suffix", "</w>"}}, vocab, {{"a", "b</w>"}}, false), "ab"), Ids{3});
  EXPECT_EQ(encoded(Bpe({{"continuing_subword_prefix", "##"}}, vocab, {{"a", "##b"}}, false), "ab"), Ids{5});
  EXPECT_EQ(encoded(Bpe(Json::object(), vocab, {{"a", "b"}}, false), "abab"), (Ids{5, 5}));
  EXPECT_EQ(encoded(Bpe({{"ignore_merges", true}}, vocab, {{"a", "b"}}, false), "abab"), Ids{6});
  EXPECT_FALSE(Bpe::takes_raw_bytes({{"end_of_word_suffix", "</w>"}}));
  EXPECT_THROW(Bpe(Json::object(), vocab, {{"b", "a"}}, false), Error);
}

TEST(Bpe, PartsAtBlanksOnlyIfNoMergeCrossesThem) {
  const Vocab vocab = vocab_of({"▁", "a", "▁a", "▁▁", "a▁"});
  const Bpe apart(Json::object(), vocab, {{"▁", "▁"}, {"▁", "a"}}, false);
  EXPECT_EQ(apart.part_end("a▁▁a▁", 0), 1u);
  EXPECT_EQ(apart.part_end("a▁▁a▁", 1), 8u);
  const Bpe crossing(Json::object(), vocab, {{"a", "▁"}}, false);
  EXPECT_EQ(crossing.part_end("a▁▁a▁", 0), 11u);
  EXPECT_EQ(encoded(crossing, "a▁a"), (Ids{4, 1}));
}

// The heap and the scan must agree with merging by the book: always the pair of lowest rank, the leftmost first.
RC_GTEST_PROP(BpeProperty, MergesByTheBook, ()) {
  std::vector<std::string> tokens = {"a", "b", "c"};
  std::vector<std::pair<size_t, size_t>> pairs;
  for (int i = 0; i < 12; ++i) {
    const auto pair =
        *rc::gen::pair(rc::gen::inRange<size_t>(0, tokens.size()), rc::gen::inRange<size_t>(0, tokens.size()));
    const std::string joined = tokens[pair.first] + tokens[pair.second];
    if (joined.size() > 12 || std::find(tokens.begin(), tokens.end(), joined) != tokens.end()) continue;
    pairs.push_back(pair);
    tokens.push_back(joined);
  }
  Merges merges;
  for (const auto& [l, r] : pairs) merges.emplace_back(tokens[l], tokens[r]);
  const Vocab vocab = vocab_of(tokens);
  const auto word = *rc::gen::resize(200, rc::gen::container<std::string>(rc::gen::elementOf(std::string("abc"))));
  std::vector<std::string> symbols;
  for (const char c : word) symbols.emplace_back(1, c);
  for (bool merged = true; merged;) {
    merged = false;
    for (size_t m = 0; m < merges.size() && !merged; ++m)
      for (size_t i = 0; i + 1 < symbols.size() && !merged; ++i)
        if (symbols[i] == merges[m].first && symbols[i + 1] == merges[m].second) {
          symbols[i] += symbols[i + 1];
          symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(i) + 1);
          merged = true;
        }
  }
  Ids expected;
  for (const std::string& s : symbols) expected.push_back(vocab.find(s));
  RC_ASSERT(encoded(Bpe(Json::object(), vocab, merges, true), word) == expected);
}

TEST(WordPiece, LongestFirstOrUnknown) {
  const Vocab vocab = vocab_of({"[UNK]", "un", "##aff", "##able", "una", "é"});
  const auto model = make_wordpiece(
      {{"unk_token", "[UNK]"}, {"continuing_subword_prefix", "##"}, {"max_input_chars_per_word", 9}}, vocab);
  EXPECT_EQ(encoded(*model, "unaffable"), Ids{0});  // "una" is taken, then nothing fits
  EXPECT_EQ(encoded(*model, "unable"), Ids{0});
  EXPECT_EQ(encoded(*model, "una"), Ids{4});
  EXPECT_EQ(encoded(*model, "unununununun"), Ids{0});
  EXPECT_EQ(encoded(*model, "é"), Ids{5});
  EXPECT_THROW(make_wordpiece({{"unk_token", "?"}, {"continuing_subword_prefix", "##"}}, vocab), Error);
}

TEST(Unigram, BestPathAndFusedUnknowns) {
  const Vocab vocab = vocab_of({"<unk>", "a", "b", "ab", "<0xC3>", "<0xA9>"});
  const std::vector<double> scores = {0, -1, -1, -1.5, -9, -9};
  const auto model = make_unigram({{"unk_id", 0}}, vocab, scores);
  EXPECT_EQ(encoded(*model, "abxyb"), (Ids{3, 0, 2}));
  EXPECT_EQ(encoded(*model, "xy"), Ids{0});
  const auto bytes = make_unigram({{"unk_id", 0}, {"byte_fallback", true}}, vocab, scores);
  EXPECT_EQ(encoded(*bytes, "aé"), (Ids{1, 4, 5}));
  EXPECT_EQ(encoded(*bytes, "aéx"), (Ids{1, 0}));  // one of its bytes has no token
  EXPECT_THROW(make_unigram({{"unk_id", nullptr}}, vocab, scores), Error);
}

}  // namespace braid
