// What follows `is`.
#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "text/jinja/builtins.h"
#include "text/jinja/python_text.h"

namespace braid {
namespace {

using Args = const std::vector<Value>&;

int64_t modulo(Runtime& rt, const Value& v, const Value& divisor) {
  const Value rest = binary(rt, Op::kMod, v, divisor);
  if (!rest.is_number()) return -1;
  return rest.is_float() ? (rest.as_float() == 0 ? 0 : rest.as_float() == 1 ? 1 : -1) : rest.as_int();
}

template <bool (*F)(char32_t), bool (*Other)(char32_t)>
bool all_cased(Runtime& rt, const Value& v, Args) {
  const std::string text = to_text(rt, v);
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (Other(c)) return false;
    any = any || F(c);
  }
  return any;
}

bool same_object(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.is_bool() || a.is_int()) return a.as_int() == b.as_int();
  if (a.is_string()) return a.identity() == b.identity() || (a.text() == b.text() && a.text().size() <= 1);
  return a.is_none() || (a.identity() != nullptr && a.identity() == b.identity());
}

bool is_callable(const Value& v) {
  const Object* o = v.object();
  if (o == nullptr) return v.is_undefined();  // its class has a __call__, which raises
  return dynamic_cast<const Namespace*>(o) == nullptr && dynamic_cast<const Cycler*>(o) == nullptr;
}

bool is_sequence(const Value& v) {
  if (v.is_list()) return !v.is_generator() && v.list_data().type != ListData::Type::kView;
  return v.is_undefined() || v.is_string() || v.is_dict();
}

struct TestEntry {
  std::string_view name;
  size_t n_args;
  bool (*holds)(Runtime& rt, const Value& v, Args args);
};

template <Op kOp>
bool compares(Runtime& rt, const Value& v, Args args) {
  return compare(rt, kOp, v, args[0]);
}

const TestEntry kTests[] = {
    {"defined", 0, [](Runtime&, const Value& v, Args) { return !v.is_undefined(); }},
    {"undefined", 0, [](Runtime&, const Value& v, Args) { return v.is_undefined(); }},
    {"none", 0, [](Runtime&, const Value& v, Args) { return v.is_none(); }},
    {"string", 0, [](Runtime&, const Value& v, Args) { return v.is_string(); }},
    {"mapping", 0, [](Runtime&, const Value& v, Args) { return v.is_dict(); }},
    {"iterable", 0, [](Runtime&, const Value& v, Args) { return is_iterable(v); }},
    {"sequence", 0, [](Runtime&, const Value& v, Args) { return is_sequence(v); }},
    {"number", 0, [](Runtime&, const Value& v, Args) { return v.is_number(); }},
    {"integer", 0, [](Runtime&, const Value& v, Args) { return v.is_int(); }},
    {"float", 0, [](Runtime&, const Value& v, Args) { return v.is_float(); }},
    {"boolean", 0, [](Runtime&, const Value& v, Args) { return v.is_bool(); }},
    {"true", 0, [](Runtime&, const Value& v, Args) { return v.is_bool() && v.as_bool(); }},
    {"false", 0, [](Runtime&, const Value& v, Args) { return v.is_bool() && !v.as_bool(); }},
    {"callable", 0, [](Runtime&, const Value& v, Args) { return is_callable(v); }},
    {"escaped", 0, [](Runtime&, const Value& v, Args) { return v.is_markup(); }},
    {"lower", 0, all_cased<is_lower, is_upper>},
    {"upper", 0, all_cased<is_upper, is_lower>},
    {"odd", 0, [](Runtime& rt, const Value& v, Args) { return modulo(rt, v, Value(2)) == 1; }},
    {"even", 0, [](Runtime& rt, const Value& v, Args) { return modulo(rt, v, Value(2)) == 0; }},
    {"divisibleby", 1, [](Runtime& rt, const Value& v, Args args) { return modulo(rt, v, args[0]) == 0; }},
    {"sameas", 1, [](Runtime&, const Value& v, Args args) { return same_object(v, args[0]); }},
    {"filter", 0, [](Runtime&, const Value& v, Args) { return v.is_string() && find_filter(v.text()) >= 0; }},
    {"test", 0, [](Runtime&, const Value& v, Args) { return v.is_string() && find_test(v.text()) >= 0; }},
    {"in", 1, [](Runtime& rt, const Value& v, Args args) { return contains(rt, args[0], v); }},
    {"==", 1, compares<Op::kEq>},
    {"eq", 1, compares<Op::kEq>},
    {"equalto", 1, compares<Op::kEq>},
    {"!=", 1, compares<Op::kNe>},
    {"ne", 1, compares<Op::kNe>},
    {">", 1, compares<Op::kGt>},
    {"gt", 1, compares<Op::kGt>},
    {"greaterthan", 1, compares<Op::kGt>},
    {">=", 1, compares<Op::kGe>},
    {"ge", 1, compares<Op::kGe>},
    {"<", 1, compares<Op::kLt>},
    {"lt", 1, compares<Op::kLt>},
    {"lessthan", 1, compares<Op::kLt>},
    {"<=", 1, compares<Op::kLe>},
    {"le", 1, compares<Op::kLe>},
};

}  // namespace

int find_test(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTests), std::end(kTests), [&](const auto& t) { return t.name == name; });
  return found == std::end(kTests) ? -1 : static_cast<int>(found - std::begin(kTests));
}

bool apply_test(Runtime& rt, int test, const Value& input, const CallArgs& args) {
  const TestEntry& entry = kTests[test];
  if (args.positional.size() != entry.n_args || !args.named.empty())
    throw Error("the test '{}' takes {} arguments", entry.name, entry.n_args);
  return entry.holds(rt, input, args.positional);
}

}  // namespace braid
