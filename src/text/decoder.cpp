#include "text/decoder.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/config_reader.h"
#include "text/decoder_stages.h"

namespace braid {

void DecodeStream::run(size_t stage, const Fragment& token, std::string& out) {
  if (stage == stages_.size()) {
    out += token.text;
    return;
  }
  stages_[stage]->push(token, [&](const Fragment& f) { run(stage + 1, f, out); });
}

void DecodeStream::push(std::string_view token, std::string& out) { run(0, {token}, out); }

void DecodeStream::flush(std::string& out) {
  for (size_t i = 0; i < stages_.size(); ++i) stages_[i]->flush([&](const Fragment& f) { run(i + 1, f, out); });
}

Decoder::Decoder(const Json& config) {
  if (config.is_null())
    add_stage(make_join_stage(), true, false);
  else
    add(config, 0);
  // Each stage is a level of the stack while a token passes through.
  if (stages_.size() > 64) throw Error("decoder has {} steps; at most 64 are taken", stages_.size());
}

DecodeStream Decoder::stream() const {
  DecodeStream s;
  s.stages_.reserve(stages_.size());
  for (const auto& stage : stages_) s.stages_.push_back(stage->fresh());
  return s;
}

void Decoder::add_stage(std::unique_ptr<DecodeStage> stage, bool takes_parts, bool fuses) {
  if (fused_ && !takes_parts) {
    stages_.push_back(make_gather_stage());
    fused_ = false;
  }
  fused_ |= fuses;
  stages_.push_back(std::move(stage));
}

void Decoder::add(const Json& config, int depth) {
  const ConfigReader c(config, "decoder", depth);
  const std::string type = c.type();
  if (type == "Sequence") {
    for (const Json& part : c.list("decoders")) add(part, depth + 1);
  } else if (type == "ByteLevel") {
    spells_bytes_ |= stages_.empty();
    add_stage(make_byte_level_stage(), false, true);
  } else if (type == "ByteFallback") {
    has_byte_tokens_ = true;
    add_stage(make_byte_fallback_stage(), false, false);
  } else if (type == "Fuse") {
    add_stage(make_fuse_stage(), true, true);
  } else if (type == "Metaspace") {
    const bool keeps_first =
        c.string_or("prepend_scheme", "always") == "never" || !c.boolean_or("add_prefix_space", true);
    add_stage(make_metaspace_stage(c.character("replacement"), keeps_first), true, false);
  } else if (type == "Replace") {
    const std::string content = c.string("content");
    const Json& pattern = c.required("pattern");
    std::string from;
    if (pattern.is_object() && pattern.contains("String") && pattern["String"].is_string()) from = pattern["String"];
    if (is_one_character(from))
      add_stage(make_replace_stage(from, content), true, false);
    else
      add_stage(make_replace_stage(c.pattern("pattern"), content), false, false);
  } else if (type == "Strip") {
    const size_t stop = c.count_or("stop", 0);
    add_stage(make_strip_stage(c.character("content"), c.count_or("start", 0), stop), stop == 0, false);
  } else if (type == "WordPiece") {
    add_stage(make_wordpiece_stage(c.string("prefix"), c.boolean("cleanup")), false, false);
  } else if (type == "BPEDecoder") {
    add_stage(make_suffix_stage(c.string("suffix")), false, false);
  } else if (type == "CTC") {
    add_stage(make_ctc_stage(c.string("pad_token"), c.string("word_delimiter_token"), c.boolean("cleanup")), false,
              false);
  } else {
    throw c.unknown_type();
  }
}

}  // namespace braid
