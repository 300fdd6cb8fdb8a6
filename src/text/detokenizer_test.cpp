#include "text/detokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "text/test_data.h"
#include "text/utf8.h"

namespace braid {

namespace {

// Ids of a golden text or at random, mixed: what models give, and what they should not.
rc::Gen<std::vector<int32_t>> ids_for(const GoldenTokenizer& g) {
  const int n = g.tokenizer->vocab_size() + 5;
  const auto random = rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(0, n));
  const auto golden = rc::gen::map(rc::gen::inRange<size_t>(0, g.cases["encode"].size()),
                                   [&g](size_t i) { return g.cases["encode"][i]["ids"].get<std::vector<int32_t>>(); });
  return rc::gen::map(rc::gen::pair(random, golden), [](std::pair<std::vector<int32_t>, std::vector<int32_t>> p) {
    p.second.insert(p.second.end(), p.first.begin(), p.first.end());
    return p.second;
  });
}

const GoldenTokenizer& any_tokenizer() {
  return golden_tokenizers()[*rc::gen::inRange<size_t>(0, golden_tokenizers().size())];
}

// The text up to the stop string that is complete first, by trying every prefix.
std::string cut_by_hand(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops)
      if (!stop.empty() && end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0)
        longest = std::max(longest, stop.size());
    if (longest > 0) return text.substr(0, include ? end : end - longest);
  }
  return text;
}

}  // namespace

RC_GTEST_PROP(Detokenizer, DeltasJoinToTheDecodedText, ()) {
  const GoldenTokenizer& g = any_tokenizer();
  const auto ids = *ids_for(g);
  const bool skip = *rc::gen::arbitrary<bool>();
  Detokenizer d(g.tokenizer, {.skip_special_tokens = skip});
  std::string all;
  for (const int32_t id : ids) {
    const std::string delta = d.push(id);
    RC_ASSERT(is_valid_utf8(delta));
    all += delta;
  }
  all += d.flush();
  RC_ASSERT(all == g.tokenizer->decode(ids, skip));
}

RC_GTEST_PROP(Detokenizer, StopsWhereTheTextFirstHoldsAStopString, ()) {
  const GoldenTokenizer& g = any_tokenizer();
  const auto ids = *ids_for(g);
  const bool include = *rc::gen::arbitrary<bool>();
  const std::string text = g.tokenizer->decode(ids, true);
  std::vector<std::string> stops = *rc::gen::container<std::vector<std::string>>(
      rc::gen::elementOf(std::vector<std::string>{"e ", "the", "th", "\n", "", "aab", "aa", "ти", "。"}));
  if (text.size() > 4) {  // a piece of the text itself
    size_t begin = *rc::gen::inRange<size_t>(0, text.size() - 3);
    while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
    size_t end = begin + 3;
    while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
    stops.push_back(text.substr(begin, end - begin));
  }
  Detokenizer d(g.tokenizer, {.include_stop = include, .stop = stops});
  std::string all;
  for (size_t i = 0; i < ids.size();) {  // several tokens a step, as speculation gives them
    const size_t n = std::min<size_t>(*rc::gen::inRange<size_t>(1, 4), ids.size() - i);
    all += d.push(std::span(ids).subspan(i, n));
    i += n;
  }
  all += d.flush();
  const std::string expected = cut_by_hand(text, stops, include);
  RC_ASSERT(all == expected);
  if (d.matched_stop()) RC_ASSERT(!stops[*d.matched_stop()].empty());
}

TEST(DetokenizerSteps, HoldsIncompleteCharactersAndPossibleStops) {
  const auto t = Tokenizer::load(BRAID_SOURCE_DIR "/models/demo");
  const std::string text = "日 stop STO STOP more";
  const auto ids = t->encode(text, false);
  Detokenizer d(t, {.stop = {"STOP"}});
  std::string all;
  for (const int32_t id : ids) {
    all += d.push(id);
    EXPECT_EQ(all.find("STOP"), std::string::npos);
  }
  EXPECT_EQ(all, "日 stop STO ");
  EXPECT_EQ(d.matched_stop(), 0u);
  EXPECT_EQ(d.push(ids[0]), "");
  EXPECT_EQ(d.flush(), "");
}

TEST(DetokenizerSteps, FlushGivesWhatWaited) {
  const auto t = Tokenizer::load(BRAID_SOURCE_DIR "/models/demo");
  const auto ids = t->encode("日", false);
  ASSERT_GT(ids.size(), 1u);
  Detokenizer d(t, {});
  EXPECT_EQ(d.push(ids[0]), "");
  EXPECT_EQ(d.flush(), "\uFFFD");
  Detokenizer stop(t, {.stop = {"xyz"}});
  EXPECT_EQ(stop.push(t->encode("axy", false)), "a");
  EXPECT_EQ(stop.flush(), "xy");
  EXPECT_FALSE(stop.matched_stop());
}

}  // namespace braid
