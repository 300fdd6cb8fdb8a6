// Statements, expressions, macros and scopes. Scoping is Jinja's: `for`, `with`, blocks and macros open a scope, `if`
// does not; a `set` never reaches an outer scope; names are looked up where the macro was written, not where it is
// called.
#include "text/jinja/interpreter.h"

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "text/jinja/builtins.h"

namespace braid {
namespace {

enum class Flow : uint8_t { kNext, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(const TemplateCode& code, const TemplateVariables& variables, const std::tm& now,
              const JinjaLimits& limits)
      : code_(code),
        rt_(limits, now),
        loop_symbol_(code.find_symbol("loop")),
        caller_symbol_(code.find_symbol("caller")),
        kwargs_symbol_(code.find_symbol("kwargs")),
        varargs_symbol_(code.find_symbol("varargs")) {
    for (const auto& [name, value] : variables)
      if (const int symbol = code.find_symbol(name); symbol >= 0) globals_.set(symbol, value);
    globals_.captured = true;
  }

  std::string run() {
    try {
      std::string out;
      const Nested scope(*this, &globals_);
      run_block(code_.body, *scope, out);
      return out;
    } catch (const Error& e) {
      throw Error("chat template, line {}: {}", line_, e.what());
    }
  }

 private:
  // A scope for a block; goes back to the pool unless a macro captured it.
  class Nested {
   public:
    Nested(Interpreter& in, Scope* parent) : in_(in), scope_(in.take_scope(parent)) {}
    ~Nested() {
      if (scope_->captured) return;
      scope_->variables.clear();
      in_.free_scopes_.push_back(scope_);
    }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    Scope* operator->() const { return scope_; }
    Scope& operator*() const { return *scope_; }

   private:
    Interpreter& in_;
    Scope* scope_;
  };

  Scope* take_scope(Scope* parent) {
    Scope* scope;
    if (free_scopes_.empty()) {
      rt_.charge(sizeof(Scope));
      scope = &scopes_.emplace_back();
    } else {
      scope = free_scopes_.back();
      free_scopes_.pop_back();
    }
    scope->parent = parent;
    return scope;
  }

  // ---- statements
  Flow run_block(const Block& block, Scope& scope, std::string& out) {
    for (const auto& stmt : block)
      if (const Flow flow = run(*stmt, scope, out); flow != Flow::kNext) return flow;
    return Flow::kNext;
  }

  Flow run(const Stmt& s, Scope& scope, std::string& out) {
    rt_.step();
    line_ = s.line;
    const size_t before = out.size();
    Flow flow = Flow::kNext;
    switch (s.kind) {
      case StmtKind::kText:
        out += s.text;
        break;
      case StmtKind::kPrint:
        for (const ExprPtr& e : s.exprs) append_text(rt_, out, eval(*e, scope));
        break;
      case StmtKind::kIf:
        return run_if(s, scope, out);
      case StmtKind::kFor:
        return run_for(s, scope, out);
      case StmtKind::kSet:
        assign(*s.target, eval(*s.exprs[0], scope), scope);
        break;
      case StmtKind::kSetBlock: {
        Value text = Value(run_nested(s.body, scope));
        if (s.exprs[0]) text = eval_filter(*s.exprs[0], scope, &text);
        assign(*s.target, std::move(text), scope);
        break;
      }
      case StmtKind::kMacro:
        scope.set(s.symbol, Value(make_macro(*s.macro, scope)));
        break;
      case StmtKind::kCallBlock:
        run_call_block(s, scope, out);
        break;
      case StmtKind::kFilterBlock: {
        const Value text(run_nested(s.body, scope));
        append_text(rt_, out, eval_filter(*s.exprs[0], scope, &text));
        break;
      }
      case StmtKind::kWith:
        return run_with(s, scope, out);
      case StmtKind::kScope: {
        const Runtime::Level level(rt_);
        const Nested inner(*this, &scope);
        return run_block(s.body, *inner, out);
      }
      case StmtKind::kBreak:
        flow = Flow::kBreak;
        break;
      case StmtKind::kContinue:
        flow = Flow::kContinue;
        break;
    }
    charge_output(out, before);
    return flow;
  }

  void charge_output(const std::string& out, size_t before) {
    if (out.size() > rt_.limits.output_bytes)
      throw Error("the template writes more than {} bytes", rt_.limits.output_bytes);
    if (out.size() > before) rt_.step(static_cast<int64_t>((out.size() - before) / 64));
  }

  std::string run_nested(const Block& body, Scope& scope) {
    const Runtime::Level level(rt_);
    const Nested inner(*this, &scope);
    std::string out;
    run_block(body, *inner, out);
    rt_.charge(out.size());
    return out;
  }

  Flow run_if(const Stmt& s, Scope& scope, std::string& out) {
    const Runtime::Level level(rt_);
    for (size_t i = 0; i < s.exprs.size(); ++i)
      if (truth(eval(*s.exprs[i], scope))) return run_block(s.bodies[i], scope, out);
    return run_block(s.otherwise, scope, out);
  }

  Flow run_with(const Stmt& s, Scope& scope, std::string& out) {
    const Runtime::Level level(rt_);
    const Nested inner(*this, &scope);
    std::vector<Value> values;  // all evaluated outside of the new scope
    for (const ExprPtr& e : s.exprs) values.push_back(eval(*e, scope));
    for (size_t i = 0; i < values.size(); ++i) assign(*s.targets[i], std::move(values[i]), *inner);
    return run_block(s.body, *inner, out);
  }

  Flow run_for(const Stmt& s, Scope& scope, std::string& out) {
    run_loop(s, eval(*s.exprs[0], scope), scope, 0, out);
    return Flow::kNext;
  }

  void run_loop(const Stmt& s, const Value& iterable, Scope& scope, int depth0, std::string& out) {
    const Runtime::Level level(rt_);
    auto* loop = rt_.make<Loop>();
    loop->items = iterate(rt_, iterable);
    loop->depth0 = depth0;
    loop->scope = &scope;
    if (s.recursive) loop->recursive = &s;
    if (s.exprs[1]) {
      std::vector<Value> kept;
      for (Value& item : loop->items) {
        const Nested inner(*this, &scope);
        assign(*s.target, item, *inner);
        if (truth(eval(*s.exprs[1], *inner))) kept.push_back(std::move(item));
      }
      loop->items = std::move(kept);
    }
    for (size_t i = 0; i < loop->items.size(); ++i) {
      rt_.step();
      loop->index0 = static_cast<int64_t>(i);
      const Nested inner(*this, &scope);
      if (loop_symbol_ >= 0) inner->set(loop_symbol_, Value(loop));
      assign(*s.target, loop->items[i], *inner);
      if (run_block(s.body, *inner, out) == Flow::kBreak) break;
    }
    if (loop->items.empty() && !s.otherwise.empty()) {
      const Nested inner(*this, &scope);
      run_block(s.otherwise, *inner, out);
    }
  }

  void assign(const Expr& target, Value value, Scope& scope) {
    if (target.kind == ExprKind::kName) {
      scope.set(target.symbol, std::move(value));
    } else if (target.kind == ExprKind::kNamespaceRef) {
      const Value held = lookup(target, scope);
      auto* space = dynamic_cast<Namespace*>(held.object());
      if (space == nullptr) throw Error("cannot assign attribute on non-namespace object");
      for (auto& [key, field] : space->fields)
        if (key == target.value.text()) {
          field = std::move(value);
          return;
        }
      rt_.charge(sizeof(Value) * 4);
      space->fields.emplace_back(target.value.text(), std::move(value));
    } else {
      const auto items = iterate(rt_, value);
      if (items.size() != target.children.size())
        throw Error("cannot unpack {} values into {} names", items.size(), target.children.size());
      for (size_t i = 0; i < items.size(); ++i) assign(*target.children[i], items[i], scope);
    }
  }

  // ---- macros
  Macro* make_macro(const MacroCode& code, Scope& scope) {
    auto* macro = rt_.make<Macro>();
    macro->code = &code;
    macro->scope = &scope;
    for (Scope* s = &scope; s != nullptr && !s->captured; s = s->parent) s->captured = true;
    return macro;
  }

  void run_call_block(const Stmt& s, Scope& scope, std::string& out) {
    const Runtime::Level level(rt_);
    CallArgs args;
    const Expr& call = *s.exprs[0];
    const Value callee = eval(*call.children[0], scope);
    eval_arguments(*call.arguments, scope, args);
    args.named.emplace_back("caller", Value(make_macro(*s.macro, scope)));
    append_text(rt_, out, this->call(callee, args));
  }

  Value call_macro(const Macro& macro, const CallArgs& args) {
    const Runtime::Level level(rt_);
    const int line = line_;
    const MacroCode& code = *macro.code;
    const Nested inner(*this, macro.scope);
    bind_macro_arguments(code, args, *inner);
    std::string out;
    run_block(code.body, *inner, out);
    rt_.charge(out.size());
    line_ = line;
    return Value(std::move(out));
  }

  void bind_macro_arguments(const MacroCode& code, const CallArgs& args, Scope& scope) {
    std::vector<const Value*> named(code.parameters.size(), nullptr);
    std::vector<std::pair<Value, Value>> extra;
    Value caller = Value::undefined("No caller defined");
    for (const auto& [name, value] : args.named) {
      const auto known = std::find_if(code.parameters.begin(), code.parameters.end(),
                                      [&, n = &name](const Parameter& p) { return p.name == *n; });
      if (known != code.parameters.end())
        named[static_cast<size_t>(known - code.parameters.begin())] = &value;
      else if (name == "caller" && code.uses_caller)
        caller = value;
      else
        extra.emplace_back(Value(name), value);
    }
    if (code.uses_caller) scope.set(caller_symbol_, std::move(caller));
    if (!extra.empty() && !code.uses_kwargs)
      throw Error("macro '{}' takes no keyword argument '{}'", code.name, extra[0].first.text());
    if (code.uses_kwargs) scope.set(kwargs_symbol_, Value::dict(std::move(extra)));
    const size_t n = code.parameters.size();
    if (args.positional.size() > n && !code.uses_varargs)
      throw Error("macro '{}' takes not more than {} argument(s)", code.name, n);
    if (code.uses_varargs) {
      const auto rest = static_cast<std::ptrdiff_t>(std::min(n, args.positional.size()));
      scope.set(varargs_symbol_, Value::tuple({args.positional.begin() + rest, args.positional.end()}));
    }
    for (size_t i = 0; i < n; ++i) {
      const Parameter& p = code.parameters[i];
      if (i < args.positional.size()) {
        if (named[i] != nullptr) throw Error("macro '{}' got '{}' twice", code.name, p.name);
        scope.set(p.symbol, args.positional[i]);
      } else if (named[i] != nullptr) {
        scope.set(p.symbol, *named[i]);
      } else if (p.fallback) {
        scope.set(p.symbol, eval(*p.fallback, scope));
      } else {
        scope.set(p.symbol, Value::undefined(fmt::format("parameter '{}' was not provided", p.name)));
      }
    }
  }

  Value call(const Value& callee, const CallArgs& args) {
    if (callee.is_undefined()) fail_undefined(callee);
    Object* object = callee.object();
    if (const auto* macro = dynamic_cast<const Macro*>(object)) return call_macro(*macro, args);
    if (const auto* callable = dynamic_cast<const Callable*>(object)) {
      return callable->is_function ? call_function(rt_, callable->name, args)
                                   : call_method(rt_, callable->receiver, callable->name, args);
    }
    if (auto* joiner = dynamic_cast<Joiner*>(object))
      return std::exchange(joiner->used, true) ? Value(joiner->separator) : Value("");
    if (auto* loop = dynamic_cast<Loop*>(object)) {
      if (loop->recursive == nullptr) throw Error("a loop must be 'recursive' to be called");
      const BoundArgs a("loop", args, {"iterable"}, 1);
      std::string out;
      run_loop(*loop->recursive, a.at(0), *loop->scope, loop->depth0 + 1, out);
      return rt_.text(std::move(out));
    }
    throw Error("'{}' object is not callable", python_type_name(callee));
  }

  // ---- expressions
  void eval_arguments(const Arguments& from, Scope& scope, CallArgs& args) {
    args.positional.reserve(from.positional.size());
    for (const ExprPtr& e : from.positional) args.positional.push_back(eval(*e, scope));
    for (const auto& [name, e] : from.named) args.named.emplace_back(name, eval(*e, scope));
    if (from.star)
      for (Value& v : iterate(rt_, eval(*from.star, scope))) args.positional.push_back(std::move(v));
    if (!from.double_star) return;
    const Value rest = eval(*from.double_star, scope);
    if (!rest.is_dict()) throw Error("** needs a dict, not '{}'", python_type_name(rest));
    for (const auto& [key, value] : rest.dict_data().items) {
      if (!key.is_string()) throw Error("keywords must be strings");
      for (const auto& [name, ignored] : args.named)
        if (name == key.text()) throw Error("got multiple values for the keyword argument '{}'", name);
      args.named.emplace_back(key.text(), value);
    }
  }

  Value lookup(const Expr& name, const Scope& scope) {
    for (const Scope* s = &scope; s != nullptr; s = s->parent)
      if (const Value* found = s->find_here(name.symbol)) return *found;
    if (is_function(name.name)) {
      auto* function = rt_.make<Callable>();
      function->name = name.name;
      function->is_function = true;
      return Value(function);
    }
    return Value::undefined(fmt::format("'{}' is undefined", name.name));
  }

  Value eval(const Expr& e, Scope& scope) {
    rt_.step();
    switch (e.kind) {
      case ExprKind::kConst:
        return e.value;
      case ExprKind::kName:
        return lookup(e, scope);
      case ExprKind::kAttribute:
        return get_attribute(rt_, eval(*e.children[0], scope), e.name);
      default:
        break;
    }
    const Runtime::Level level(rt_);
    switch (e.kind) {
      case ExprKind::kItem:
        return eval_item(e, scope);
      case ExprKind::kCall:
        return eval_call(e, scope);
      case ExprKind::kFilter:
        return eval_filter(e, scope, nullptr);
      case ExprKind::kTest:
        return eval_is(e, scope);
      case ExprKind::kNot:
        return !truth(eval(*e.children[0], scope));
      case ExprKind::kNegate:
        return negate(eval(*e.children[0], scope));
      case ExprKind::kPlus:
        return positive(eval(*e.children[0], scope));
      case ExprKind::kAnd:
      case ExprKind::kOr: {
        Value left = eval(*e.children[0], scope);
        return truth(left) == (e.kind == ExprKind::kOr) ? left : eval(*e.children[1], scope);
      }
      case ExprKind::kCondition:
        return eval_condition(e, scope);
      case ExprKind::kBinary: {
        const Value left = eval(*e.children[0], scope);
        return binary(rt_, e.op, left, eval(*e.children[1], scope));
      }
      case ExprKind::kConcat:
        return eval_concat(e, scope);
      case ExprKind::kCompare:
        return eval_compare(e, scope);
      case ExprKind::kDict:
        return eval_dict(e, scope);
      case ExprKind::kList:
        return rt_.list(eval_all(e, scope));
      case ExprKind::kTuple:
        return rt_.list(eval_all(e, scope), ListData::Type::kTuple);
      default:
        throw Error("this expression has no value");
    }
  }

  std::vector<Value> eval_all(const Expr& e, Scope& scope) {
    std::vector<Value> out;
    out.reserve(e.children.size());
    for (const ExprPtr& child : e.children) out.push_back(eval(*child, scope));
    return out;
  }

  Value eval_dict(const Expr& e, Scope& scope) {
    std::vector<std::pair<Value, Value>> items;
    for (size_t i = 0; i < e.children.size(); i += 2) {
      Value key = eval(*e.children[i], scope), value = eval(*e.children[i + 1], scope);
      if (!is_hashable(key)) throw Error("unhashable type: '{}'", python_type_name(key));
      const auto same =
          std::find_if(items.begin(), items.end(), [&](const auto& held) { return equals(rt_, held.first, key); });
      if (same != items.end())
        same->second = std::move(value);
      else
        items.emplace_back(std::move(key), std::move(value));
    }
    rt_.charge(items.size() * 2 * sizeof(Value));
    return Value::dict(std::move(items));
  }

  Value eval_item(const Expr& e, Scope& scope) {
    const Value object = eval(*e.children[0], scope);
    const Expr& key = *e.children[1];
    if (key.kind != ExprKind::kSlice) return get_item(rt_, object, eval(key, scope));
    auto bound = [&](size_t i) { return key.children[i] ? eval(*key.children[i], scope) : Value::none(); };
    const Value start = bound(0), stop = bound(1), step = bound(2);
    return get_slice(rt_, object, start, stop, step);
  }

  Value eval_call(const Expr& e, Scope& scope) {
    const Expr& callee = *e.children[0];
    CallArgs args;
    if (callee.kind == ExprKind::kAttribute) {  // a method, without making an object of it first
      const Value receiver = eval(*callee.children[0], scope);
      if (find_method(receiver, callee.name) == MethodKind::kSafe) {
        eval_arguments(*e.arguments, scope, args);
        line_ = e.line;
        return call_method(rt_, receiver, callee.name, args);
      }
      const Value function = get_attribute(rt_, receiver, callee.name);
      eval_arguments(*e.arguments, scope, args);
      line_ = e.line;
      return call(function, args);
    }
    if (callee.kind == ExprKind::kName) {
      const Value function = find_variable(callee, scope);
      eval_arguments(*e.arguments, scope, args);
      line_ = e.line;
      if (function.is_undefined() && function.missing() == nullptr) return call_function(rt_, callee.name, args);
      return call(function, args);
    }
    const Value function = eval(callee, scope);
    eval_arguments(*e.arguments, scope, args);
    return call(function, args);
  }

  // A variable; for a name that is only a function of the environment, an undefined without hint.
  Value find_variable(const Expr& name, const Scope& scope) {
    for (const Scope* s = &scope; s != nullptr; s = s->parent)
      if (const Value* found = s->find_here(name.symbol)) return *found;
    return is_function(name.name) ? Value() : Value::undefined(fmt::format("'{}' is undefined", name.name));
  }

  Value eval_filter(const Expr& e, Scope& scope, const Value* block_text) {
    const Runtime::Level level(rt_);
    Value input;
    if (!e.children[0])
      input = *block_text;
    else if (e.children[0]->kind == ExprKind::kFilter)
      input = eval_filter(*e.children[0], scope, block_text);
    else
      input = eval(*e.children[0], scope);
    if (e.builtin < 0) throw Error("no filter named '{}'", e.name);
    CallArgs args;
    eval_arguments(*e.arguments, scope, args);
    line_ = e.line;
    return apply_filter(rt_, e.builtin, input, args);
  }

  Value eval_is(const Expr& e, Scope& scope) {
    const Value input = eval(*e.children[0], scope);
    if (e.builtin < 0) throw Error("no test named '{}'", e.name);
    CallArgs args;
    eval_arguments(*e.arguments, scope, args);
    return apply_test(rt_, e.builtin, input, args);
  }

  Value eval_condition(const Expr& e, Scope& scope) {
    if (truth(eval(*e.children[1], scope))) return eval(*e.children[0], scope);
    if (e.children[2]) return eval(*e.children[2], scope);
    return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
  }

  Value eval_concat(const Expr& e, Scope& scope) {
    std::string out;
    for (const ExprPtr& child : e.children) append_text(rt_, out, eval(*child, scope));
    return rt_.text(std::move(out));
  }

  Value eval_compare(const Expr& e, Scope& scope) {
    Value left = eval(*e.children[0], scope);
    for (size_t i = 0; i < e.compare.size(); ++i) {
      Value right = eval(*e.children[i + 1], scope);
      if (!compare(rt_, e.compare[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  const TemplateCode& code_;
  Runtime rt_;
  int loop_symbol_, caller_symbol_, kwargs_symbol_, varargs_symbol_;
  int line_ = 1;
  Scope globals_;
  std::deque<Scope> scopes_;  // stable addresses
  std::vector<Scope*> free_scopes_;
};

}  // namespace

std::string render_template(const TemplateCode& code, const TemplateVariables& variables, const std::tm& now,
                            const JinjaLimits& limits) {
  return Interpreter(code, variables, now, limits).run();
}

}  // namespace braid
