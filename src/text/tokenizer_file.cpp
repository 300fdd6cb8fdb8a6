#include "text/tokenizer_file.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace braid {

namespace {

// nlohmann's SAX events. Inside model.vocab and model.merges they fill the arrays, elsewhere they build a document.
class Reader final : public nlohmann::json_sax<Json> {
 public:
  explicit Reader(TokenizerFile& file) : file_(file) {}

  bool null() override { return value(Json()); }
  bool boolean(bool b) override { return value(Json(b)); }
  bool number_integer(int64_t n) override { return number(Json(n), static_cast<double>(n), n); }
  bool number_unsigned(uint64_t n) override {
    const int64_t id = n > static_cast<uint64_t>(INT64_MAX) ? -1 : static_cast<int64_t>(n);
    return number(Json(n), static_cast<double>(n), id);
  }
  bool number_float(double n, const std::string&) override { return number(Json(n), n, -1); }
  bool binary(binary_t&) override { return true; }  // does not occur in JSON text

  bool string(std::string& s) override {
    if (where_ == Where::kDocument) return value(Json(std::move(s)));
    if (where_ == Where::kMerges) return merge_string(s);
    if (vocab_entry_fields_ != 0 || list_depth_ != 2 || where_ != Where::kVocabList) throw bad_vocab();
    file_.vocab.push_back({.token = keep(s)});
    vocab_entry_fields_ = 1;
    return true;
  }

  bool start_object(size_t) override {
    if (where_ != Where::kDocument) throw where_ == Where::kMerges ? bad_merges() : bad_vocab();
    if (in_model() && key_ == "vocab") {
      begin_vocab(false);
      return true;
    }
    return open(Json::object());
  }
  bool end_object() override {
    if (where_ == Where::kVocabObject) return leave(Json::object());
    return close();
  }

  bool start_array(size_t) override {
    if (where_ == Where::kMerges || where_ == Where::kVocabList) {
      if (++list_depth_ > 2) throw where_ == Where::kMerges ? bad_merges() : bad_vocab();
      vocab_entry_fields_ = 0;
      return true;
    }
    if (where_ == Where::kVocabObject) throw bad_vocab();
    if (in_model() && key_ == "vocab") {
      begin_vocab(true);
      return true;
    }
    if (in_model() && key_ == "merges") {
      file_.merges.clear();
      where_ = Where::kMerges;
      list_depth_ = 1;
      return true;
    }
    return open(Json::array());
  }
  bool end_array() override {
    if (where_ == Where::kDocument) return close();
    if (where_ == Where::kVocabList && list_depth_ == 2 && vocab_entry_fields_ != 2) throw bad_vocab();
    if (where_ == Where::kMerges && list_depth_ == 2 && vocab_entry_fields_ != 2) throw bad_merges();
    if (--list_depth_ == 0) return leave(Json::array());
    return true;
  }

  bool key(std::string& k) override {
    if (where_ == Where::kVocabObject)
      file_.vocab.push_back({.token = keep(k), .id = -1});
    else
      key_ = std::move(k);
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    throw Error("is not valid JSON: {}", e.what());
  }

 private:
  enum class Where { kDocument, kVocabObject, kVocabList, kMerges };

  static Error bad_vocab() { return Error("has a model.vocab that is neither token to id nor [token, score]"); }
  static Error bad_merges() { return Error("has model.merges that are not pairs of tokens"); }

  bool in_model() const { return stack_.size() == 2 && stack_[1] == model_; }

  TokenizerFile::Text keep(std::string_view s) {
    const TokenizerFile::Text t{file_.arena.size(), static_cast<uint32_t>(s.size())};
    file_.arena += s;
    return t;
  }

  void begin_vocab(bool list) {
    file_.vocab.clear();
    file_.vocab_has_scores = list;
    where_ = list ? Where::kVocabList : Where::kVocabObject;
    list_depth_ = 1;
  }

  // Ends one of the big values; an empty one stands for it in the document.
  bool leave(Json empty) {
    where_ = Where::kDocument;
    key_ = empty.is_object() || key_ != "merges" ? "vocab" : "merges";
    return value(std::move(empty));
  }

  bool number(Json n, double score, int64_t id) {
    if (where_ == Where::kDocument) return value(std::move(n));
    if (where_ == Where::kMerges) throw bad_merges();
    if (where_ == Where::kVocabObject) {
      file_.vocab.back().id = id;
      return true;
    }
    if (vocab_entry_fields_ != 1) throw bad_vocab();
    file_.vocab.back().score = score;
    vocab_entry_fields_ = 2;
    return true;
  }

  bool merge_string(std::string_view s) {
    if (list_depth_ == 1) {  // "left right"
      if (s.substr(0, 8) == "#version") return true;
      const size_t blank = s.find(' ');
      if (blank == std::string_view::npos || s.find(' ', blank + 1) != std::string_view::npos)
        throw Error("has the merge \"{}\" that is not two tokens", s);
      file_.merges.push_back({keep(s.substr(0, blank)), keep(s.substr(blank + 1))});
    } else if (vocab_entry_fields_++ == 0) {
      file_.merges.push_back({keep(s), {}});
    } else {
      file_.merges.back().right = keep(s);
    }
    return true;
  }

  Json* put(Json v) {
    if (stack_.empty()) {
      file_.rest = std::move(v);
      return &file_.rest;
    }
    Json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(v));
      return &parent.back();
    }
    Json& slot = parent[key_];
    slot = std::move(v);
    if (stack_.size() == 1 && key_ == "model") model_ = &slot;
    return &slot;
  }
  bool value(Json v) {
    if (where_ != Where::kDocument) throw where_ == Where::kMerges ? bad_merges() : bad_vocab();
    put(std::move(v));
    return true;
  }
  bool open(Json v) {
    stack_.push_back(put(std::move(v)));
    return true;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }

  TokenizerFile& file_;
  Where where_ = Where::kDocument;
  int list_depth_ = 0;          // inside of a list that is read into an array
  int vocab_entry_fields_ = 0;  // read so far of [token, score] or [left, right]
  std::vector<Json*> stack_;    // the open objects and lists of the document
  const Json* model_ = nullptr;
  std::string key_;
};

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view json) {
  TokenizerFile file;
  file.arena.reserve(json.size() / 3);
  Reader reader(file);
  Json::sax_parse(json.begin(), json.end(), &reader);
  if (!file.rest.is_object()) throw Error("is not a JSON object");
  return file;
}

}  // namespace braid
