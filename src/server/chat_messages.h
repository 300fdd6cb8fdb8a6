// What the server checks of chat messages and tools before a template sees them: ApiError 400 naming the field.
#pragma once
#include "base/json.h"

namespace braid {

// A list of objects with a role; content a string or a list of text parts (null or absent for assistants only);
// tool calls with a function's name, their arguments within the bounds of json_fields.h when they are text.
void check_messages(const OrderedJson& messages);

// Types, names (letters, digits, _ and -, not starting with a digit or -), no name twice.
void check_tools(const OrderedJson& tools);

}  // namespace braid
