// Builds a Tokenizer from its files.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "base/log.h"
#include "text/bpe.h"
#include "text/config_reader.h"
#include "text/tokenizer_parts.h"

namespace braid {

namespace fs = std::filesystem;

class TokenizerBuilder {
 public:
  static std::shared_ptr<Tokenizer> build(std::string_view json) {
    const TokenizerFile file = parse_tokenizer_file(json);
    const auto part = [&](const char* key) { return file.rest.value(key, Json()); };
    const std::shared_ptr<Tokenizer> t(new Tokenizer(part("decoder")));
    t->parts_ = std::make_unique<Tokenizer::Parts>(part("pre_tokenizer"));
    Tokenizer::Parts& parts = *t->parts_;
    parts.normalizer = make_normalizer(part("normalizer"));
    parts.surround = make_post_processor(part("post_processor"));
    fill_vocab(file, parts.vocab);
    parts.model = make_model(part("model"), file, parts);
    add_tokens(part("added_tokens"), *t);
    for (const auto* ids : {&parts.surround.before, &parts.surround.after})
      for (const int32_t id : *ids) t->n_ids_ = std::max<size_t>(t->n_ids_, static_cast<size_t>(id) + 1);
    return t;
  }

  static void apply_config(const Json& config, Tokenizer& t) {
    if (!config.is_object()) throw Error("is not a JSON object");
    t.bos_ = named_token(config, "bos_token", t);
    t.eos_ = named_token(config, "eos_token", t);
    t.pad_ = named_token(config, "pad_token", t);
    t.unk_ = named_token(config, "unk_token", t);
    const auto chat = config.find("chat_template");
    if (chat == config.end() || chat->is_null()) return;
    if (chat->is_string()) {
      t.chat_templates_.standard = *chat;
      return;
    }
    if (!chat->is_array()) throw Error("has a chat_template that is neither text nor a list");
    for (const Json& entry : *chat) {
      const ConfigReader c(entry, "chat_template", 0);
      if (c.string("name") == "default")
        t.chat_templates_.standard = c.string("template");
      else
        t.chat_templates_.named.emplace_back(c.string("name"), c.string("template"));
    }
  }

  static void set_template(std::string text, Tokenizer& t) { t.chat_templates_.standard = std::move(text); }

 private:
  static void fill_vocab(const TokenizerFile& file, Vocab& vocab) {
    vocab.reserve(file.vocab.size());
    int64_t next = 0;
    for (const auto& entry : file.vocab) {
      const int64_t id = file.vocab_has_scores ? next++ : entry.id;
      if (id < 0 || id > kMaxTokenId)
        throw Error("gives the token \"{}\" an id that is not between 0 and {}", file.text(entry.token), kMaxTokenId);
      vocab.add(file.text(entry.token), static_cast<int32_t>(id));
    }
  }

  static std::unique_ptr<const TokenModel> make_model(const Json& config, const TokenizerFile& file,
                                                      Tokenizer::Parts& parts) {
    const ConfigReader c(config, "model", 0);
    // Old files have no type; what fields there are tells the models apart, as the library does it.
    const std::string guess = config.contains("merges") ? "BPE" : config.contains("unk_id") ? "Unigram" : "WordPiece";
    const std::string type = c.string_or("type", guess);
    if (file.vocab.empty() && !config.contains("vocab")) throw c.bad("lacks \"vocab\"");
    if (file.vocab_has_scores != (type == "Unigram")) throw c.bad("has a vocabulary of another kind of model");
    if (type == "WordPiece") return make_wordpiece(config, parts.vocab);
    if (type == "WordLevel") return make_word_level(config, parts.vocab);
    if (type == "Unigram") {
      std::vector<double> scores;
      for (const auto& entry : file.vocab) scores.push_back(entry.score);
      return make_unigram(config, parts.vocab, std::move(scores));
    }
    if (type != "BPE") throw c.unknown_type();
    Merges merges;
    merges.reserve(file.merges.size());
    for (const auto& m : file.merges) merges.emplace_back(file.text(m.left), file.text(m.right));
    const bool raw_bytes = Bpe::takes_raw_bytes(config) && parts.pre_tokenizer.drop_last_byte_spelling();
    return std::make_unique<Bpe>(config, parts.vocab, merges, raw_bytes);
  }

  static AddedToken read_added(const Json& entry) {
    const ConfigReader c(entry, "added token", 0);
    AddedToken token;
    token.content = c.string("content");
    token.special = c.boolean("special");
    token.normalized = c.boolean("normalized");
    token.single_word = c.boolean("single_word");
    token.lstrip = c.boolean("lstrip");
    token.rstrip = c.boolean("rstrip");
    const Json& id = c.required("id");
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kMaxTokenId)
      throw c.bad("has an id that is not between 0 and " + std::to_string(kMaxTokenId));
    token.id = id.get<int32_t>();
    return token;
  }

  // The ids are the library's, not the file's: a token that the vocabulary has keeps its id there, the others are
  // numbered from the size of the vocabulary on.
  static void add_tokens(const Json& list, Tokenizer& t) {
    Tokenizer::Parts& parts = *t.parts_;
    t.n_ids_ = parts.vocab.id_limit();
    if (list.is_null()) return;
    if (!list.is_array()) throw Error("has added_tokens that are not a list");
    auto next_id = static_cast<int32_t>(parts.vocab.count());
    std::vector<AddedToken> tokens;
    std::unordered_map<int32_t, size_t> by_id;
    for (const Json& entry : list) {
      AddedToken token = read_added(entry);
      if (token.content.empty()) continue;
      const auto known = t.token_to_id(token.content);
      const int32_t declared = token.id;
      token.id = known ? *known : next_id++;
      if (token.id > kMaxTokenId) throw Error("has more than {} tokens", kMaxTokenId);
      if (token.id != declared)
        log_warn("the tokenizer's added token \"{}\" has the id {}, not {} as its file says", token.content, token.id,
                 declared);
      parts.added.add(token.content, token.id);
      if (const auto [at, is_new] = by_id.emplace(token.id, tokens.size()); !is_new)
        tokens[at->second] = std::move(token);
      else
        tokens.push_back(std::move(token));
    }
    index_tokens(std::move(tokens), t);
  }

  static void index_tokens(std::vector<AddedToken> tokens, Tokenizer& t) {
    Tokenizer::Parts& parts = *t.parts_;
    std::vector<AddedToken> raw, normalized;
    std::vector<std::string> raw_patterns, normalized_patterns;
    std::unordered_set<std::string> special;
    for (AddedToken& token : tokens) {
      std::string pattern = token.content;
      if (token.normalized && parts.normalizer) {
        NormalText text{token.content, true, 0};
        parts.normalizer->normalize(text);
        pattern = std::move(text.text);
      }
      if (token.special) special.insert(token.content);
      parts.added_spelling[token.id] = pattern;
      t.n_ids_ = std::max(t.n_ids_, static_cast<size_t>(token.id) + 1);
      (token.normalized ? normalized_patterns : raw_patterns).push_back(std::move(pattern));
      (token.normalized ? normalized : raw).push_back(std::move(token));
    }
    for (const auto& [id, spelling] : parts.added_spelling)
      if (special.count(spelling)) t.special_.add(id);
    parts.raw_matcher = AddedTokenMatcher(std::move(raw), raw_patterns);
    parts.normalized_matcher = AddedTokenMatcher(std::move(normalized), normalized_patterns);
  }

  static std::optional<NamedToken> named_token(const Json& config, const char* key, const Tokenizer& t) {
    const auto value = config.find(key);
    if (value == config.end() || value->is_null()) return std::nullopt;
    NamedToken token;
    if (value->is_string())
      token.content = *value;
    else
      token.content = ConfigReader(*value, key, 0).string("content");
    token.id = t.token_to_id(token.content);
    return token;
  }
};

std::shared_ptr<const Tokenizer> Tokenizer::parse(std::string_view tokenizer_json, std::string_view config_json) {
  const auto t = TokenizerBuilder::build(tokenizer_json);
  if (config_json.empty()) return t;
  try {
    TokenizerBuilder::apply_config(Json::parse(config_json), *t);
  } catch (const Json::parse_error& e) {
    throw Error("the tokenizer's config is not valid JSON: {}", e.what());
  }
  return t;
}

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::string& folder_or_file) {
  const fs::path given(folder_or_file);
  const fs::path file = fs::is_directory(given) ? given / "tokenizer.json" : given;
  const fs::path config = file.parent_path() / "tokenizer_config.json";
  const fs::path chat_template = file.parent_path() / "chat_template.jinja";
  std::shared_ptr<Tokenizer> t;
  try {
    t = TokenizerBuilder::build(read_text_file(file.string()));
  } catch (const Error& e) {
    throw Error("{}: {}", file.string(), e.what());
  }
  if (fs::exists(config)) {
    const Json json = read_json_file(config.string());
    try {
      TokenizerBuilder::apply_config(json, *t);
    } catch (const Error& e) {
      throw Error("{}: {}", config.string(), e.what());
    }
  }
  if (fs::exists(chat_template)) TokenizerBuilder::set_template(read_text_file(chat_template.string()), *t);
  return t;
}

}  // namespace braid
