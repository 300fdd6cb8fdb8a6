// Chat messages between what clients send and what templates take. `braid render` passes messages as they are; only the
// server does this.
#pragma once
#include "base/json.h"

namespace braid {

// Checks roles and contents (ApiError 400 naming messages[i].field) and turns tool-call arguments that are JSON strings
// into objects, as templates expect them.
void normalise_messages(OrderedJson& messages);

// Replaces lists of text parts by their texts, joined by newlines: for templates that cannot take lists.
void join_text_parts(OrderedJson& messages);

// Checks a `tools` list: types, names (letters, digits, _ and -, not starting with a digit or -), no name twice.
void check_tools(const OrderedJson& tools);

}  // namespace braid
