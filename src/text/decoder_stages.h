// The single decoders; see decoder.h for how they are put together.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/decoder.h"
#include "text/regex.h"

namespace braid {

std::unique_ptr<DecodeStage> make_join_stage();    // a blank between tokens
std::unique_ptr<DecodeStage> make_gather_stage();  // makes a token that comes in parts whole again
std::unique_ptr<DecodeStage> make_byte_level_stage();
std::unique_ptr<DecodeStage> make_byte_fallback_stage();
std::unique_ptr<DecodeStage> make_fuse_stage();
std::unique_ptr<DecodeStage> make_metaspace_stage(char32_t replacement, bool keeps_first);
std::unique_ptr<DecodeStage> make_replace_stage(std::string character, std::string content);
std::unique_ptr<DecodeStage> make_replace_stage(Regex pattern, std::string content);
std::unique_ptr<DecodeStage> make_strip_stage(char32_t content, size_t start, size_t stop);
std::unique_ptr<DecodeStage> make_wordpiece_stage(std::string prefix, bool cleanup);
std::unique_ptr<DecodeStage> make_suffix_stage(std::string suffix);
std::unique_ptr<DecodeStage> make_ctc_stage(std::string pad, std::string delimiter, bool cleanup);

std::optional<unsigned char> parse_byte_token(std::string_view token);  // of "<0x41>" the byte

bool is_one_character(std::string_view text);

}  // namespace braid
