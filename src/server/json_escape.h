// JSON strings written straight into a reply buffer. A streamed token is one call of this, so it copies runs of
// ordinary bytes instead of building a JSON tree.
#pragma once
#include <string>
#include <string_view>

namespace braid {

// Appends `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD, one per maximal bad
// sequence, so that the reply is always valid JSON.
void append_json_string(std::string& out, std::string_view text);

}  // namespace braid
