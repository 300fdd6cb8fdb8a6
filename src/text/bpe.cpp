#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "text/byte_alphabet.h"
#include "text/config_reader.h"
#include "text/utf8.h"

namespace braid {

namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, SentencePiece's blank

// Whether a blank stands behind something else than a blank: a token across the start of a word.
bool crosses_word_start(std::string_view token) {
  for (size_t at = token.find(kSpaceMark); at != std::string_view::npos; at = token.find(kSpaceMark, at + 1)) {
    const bool behind_mark =
        at >= kSpaceMark.size() && token.substr(at - kSpaceMark.size(), kSpaceMark.size()) == kSpaceMark;
    if (at > 0 && !behind_mark) return true;
  }
  return false;
}

}  // namespace

bool Bpe::takes_raw_bytes(const Json& config) {
  const ConfigReader c(config, "model", 0);
  return c.string_or("continuing_subword_prefix", "").empty() && c.string_or("end_of_word_suffix", "").empty();
}

Bpe::Bpe(const Json& config, const Vocab& vocab, const Merges& merges, bool raw_bytes)
    : vocab_(vocab), raw_bytes_(raw_bytes) {
  const ConfigReader c(config, "model", 0);
  prefix_ = c.string_or("continuing_subword_prefix", "");
  suffix_ = c.string_or("end_of_word_suffix", "");
  fuse_unknown_ = c.boolean_or("fuse_unk", false);
  ignore_merges_ = c.boolean_or("ignore_merges", false);
  if (c.boolean_or("byte_fallback", false)) byte_ids_ = byte_token_ids(vocab);
  const std::string unknown = c.string_or("unk_token", "");
  if (!unknown.empty()) unknown_ = vocab.find(unknown);
  if (const auto dropout = config.find("dropout"); dropout != config.end() && dropout->is_number() && *dropout != 0)
    log_warn("the tokenizer's BPE dropout is for training and left out");

  for (int b = 0; b < 256; ++b) {
    std::string symbol;
    append_utf8(symbol, raw_bytes ? byte_to_alphabet(static_cast<unsigned char>(b)) : static_cast<char32_t>(b));
    first_ids_[b] = raw_bytes || b < 0x80 ? vocab.find(symbol) : -1;
  }
  if (raw_bytes && ignore_merges_) {
    raw_vocab_.reserve(vocab.count());
    for (size_t id = 0; id < vocab.id_limit(); ++id)
      if (const auto bytes = bytes_of_alphabet(vocab.token(static_cast<int32_t>(id))); bytes && !bytes->empty())
        raw_vocab_.add(*bytes, static_cast<int32_t>(id));
  }
  parts_at_space_ = !raw_bytes && !ignore_merges_ && prefix_.empty() && suffix_.empty() && vocab.find(kSpaceMark) >= 0;
  add_merges(merges);
}

void Bpe::add_merges(const Merges& merges) {
  table_.resize(std::bit_ceil(std::max<size_t>(merges.size() * 2, 16)));
  const auto required = [&](std::string_view token) {
    const int32_t id = vocab_.find(token);
    if (id < 0) throw Error("model: a merge makes or takes \"{}\", which is not in the vocabulary", token);
    return id;
  };
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const uint64_t pair = pair_of(required(left), required(right));
    if (right.size() < prefix_.size())
      throw Error("model: the merge of \"{}\" and \"{}\" lacks the prefix", left, right);
    joined = left;
    joined += right.substr(prefix_.size());
    const int32_t id = required(joined);
    if (parts_at_space_ && crosses_word_start(joined)) parts_at_space_ = false;
    size_t slot = slot_hash(pair) & (table_.size() - 1);
    while (table_[slot].pair != kNoPair && table_[slot].pair != pair) slot = (slot + 1) & (table_.size() - 1);
    table_[slot] = {pair, static_cast<uint32_t>(rank), id};
  }
}

const Bpe::Merge& Bpe::find_merge(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  size_t slot = slot_hash(pair) & (table_.size() - 1);
  while (table_[slot].pair != pair && table_[slot].pair != kNoPair) slot = (slot + 1) & (table_.size() - 1);
  return table_[slot];
}

size_t Bpe::part_end(std::string_view word, size_t from) const {
  if (!parts_at_space_) return word.size();
  // No merge crosses from something else to a blank, so each run of blanks starts a part of its own.
  size_t at = from;
  while (word.substr(at, kSpaceMark.size()) == kSpaceMark) at += kSpaceMark.size();
  return std::min(word.find(kSpaceMark, at), word.size());
}

// The symbols of a word before any merge.
std::vector<int32_t> Bpe::symbols_of(std::string_view word) const {
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  bool unknown_waits = false;  // an unknown character is added once the next known one is seen
  std::string symbol;
  for (size_t pos = 0; pos < word.size();) {
    const auto first = static_cast<unsigned char>(word[pos]);
    const size_t begin = pos;
    pos += raw_bytes_ ? 1 : utf8_length(word[pos]);
    const bool plain =
        (raw_bytes_ || first < 0x80) && (prefix_.empty() || begin == 0) && (suffix_.empty() || pos < word.size());
    int32_t id = plain ? first_ids_[first] : -1;
    if (id < 0) {
      symbol = begin > 0 ? prefix_ : "";
      if (raw_bytes_)
        append_as_alphabet(symbol, word.substr(begin, 1));
      else
        symbol += word.substr(begin, pos - begin);
      if (pos == word.size()) symbol += suffix_;
      id = plain ? -1 : vocab_.find(symbol);
    }
    if (id >= 0) {
      if (unknown_waits) symbols.push_back(unknown_);
      unknown_waits = false;
      symbols.push_back(id);
      continue;
    }
    const auto byte_id = [&](char b) { return byte_ids_[static_cast<unsigned char>(b)]; };
    if (!byte_ids_.empty() && std::all_of(symbol.begin(), symbol.end(), [&](char b) { return byte_id(b) >= 0; })) {
      for (const char b : symbol) symbols.push_back(byte_id(b));
    } else if (unknown_ >= 0) {
      if (unknown_waits && !fuse_unknown_) symbols.push_back(unknown_);
      unknown_waits = true;
    }
  }
  if (unknown_waits) symbols.push_back(unknown_);
  return symbols;
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    const int32_t id = raw_bytes_ ? raw_vocab_.find(word) : vocab_.find(word);
    if (id >= 0) return ids.push_back(id);
  }
  std::vector<int32_t> symbols = symbols_of(word);
  if (symbols.size() <= 64)
    merge_short(symbols);
  else
    merge_long(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

// Scans for the best pair each time: quadratic, but without any bookkeeping.
void Bpe::merge_short(std::vector<int32_t>& symbols) const {
  uint32_t ranks[64];
  int32_t results[64];
  size_t n = symbols.size();
  const auto look_up = [&](size_t i) {
    const Merge& merge = find_merge(symbols[i], symbols[i + 1]);
    ranks[i] = merge.rank;
    results[i] = merge.id;
  };
  for (size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    const size_t best = static_cast<size_t>(std::min_element(ranks, ranks + n - 1) - ranks);
    if (ranks[best] == kNoRank) break;
    symbols[best] = results[best];
    std::copy(symbols.begin() + static_cast<ptrdiff_t>(best) + 2, symbols.begin() + static_cast<ptrdiff_t>(n),
              symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    std::copy(ranks + best + 1, ranks + n - 1, ranks + best);
    std::copy(results + best + 1, results + n - 1, results + best);
    --n;
    if (best + 1 < n) look_up(best);
    if (best > 0) look_up(best - 1);
  }
  symbols.resize(n);
}

// A heap of candidate pairs over a linked list: n log n, for words that are whole texts.
void Bpe::merge_long(std::vector<int32_t>& symbols) const {
  struct Candidate {
    uint32_t rank, position;
    int32_t id;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  constexpr int32_t kGone = -2;
  const auto n = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> previous(n), next(n);
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
  }
  std::vector<Candidate> heap;
  heap.reserve(n);
  const auto candidate_at = [&](uint32_t i) {
    const Merge& merge = find_merge(symbols[i], symbols[next[i]]);
    return Candidate{merge.rank, i, merge.id};
  };
  for (uint32_t i = 0; i + 1 < n; ++i)
    if (const Candidate c = candidate_at(i); c.rank != kNoRank) heap.push_back(c);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](uint32_t i) {
    const Candidate c = candidate_at(i);
    if (c.rank == kNoRank) return;
    heap.push_back(c);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Candidate top = heap.back();
    heap.pop_back();
    const uint32_t left = top.position;
    if (symbols[left] == kGone || next[left] == n) continue;
    const uint32_t right = next[left];
    if (find_merge(symbols[left], symbols[right]).id != top.id) continue;  // the pair it was for is merged away
    symbols[left] = top.id;
    symbols[right] = kGone;
    next[left] = next[right];
    if (next[left] != n) previous[next[left]] = left;
    if (left != 0) push(previous[left]);
    if (next[left] != n) push(left);
  }
  std::erase(symbols, kGone);
}

}  // namespace braid
