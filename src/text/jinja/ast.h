// The syntax tree of a template. Two plain node types whose `kind` says how their fields are used (listed beside each
// kind); the parser builds them, the interpreter walks them, nobody changes them in between, so that one tree serves
// every thread.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace braid {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Block = std::vector<std::unique_ptr<Stmt>>;

enum class ExprKind : uint8_t {
  kConst,         // value
  kName,          // symbol, name
  kNamespaceRef,  // symbol, name = the namespace variable; attribute: only as an assignment target
  kList,          // children
  kTuple,         // children
  kDict,          // children: key, value, key, value, ...
  kAttribute,     // children[0] . attribute
  kItem,          // children[0] [ children[1] ]
  kSlice,         // children: start, stop, step, each may be null
  kCall,          // children[0] ( arguments )
  kFilter,        // children[0] (null inside a filter block: the block's text) | name ( arguments )
  kTest,          // children[0] is name ( arguments )
  kNot,           // children[0]
  kNegate,        // children[0]
  kPlus,          // children[0], unary
  kAnd,           // children[0], children[1]
  kOr,            // children[0], children[1]
  kCondition,     // children: then, test, else (may be null)
  kBinary,        // children[0] op children[1]
  kConcat,        // children, joined as text
  kCompare,       // children[0] compare[0] children[1] compare[1] children[2] ..., chained as in Python
};

enum class Op : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;  // *rest and **rest, may be null
};

struct Expr {
  ExprKind kind;
  Op op = Op::kAdd;
  int line = 0;
  int symbol = -1;
  int depth = 1;     // height of this tree, bounded by the parser
  int builtin = -1;  // kFilter, kTest: index into the table; -1 for a name that does not exist
  Value value;
  std::string name;
  std::vector<ExprPtr> children;
  std::vector<Op> compare;
  std::unique_ptr<Arguments> arguments;
};

struct Parameter {
  std::string name;
  int symbol;
  ExprPtr fallback;  // null when required
};

enum class StmtKind : uint8_t {
  kText,         // text
  kPrint,        // exprs
  kFor,          // target, exprs[0] = iterable, exprs[1] = test (may be null), body, otherwise, recursive
  kIf,           // branches: exprs[i] guards bodies[i]; otherwise
  kSet,          // target, exprs[0]
  kSetBlock,     // target, exprs[0] = filter chain (may be null), body
  kMacro,        // name, symbol, macro
  kCallBlock,    // exprs[0] = the call, macro = the caller's body
  kFilterBlock,  // exprs[0] = filter chain, body
  kWith,         // targets, exprs, body
  kScope,        // body, in a scope of its own: {% block %} and {% generation %}
  kBreak,
  kContinue,
};

struct MacroCode {
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  int symbol = -1;
  bool recursive = false;
  std::string text;
  ExprPtr target;
  std::vector<ExprPtr> targets;
  std::vector<ExprPtr> exprs;
  Block body;
  std::vector<Block> bodies;
  Block otherwise;
  std::unique_ptr<MacroCode> macro;
};

// Symbols: variable names numbered by the parser, so that scopes compare integers.
struct TemplateCode {
  Block body;
  std::vector<std::string> symbols;

  int find_symbol(const std::string& name) const {
    for (size_t i = 0; i < symbols.size(); ++i)
      if (symbols[i] == name) return static_cast<int>(i);
    return -1;
  }
};

}  // namespace braid
