#include "text/post_processor.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/config_reader.h"
#include "text/vocab.h"

namespace braid {

namespace {

int32_t read_id(const ConfigReader& c, const Json& id) {
  if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kMaxTokenId)
    throw c.bad("has a token id that is none");
  return id.get<int32_t>();
}

Surround read_template(const ConfigReader& c) {
  Surround surround;
  bool seen_text = false;
  for (const Json& piece : c.list("single")) {
    if (!piece.is_object()) throw c.bad("has a piece that is not an object");
    if (piece.contains("Sequence")) {
      if (seen_text) throw c.bad("takes the text twice");
      seen_text = true;
    } else if (const auto token = piece.find("SpecialToken"); token != piece.end()) {
      const std::string name = ConfigReader(*token, "post_processor piece", 0).string("id");
      const Json& all = c.required("special_tokens");
      if (!all.is_object() || !all.contains(name)) throw c.bad("uses \"" + name + "\", not one of its special_tokens");
      const ConfigReader special(all[name], "post_processor special token", 0);
      for (const Json& id : special.list("ids"))
        (seen_text ? surround.after : surround.before).push_back(read_id(c, id));
    } else {
      throw c.bad("has a piece that is neither Sequence nor SpecialToken");
    }
  }
  if (!seen_text) throw c.bad("leaves the text out");
  return surround;
}

// BertProcessing and RobertaProcessing: [token, id] before and after.
int32_t read_named_id(const ConfigReader& c, const char* key) {
  const Json& pair = c.list(key);
  if (pair.size() != 2) throw c.bad(std::string("\"") + key + "\" is not a token with its id");
  return read_id(c, pair[1]);
}

Surround build(const Json& config, int depth) {
  if (config.is_null()) return {};
  const ConfigReader c(config, "post_processor", depth);
  const std::string type = c.type();
  if (type == "ByteLevel") return {};  // moves offsets only
  if (type == "TemplateProcessing") return read_template(c);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return {{read_named_id(c, "cls")}, {read_named_id(c, "sep")}};
  if (type == "Sequence") {
    Surround all;
    for (const Json& part : c.list("processors")) {
      const Surround outer = build(part, depth + 1);
      all.before.insert(all.before.begin(), outer.before.begin(), outer.before.end());
      all.after.insert(all.after.end(), outer.after.begin(), outer.after.end());
    }
    return all;
  }
  throw c.unknown_type();
}

}  // namespace

Surround make_post_processor(const Json& config) { return build(config, 0); }

}  // namespace braid
