// Python's operators on template values: text, truth, equality, order, arithmetic.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "text/jinja/python_text.h"
#include "text/jinja/runtime.h"

namespace braid {
namespace {

constexpr int kMaxRepr = kMaxValueDepth + 10;  // a namespace may contain itself

void append_repr(Runtime& rt, std::string& out, const Value& value, int level);

void append_items(Runtime& rt, std::string& out, const std::vector<Value>& items, int level) {
  bool first = true;
  for (const Value& item : items) {
    if (!first) out += ", ";
    first = false;
    append_repr(rt, out, item, level + 1);
  }
}

template <typename Pairs>
void append_pairs(Runtime& rt, std::string& out, const Pairs& pairs, int level) {
  out += '{';
  bool first = true;
  for (const auto& [key, item] : pairs) {
    if (!first) out += ", ";
    first = false;
    append_repr(rt, out, Value(key), level + 1);
    out += ": ";
    append_repr(rt, out, item, level + 1);
  }
  out += '}';
}

void append_list_repr(Runtime& rt, std::string& out, const ListData& list, int level) {
  switch (list.type) {
    case ListData::Type::kRange:
      out += list.label;
      return;
    case ListData::Type::kGenerator:
      out += "<generator object>";
      return;
    case ListData::Type::kTuple:
      out += '(';
      append_items(rt, out, list.items, level);
      out += list.items.size() == 1 ? ",)" : ")";
      return;
    case ListData::Type::kView:
      out += list.label + "([";
      append_items(rt, out, list.items, level);
      out += "])";
      return;
    case ListData::Type::kList:
      out += '[';
      append_items(rt, out, list.items, level);
      out += ']';
  }
}

void append_object_repr(Runtime& rt, std::string& out, Object* object, int level) {
  if (const auto* space = dynamic_cast<const Namespace*>(object)) {
    out += "<Namespace ";
    append_pairs(rt, out, space->fields, level);
    out += '>';
  } else if (const auto* macro = dynamic_cast<const Macro*>(object)) {
    out += fmt::format("<Macro {}>", string_repr(macro->code->name));
  } else if (const auto* loop = dynamic_cast<const Loop*>(object)) {
    out += fmt::format("<LoopContext {}/{}>", loop->index0 + 1, loop->items.size());
  } else {
    out += fmt::format("<{}>", object->type_name());
  }
}

void append_repr(Runtime& rt, std::string& out, const Value& value, int level) {
  rt.step();
  if (level > kMaxRepr) throw Error("a value contains itself");
  if (out.size() > rt.limits.output_bytes) rt.charge(out.size());
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      out += "Undefined";
      return;
    case Value::Kind::kNone:
      out += "None";
      return;
    case Value::Kind::kBool:
      out += value.as_bool() ? "True" : "False";
      return;
    case Value::Kind::kInt:
      out += std::to_string(value.as_int());
      return;
    case Value::Kind::kFloat:
      out += float_repr(value.as_float());
      return;
    case Value::Kind::kString:
      out += value.is_markup() ? fmt::format("Markup({})", string_repr(value.text())) : string_repr(value.text());
      return;
    case Value::Kind::kList:
      append_list_repr(rt, out, value.list_data(), level);
      return;
    case Value::Kind::kDict:
      append_pairs(rt, out, value.dict_data().items, level);
      return;
    case Value::Kind::kObject:
      append_object_repr(rt, out, value.object(), level);
      return;
  }
}

[[noreturn]] void fail_operands(std::string_view op, const Value& a, const Value& b) {
  throw Error("unsupported operand types for {}: '{}' and '{}'", op, python_type_name(a), python_type_name(b));
}

void refuse_undefined(const Value& a, const Value& b) {
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
}

void refuse(bool overflow) {
  if (overflow) throw Error("an integer beyond 64 bits");
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) throw Error("0 cannot be raised to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  int64_t result = 1;
  bool overflow = false;
  for (; exponent > 0 && !overflow; exponent >>= 1) {
    if (exponent & 1) overflow |= __builtin_mul_overflow(result, base, &result);
    if (exponent > 1) overflow |= __builtin_mul_overflow(base, base, &base);
  }
  refuse(overflow);
  return result;
}

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) throw Error("division by zero");
  if (b == -1) {
    int64_t negated = 0;
    refuse(__builtin_sub_overflow(int64_t{0}, a, &negated));
    return negated;
  }
  const int64_t quotient = a / b;
  return quotient - ((a % b != 0) && ((a < 0) != (b < 0)));
}

Value integer_arithmetic(Op op, int64_t a, int64_t b) {
  int64_t r = 0;
  switch (op) {
    case Op::kAdd:
      refuse(__builtin_add_overflow(a, b, &r));
      return r;
    case Op::kSub:
      refuse(__builtin_sub_overflow(a, b, &r));
      return r;
    case Op::kMul:
      refuse(__builtin_mul_overflow(a, b, &r));
      return r;
    case Op::kDiv:
      if (b == 0) throw Error("division by zero");
      return static_cast<double>(a) / static_cast<double>(b);
    case Op::kFloorDiv:
      return floor_divide(a, b);
    case Op::kMod:
      return b == -1 ? Value(0) : Value(a - floor_divide(a, b) * b);
    default:
      return integer_power(a, b);
  }
}

double float_modulo(double a, double b) {
  double m = std::fmod(a, b);
  if (m != 0 && (m < 0) != (b < 0)) m += b;
  if (m == 0) m = std::copysign(0.0, b);
  return m;
}

Value float_arithmetic(Op op, double a, double b) {
  const bool divides = op == Op::kDiv || op == Op::kFloorDiv || op == Op::kMod;
  if (divides && b == 0) throw Error("division by zero");
  switch (op) {
    case Op::kAdd:
      return a + b;
    case Op::kSub:
      return a - b;
    case Op::kMul:
      return a * b;
    case Op::kDiv:
      return a / b;
    case Op::kFloorDiv: {
      const double quotient = (a - float_modulo(a, b)) / b;
      return std::isfinite(quotient) ? std::round(quotient) : quotient;
    }
    case Op::kMod:
      return float_modulo(a, b);
    default: {
      if (a == 0 && b < 0) throw Error("0.0 cannot be raised to a negative power");
      const double power = std::pow(a, b);
      if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) throw Error("this power is a complex number");
      if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) throw Error("this power is too large");
      return power;
    }
  }
}

Value add_text(Runtime& rt, const Value& a, const Value& b) {
  rt.charge(a.text().size() + b.text().size());
  if (!a.is_markup() && !b.is_markup()) return Value(a.text() + b.text());
  const std::string left = a.is_markup() ? a.text() : html_escape(a.text());
  const std::string right = b.is_markup() ? b.text() : html_escape(b.text());
  return Value::markup(left + right);
}

bool is_sequence_of(const Value& v, ListData::Type type) { return v.is_list() && v.list_data().type == type; }

Value repeat(Runtime& rt, const Value& sequence, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (sequence.is_string()) {
    const std::string& unit = sequence.text();
    if (unit.empty() || times == 0) return Value("");
    if (static_cast<uint64_t>(times) > rt.limits.output_bytes / unit.size() + 1) throw Error("a string grew too large");
    rt.charge(unit.size() * static_cast<size_t>(times));
    std::string out;
    out.reserve(unit.size() * static_cast<size_t>(times));
    for (int64_t i = 0; i < times; ++i) out += unit;
    return sequence.is_markup() ? Value::markup(std::move(out)) : Value(std::move(out));
  }
  const ListData& list = sequence.list_data();
  std::vector<Value> out;
  if (!list.items.empty() && times > 0) {
    if (static_cast<uint64_t>(times) > rt.limits.output_bytes / list.items.size()) throw Error("a list grew too large");
    rt.charge(list.items.size() * static_cast<size_t>(times) * sizeof(Value));
    for (int64_t i = 0; i < times; ++i) out.insert(out.end(), list.items.begin(), list.items.end());
  }
  return Value::list(std::move(out), list.type);
}

bool repeats(const Value& v) {
  return v.is_string() || is_sequence_of(v, ListData::Type::kList) || is_sequence_of(v, ListData::Type::kTuple);
}

std::string_view symbol_of(Op op) {
  static constexpr std::string_view kSymbols[] = {
      "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kSymbols[static_cast<size_t>(op)];
}

bool lists_equal(Runtime& rt, const ListData& a, const ListData& b) {
  if (a.type != b.type || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i)
    if (!equals(rt, a.items[i], b.items[i])) return false;
  return true;
}

bool dicts_equal(Runtime& rt, const DictData& a, const DictData& b) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, item] : a.items) {
    const Value* other = nullptr;
    for (const auto& [k, v] : b.items)
      if (equals(rt, k, key)) other = &v;
    if (other == nullptr || !equals(rt, item, *other)) return false;
  }
  return true;
}

}  // namespace

void fail_undefined(const Value& value) {
  const UndefinedData* missing = value.missing();
  throw Error(missing == nullptr || missing->hint.empty() ? std::string("a value is undefined") : missing->hint);
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kNone:
      return false;
    case Value::Kind::kBool:
      return value.as_bool();
    case Value::Kind::kInt:
      return value.as_int() != 0;
    case Value::Kind::kFloat:
      return value.as_float() != 0;
    case Value::Kind::kString:
      return !value.text().empty();
    case Value::Kind::kList:
      return value.is_generator() || !value.list_data().items.empty();
    case Value::Kind::kDict:
      return !value.dict_data().items.empty();
    case Value::Kind::kObject:
      return true;
  }
  return false;
}

void append_text(Runtime& rt, std::string& out, const Value& value) {
  if (value.is_string()) {
    out += value.text();
  } else if (!value.is_undefined()) {
    append_repr(rt, out, value, 0);
  }
}

std::string to_text(Runtime& rt, const Value& value) {
  std::string out;
  append_text(rt, out, value);
  rt.charge(out.size());
  return out;
}

std::string repr(Runtime& rt, const Value& value) {
  std::string out;
  append_repr(rt, out, value, 0);
  rt.charge(out.size());
  return out;
}

bool equals(Runtime& rt, const Value& a, const Value& b) {
  rt.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_float() == b.as_float();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kNone:
      return true;
    case Value::Kind::kString:
      return a.text() == b.text();
    case Value::Kind::kList:
      return a.identity() == b.identity() || lists_equal(rt, a.list_data(), b.list_data());
    case Value::Kind::kDict:
      return a.identity() == b.identity() || dicts_equal(rt, a.dict_data(), b.dict_data());
    default:
      return a.identity() == b.identity();
  }
}

bool less(Runtime& rt, const Value& a, const Value& b) {
  rt.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int();
    return a.as_float() < b.as_float();
  }
  if (a.is_string() && b.is_string()) return a.text() < b.text();  // UTF-8 sorts as its code points
  const bool lists = is_sequence_of(a, ListData::Type::kList) && is_sequence_of(b, ListData::Type::kList);
  const bool tuples = is_sequence_of(a, ListData::Type::kTuple) && is_sequence_of(b, ListData::Type::kTuple);
  if (lists || tuples) {
    const auto& x = a.list_data().items;
    const auto& y = b.list_data().items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!equals(rt, x[i], y[i])) return less(rt, x[i], y[i]);
    return x.size() < y.size();
  }
  refuse_undefined(a, b);
  throw Error("'{}' and '{}' have no order", python_type_name(a), python_type_name(b));
}

bool contains(Runtime& rt, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (item.is_undefined()) fail_undefined(item);
    if (!item.is_string()) throw Error("'in' a string needs a string on its left, not '{}'", python_type_name(item));
    rt.step(1 + static_cast<int64_t>(container.text().size() / 64));
    return container.text().find(item.text()) != std::string::npos;
  }
  if (container.is_dict()) {
    if (!is_hashable(item)) throw Error("a '{}' cannot be a key", python_type_name(item));
    for (const auto& [key, value] : container.dict_data().items)
      if (equals(rt, key, item)) return true;
    return false;
  }
  if (container.is_generator() || !container.is_list()) {
    for (const Value& candidate : iterate(rt, container))
      if (equals(rt, candidate, item)) return true;
    return false;
  }
  for (const Value& candidate : container.list_data().items)
    if (equals(rt, candidate, item)) return true;
  return false;
}

Value binary(Runtime& rt, Op op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return integer_arithmetic(op, a.as_int(), b.as_int());
    return float_arithmetic(op, a.as_float(), b.as_float());
  }
  if (op == Op::kMod && a.is_string()) {
    std::string made = format_percent(rt, a.text(), b);
    return a.is_markup() ? Value::markup(std::move(made)) : Value(std::move(made));
  }
  refuse_undefined(a, b);
  if (op == Op::kAdd && a.is_string() && b.is_string()) return add_text(rt, a, b);
  if (op == Op::kAdd && a.is_list() && b.is_list() && repeats(a) && a.list_data().type == b.list_data().type) {
    std::vector<Value> joined = a.list_data().items;
    joined.insert(joined.end(), b.list_data().items.begin(), b.list_data().items.end());
    return rt.list(std::move(joined), a.list_data().type);
  }
  if (op == Op::kMul && repeats(a) && b.is_integral()) return repeat(rt, a, b.as_int());
  if (op == Op::kMul && repeats(b) && a.is_integral()) return repeat(rt, b, a.as_int());
  fail_operands(symbol_of(op), a, b);
}

bool compare(Runtime& rt, Op op, const Value& a, const Value& b) {
  switch (op) {
    case Op::kEq:
      return equals(rt, a, b);
    case Op::kNe:
      return !equals(rt, a, b);
    case Op::kLt:
      return less(rt, a, b);
    case Op::kGt:
      return less(rt, b, a);
    case Op::kIn:
      return contains(rt, b, a);
    case Op::kNotIn:
      return !contains(rt, b, a);
    default:
      break;
  }
  if (a.is_number() && b.is_number() && (a.is_float() || b.is_float()))  // NaN is neither less nor equal
    return op == Op::kLe ? a.as_float() <= b.as_float() : a.as_float() >= b.as_float();
  return op == Op::kLe ? !less(rt, b, a) : !less(rt, a, b);
}

Value negate(const Value& a) {
  if (a.is_float()) return -a.as_float();
  if (a.is_integral()) return integer_arithmetic(Op::kSub, 0, a.as_int());
  if (a.is_undefined()) fail_undefined(a);
  throw Error("bad operand type for unary -: '{}'", python_type_name(a));
}

Value positive(const Value& a) {
  if (a.is_float()) return a;
  if (a.is_integral()) return a.as_int();
  if (a.is_undefined()) fail_undefined(a);
  throw Error("bad operand type for unary +: '{}'", python_type_name(a));
}

}  // namespace braid
