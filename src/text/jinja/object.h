// The mutable and callable things of a render: macros, namespaces, loops, bound methods. Owned by Runtime's arena;
// values point to them.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace braid {

struct Object {
  virtual ~Object() = default;
  virtual const char* type_name() const = 0;
};

// One level of variables. Lookups walk to the parent.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<int, Value>> variables;  // few: searched backwards in order
  bool captured = false;                         // a macro was made here and may outlive the block

  const Value* find_here(int symbol) const {
    for (const auto& [key, value] : variables)
      if (key == symbol) return &value;
    return nullptr;
  }
  void set(int symbol, Value value) {
    for (auto& [key, held] : variables)
      if (key == symbol) {
        held = std::move(value);
        return;
      }
    variables.emplace_back(symbol, std::move(value));
  }
};

struct Macro final : Object {
  const MacroCode* code = nullptr;
  Scope* scope = nullptr;  // where it was defined
  const char* type_name() const override { return "Macro"; }
};

struct Namespace final : Object {
  std::vector<std::pair<std::string, Value>> fields;
  const char* type_name() const override { return "Namespace"; }
};

struct Loop final : Object {
  std::vector<Value> items;
  int64_t index0 = 0;
  int depth0 = 0;
  bool changed_before = false;
  std::vector<Value> last_changed;
  const Stmt* recursive = nullptr;  // the {% for ... recursive %} it runs; null when not callable
  Scope* scope = nullptr;           // around the loop, for the recursive call
  const char* type_name() const override { return "LoopContext"; }
};

struct Cycler final : Object {
  std::vector<Value> items;
  size_t position = 0;
  const char* type_name() const override { return "Cycler"; }
};

struct Joiner final : Object {
  std::string separator;
  bool used = false;
  const char* type_name() const override { return "Joiner"; }
};

// A method taken from a value without calling it yet, or a function of the environment (receiver undefined).
struct Callable final : Object {
  Value receiver;
  std::string name;
  bool is_function = false;
  const char* type_name() const override { return is_function ? "function" : "builtin_function_or_method"; }
};

}  // namespace braid
