// What a template may call: filters, tests, methods of str, dict and list, and the environment's functions. Each table
// is looked up once, by the parser, for filters and tests; by name at run time for methods and functions.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/runtime.h"
#include "text/jinja/value.h"

namespace braid {

// -1 when there is none of that name.
int find_filter(std::string_view name);
int find_test(std::string_view name);
Value apply_filter(Runtime& rt, int filter, const Value& input, const CallArgs& args);
bool apply_test(Runtime& rt, int test, const Value& input, const CallArgs& args);

// Whether obj.name is a method in Python; `unsafe` for those that the sandbox hides because they change the object.
enum class MethodKind : uint8_t { kNone, kSafe, kUnsafe };
MethodKind find_method(const Value& receiver, std::string_view name);
Value call_method(Runtime& rt, const Value& receiver, std::string_view name, const CallArgs& args);

bool is_function(std::string_view name);
Value call_function(Runtime& rt, std::string_view name, const CallArgs& args);

}  // namespace braid
