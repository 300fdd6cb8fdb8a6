// One render's state that is not the template's: limits and what is left of them, the arena of its mutable objects, the
// clock; and Python's operators on values. Used by one thread, dies with the render.
#pragma once
#include <ctime>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/object.h"
#include "text/jinja/value.h"

namespace braid {

struct JinjaLimits {
  int64_t steps = 50'000'000;              // about one per node evaluated or 64 bytes moved: a few seconds
  size_t output_bytes = size_t{64} << 20;  // of the prompt, and of any one string
  int64_t total_bytes = int64_t{2} << 30;  // of all strings and lists made on the way
  int depth = 400;                         // of nested statements, expressions and macro calls
};

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Runtime {
 public:
  Runtime(const JinjaLimits& render_limits, const std::tm& render_time)
      : limits(render_limits),
        now(render_time),
        steps_left_(render_limits.steps),
        bytes_left_(render_limits.total_bytes) {}

  const JinjaLimits limits;
  const std::tm now;

  void step(int64_t n = 1) {
    if ((steps_left_ -= n) < 0) fail_steps();
  }
  // Accounts for `bytes` about to be made or just made.
  void charge(size_t bytes);
  Value text(std::string made) {
    charge(made.size());
    return Value(std::move(made));
  }
  Value list(std::vector<Value> items, ListData::Type type = ListData::Type::kList) {
    charge(items.size() * sizeof(Value));
    return Value::list(std::move(items), type);
  }

  template <typename T>
  T* make() {
    auto owned = std::make_unique<T>();
    T* made = owned.get();
    charge(sizeof(T));
    objects_.push_back(std::move(owned));
    return made;
  }

  // Counts one level of C++ recursion for as long as it lives.
  class Level {
   public:
    explicit Level(Runtime& rt) : rt_(rt) {
      if (++rt_.depth_ > rt_.limits.depth) rt_.fail_depth();
    }
    ~Level() { --rt_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Runtime& rt_;
  };

 private:
  [[noreturn]] void fail_steps() const;
  [[noreturn]] void fail_depth();

  int64_t steps_left_;
  int64_t bytes_left_;
  int depth_ = 0;
  std::vector<std::unique_ptr<Object>> objects_;
};

// ---- Python's view of values. All throw Error where Python raises.
[[noreturn]] void fail_undefined(const Value& value);
bool truth(const Value& value);
std::string to_text(Runtime& rt, const Value& value);  // str()
void append_text(Runtime& rt, std::string& out, const Value& value);
std::string repr(Runtime& rt, const Value& value);
bool equals(Runtime& rt, const Value& a, const Value& b);
bool less(Runtime& rt, const Value& a, const Value& b);  // a < b; TypeError for mixed kinds
bool contains(Runtime& rt, const Value& container, const Value& item);
Value binary(Runtime& rt, Op op, const Value& a, const Value& b);
bool compare(Runtime& rt, Op op, const Value& a, const Value& b);
Value negate(const Value& a);
Value positive(const Value& a);
int64_t length(Runtime& rt, const Value& value);
bool is_iterable(const Value& value);
std::vector<Value> iterate(Runtime& rt, const Value& value);  // consumes a generator
bool is_hashable(const Value& value);

Value get_attribute(Runtime& rt, const Value& value, const std::string& name);  // value.name
Value get_item(Runtime& rt, const Value& value, const Value& key);              // value[key]
Value get_slice(Runtime& rt, const Value& value, const Value& start, const Value& stop, const Value& step);

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false, has_indent = false;
  std::string indent;
  std::string item_separator = ", ", key_separator = ": ";
};
std::string dump_json(Runtime& rt, const Value& value, const JsonStyle& style);
std::string format_percent(Runtime& rt, const std::string& format, const Value& args);    // format % args
std::string format_braces(Runtime& rt, const std::string& format, const CallArgs& args);  // format.format(...)

// Arguments by Python's rules: positional, then by name; an Error for too many, unknown or missing ones.
class BoundArgs {
 public:
  BoundArgs(std::string_view callee, const CallArgs& args, std::initializer_list<std::string_view> names,
            size_t required = 0);
  bool has(size_t i) const { return given_[i] != nullptr; }
  const Value& at(size_t i) const { return *given_[i]; }
  Value get(size_t i, Value fallback) const { return has(i) ? at(i) : std::move(fallback); }
  int64_t integer(size_t i, int64_t fallback) const;  // None counts as not given
  bool flag(size_t i, bool fallback) const { return has(i) ? truth(at(i)) : fallback; }
  const std::string& string(size_t i) const;  // Error when it is no string

 private:
  std::string_view callee_;
  std::vector<const Value*> given_;
};

}  // namespace braid
