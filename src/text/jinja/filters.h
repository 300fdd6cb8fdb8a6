// The signature that all filters share, and the groups that filters.cpp puts into one table.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "text/jinja/runtime.h"

namespace braid {

struct FilterEntry {
  std::string_view name;
  Value (*apply)(Runtime& rt, const Value& input, const CallArgs& args);
};

std::span<const FilterEntry> text_filters();      // filters_text.cpp
std::span<const FilterEntry> sequence_filters();  // filters_sequence.cpp

// str(input), still markup when the input was (markupsafe's soft_str): `made` comes from it.
inline Value like(Runtime& rt, const Value& input, std::string made) {
  rt.charge(made.size());
  return input.is_markup() ? Value::markup(std::move(made)) : Value(std::move(made));
}

}  // namespace braid
