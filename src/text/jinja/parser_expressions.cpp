// Expressions, with Jinja's precedences: condition, or, and, not, comparison, + -, ~, * / // %, **, unary, postfix,
// filters and tests.
#include <algorithm>

#include "base/error.h"
#include "text/jinja/builtins.h"
#include "text/jinja/parser_base.h"

namespace braid {
namespace {

constexpr int kMaxNesting = 100;          // of brackets and statements: bounds the parser's recursion
constexpr int kMaxExpressionDepth = 250;  // of the tree: bounds the interpreter's and the destructor's

}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& p) : parser(p) {
  if (++parser.nesting_ > kMaxNesting) parser.fail(fmt::format("nested more than {} levels deep", kMaxNesting));
}

bool ExpressionParser::skip_operator(std::string_view text) {
  if (!at_operator(text)) return false;
  advance();
  return true;
}

bool ExpressionParser::skip_name(std::string_view text) {
  if (!at_name(text)) return false;
  advance();
  return true;
}

void ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fail(fmt::format("expected '{}', got {}", text, describe_current()));
}

void ExpressionParser::expect_name(std::string_view text) {
  if (!skip_name(text)) fail(fmt::format("expected '{}', got {}", text, describe_current()));
}

std::string ExpressionParser::expect_any_name() {
  if (!at(TokenKind::kName)) fail(fmt::format("expected a name, got {}", describe_current()));
  std::string name = current().text;
  advance();
  return name;
}

void ExpressionParser::expect(TokenKind kind, std::string_view what) {
  if (!at(kind)) fail(fmt::format("expected {}, got {}", what, describe_current()));
  advance();
}

std::string ExpressionParser::describe_current() const {
  switch (current().kind) {
    case TokenKind::kText:
      return "text";
    case TokenKind::kPrintBegin:
      return "'{{'";
    case TokenKind::kPrintEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kNumber:
      return "a number";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return fmt::format("'{}'", current().text);
  }
}

bool ExpressionParser::mentioned_since(size_t mark, std::string_view name) const {
  for (size_t i = mark; i < position_; ++i)
    if (tokens_[i].kind == TokenKind::kName && tokens_[i].text == name) return true;
  return false;
}

int ExpressionParser::symbol(const std::string& name) {
  for (size_t i = 0; i < symbols_.size(); ++i)
    if (symbols_[i] == name) return static_cast<int>(i);
  symbols_.push_back(name);
  return static_cast<int>(symbols_.size()) - 1;
}

int ExpressionParser::line_here() {
  const size_t offset = std::max(current().offset, line_offset_);
  line_ += static_cast<int>(std::count(source_.text.begin() + static_cast<std::ptrdiff_t>(line_offset_),
                                       source_.text.begin() + static_cast<std::ptrdiff_t>(offset), '\n'));
  line_offset_ = offset;
  return line_;
}

ExprPtr ExpressionParser::make(ExprKind kind, int line) {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->line = line;
  return e;
}

ExprPtr ExpressionParser::add(ExprPtr parent, ExprPtr child) {
  if (child) parent->depth = std::max(parent->depth, child->depth + 1);
  if (parent->depth > kMaxExpressionDepth)
    fail(fmt::format("an expression of more than {} levels", kMaxExpressionDepth));
  parent->children.push_back(std::move(child));
  return parent;
}

ExprPtr ExpressionParser::parse_expression(bool with_condition) {
  const Nesting level(*this);
  ExprPtr then = parse_or();
  while (with_condition && at_name("if")) {
    const int line = line_here();
    advance();
    ++soft_;
    ExprPtr test = parse_or();
    ExprPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
    --soft_;
    then = add(add(add(make(ExprKind::kCondition, line), std::move(then)), std::move(test)), std::move(otherwise));
  }
  return then;
}

ExprPtr ExpressionParser::parse_or() {
  ExprPtr left = parse_and();
  while (at_name("or")) {
    const int line = line_here();
    advance();
    left = add(add(make(ExprKind::kOr, line), std::move(left)), parse_and());
  }
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  ExprPtr left = parse_not();
  while (at_name("and")) {
    const int line = line_here();
    advance();
    left = add(add(make(ExprKind::kAnd, line), std::move(left)), parse_not());
  }
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  if (!at_name("not")) return parse_compare();
  const Nesting level(*this);
  const int line = line_here();
  advance();
  return add(make(ExprKind::kNot, line), parse_not());
}

ExprPtr ExpressionParser::parse_compare() {
  static const std::pair<std::string_view, Op> kOperators[] = {{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt},
                                                               {"<=", Op::kLe}, {">", Op::kGt},  {">=", Op::kGe}};
  ExprPtr first = parse_sum();
  ExprPtr node;
  while (true) {
    const int line = line_here();
    Op op = Op::kEq;
    const auto* known = std::find_if(std::begin(kOperators), std::end(kOperators),
                                     [&](const auto& candidate) { return at_operator(candidate.first); });
    if (known != std::end(kOperators)) {
      op = known->second;
    } else if (at_name("in")) {
      op = Op::kIn;
    } else if (at_name("not") && ahead().kind == TokenKind::kName && ahead().text == "in") {
      op = Op::kNotIn;
      advance();
    } else {
      return node ? std::move(node) : std::move(first);
    }
    advance();
    if (!node) node = add(make(ExprKind::kCompare, line), std::move(first));
    node->compare.push_back(op);
    node = add(std::move(node), parse_sum());
  }
}

ExprPtr ExpressionParser::parse_sum() {
  ExprPtr left = parse_concat();
  while (at_operator("+") || at_operator("-")) {
    ExprPtr node = make(ExprKind::kBinary, line_here());
    node->op = current().text == "+" ? Op::kAdd : Op::kSub;
    advance();
    left = add(add(std::move(node), std::move(left)), parse_concat());
  }
  return left;
}

ExprPtr ExpressionParser::parse_concat() {
  ExprPtr first = parse_product();
  if (!at_operator("~")) return first;
  ExprPtr node = add(make(ExprKind::kConcat, line_here()), std::move(first));
  while (skip_operator("~")) node = add(std::move(node), parse_product());
  return node;
}

ExprPtr ExpressionParser::parse_product() {
  static const std::pair<std::string_view, Op> kOperators[] = {
      {"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}};
  ExprPtr left = parse_power();
  while (true) {
    const auto* known = std::find_if(std::begin(kOperators), std::end(kOperators),
                                     [&](const auto& candidate) { return at_operator(candidate.first); });
    if (known == std::end(kOperators)) return left;
    ExprPtr node = make(ExprKind::kBinary, line_here());
    node->op = known->second;
    advance();
    left = add(add(std::move(node), std::move(left)), parse_power());
  }
}

ExprPtr ExpressionParser::parse_power() {
  ExprPtr left = parse_unary();
  while (at_operator("**")) {  // left-associative, as Jinja parses it
    ExprPtr node = make(ExprKind::kBinary, line_here());
    node->op = Op::kPow;
    advance();
    left = add(add(std::move(node), std::move(left)), parse_unary());
  }
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  const int line = line_here();
  ExprPtr node;
  if (at_operator("-") || at_operator("+")) {
    const Nesting level(*this);
    const ExprKind kind = current().text == "-" ? ExprKind::kNegate : ExprKind::kPlus;
    advance();
    node = add(make(kind, line), parse_unary(false));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filters ? parse_filter_or_test(std::move(node)) : std::move(node);
}

ExprPtr ExpressionParser::parse_primary(bool with_namespace) {
  const int line = line_here();
  if (at(TokenKind::kName)) return parse_name(with_namespace);
  if (at(TokenKind::kString)) {
    std::string text;
    for (; at(TokenKind::kString); advance()) text += current().text;
    ExprPtr node = make(ExprKind::kConst, line);
    node->value = Value(std::move(text));
    return node;
  }
  if (at(TokenKind::kNumber)) {
    ExprPtr node = make(ExprKind::kConst, line);
    node->value = current().value;
    advance();
    return node;
  }
  if (skip_operator("(")) {
    ExprPtr node = parse_tuple({.in_parentheses = true});
    expect_operator(")");
    return node;
  }
  if (at_operator("[")) return parse_list();
  if (at_operator("{")) return parse_dict();
  fail(fmt::format("unexpected {}", describe_current()));
}

ExprPtr ExpressionParser::parse_name(bool with_namespace) {
  const int line = line_here();
  const std::string name = expect_any_name();
  ExprPtr node = make(ExprKind::kConst, line);
  if (name == "true" || name == "True") {
    node->value = Value(true);
  } else if (name == "false" || name == "False") {
    node->value = Value(false);
  } else if (name == "none" || name == "None") {
    node->value = Value::none();
  } else {
    node->kind = ExprKind::kName;
    node->name = name;
    node->symbol = symbol(name);
    if (with_namespace && skip_operator(".")) {
      node->kind = ExprKind::kNamespaceRef;
      node->value = Value(expect_any_name());
    }
  }
  return node;
}

ExprPtr ExpressionParser::parse_list() {
  ExprPtr node = make(ExprKind::kList, line_here());
  advance();
  while (!at_operator("]")) {
    if (!node->children.empty()) expect_operator(",");
    if (at_operator("]")) break;
    node = add(std::move(node), parse_expression());
  }
  advance();
  return node;
}

ExprPtr ExpressionParser::parse_dict() {
  ExprPtr node = make(ExprKind::kDict, line_here());
  advance();
  while (!at_operator("}")) {
    if (!node->children.empty()) expect_operator(",");
    if (at_operator("}")) break;
    node = add(std::move(node), parse_expression());
    expect_operator(":");
    node = add(std::move(node), parse_expression());
  }
  advance();
  return node;
}

bool ExpressionParser::at_tuple_end(std::string_view end_word) const {
  return at(TokenKind::kPrintEnd) || at(TokenKind::kBlockEnd) || at_operator(")") ||
         (!end_word.empty() && at_name(end_word));
}

ExprPtr ExpressionParser::parse_tuple(const TupleRules& rules) {
  const int line = line_here();
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) expect_operator(",");
    if (at_tuple_end(rules.end_word)) break;
    items.push_back(rules.names_only ? parse_primary(rules.with_namespace) : parse_expression(rules.with_condition));
    if (!at_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !rules.in_parentheses) fail(fmt::format("expected an expression, got {}", describe_current()));
  ExprPtr node = make(ExprKind::kTuple, line);
  for (ExprPtr& item : items) node = add(std::move(node), std::move(item));
  return node;
}

void ExpressionParser::check_assignable(const Expr& target) const {
  if (target.kind == ExprKind::kTuple) {
    for (const ExprPtr& item : target.children) check_assignable(*item);
  } else if (target.kind != ExprKind::kName && target.kind != ExprKind::kNamespaceRef) {
    fail("cannot assign to this expression");
  }
}

ExprPtr ExpressionParser::parse_target(const TupleRules& rules) {
  ExprPtr target = parse_tuple(rules);
  check_assignable(*target);
  return target;
}

int ExpressionParser::parse_name_target() {
  const std::string name = expect_any_name();
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"})
    if (name == constant) fail(fmt::format("cannot assign to '{}'", name));
  return symbol(name);
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr node) {
  while (true) {
    if (at_operator(".") || at_operator("["))
      node = parse_subscript(std::move(node));
    else if (at_operator("("))
      node = parse_call(std::move(node));
    else
      return node;
  }
}

ExprPtr ExpressionParser::parse_filter_or_test(ExprPtr node) {
  while (true) {
    if (at_operator("|"))
      node = parse_filters(std::move(node), false);
    else if (at_name("is"))
      node = parse_test(std::move(node));
    else if (at_operator("("))
      node = parse_call(std::move(node));
    else
      return node;
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr object) {
  const int line = line_here();
  if (skip_operator(".")) {
    if (at(TokenKind::kName)) {
      ExprPtr node = add(make(ExprKind::kAttribute, line), std::move(object));
      node->name = expect_any_name();
      return node;
    }
    if (!at(TokenKind::kNumber) || !current().value.is_int()) fail("expected a name or a number after '.'");
    ExprPtr index = make(ExprKind::kConst, line);
    index->value = current().value;
    advance();
    return add(add(make(ExprKind::kItem, line), std::move(object)), std::move(index));
  }
  advance();
  std::vector<ExprPtr> keys;
  while (!at_operator("]")) {
    if (!keys.empty()) expect_operator(",");
    keys.push_back(parse_subscribed());
  }
  advance();
  ExprPtr key;
  if (keys.size() == 1) {
    key = std::move(keys[0]);
  } else {
    key = make(ExprKind::kTuple, line);
    for (ExprPtr& k : keys) key = add(std::move(key), std::move(k));
  }
  return add(add(make(ExprKind::kItem, line), std::move(object)), std::move(key));
}

ExprPtr ExpressionParser::parse_subscribed() {
  const int line = line_here();
  auto bound = [&]() -> ExprPtr {
    return at_operator(":") || at_operator("]") || at_operator(",") ? nullptr : parse_expression();
  };
  ExprPtr start = at_operator(":") ? nullptr : parse_expression();
  if (!skip_operator(":")) return start;
  ExprPtr stop = bound();
  ExprPtr step = skip_operator(":") ? bound() : nullptr;
  return add(add(add(make(ExprKind::kSlice, line), std::move(start)), std::move(stop)), std::move(step));
}

std::unique_ptr<ArgumentExprs> ExpressionParser::parse_arguments(Expr& owner) {
  auto out = std::make_unique<ArgumentExprs>();
  auto argument = [&] {
    ExprPtr e = parse_expression();
    owner.depth = std::max(owner.depth, e->depth + 1);
    return e;
  };
  auto require = [&](bool condition) {
    if (!condition) fail("invalid syntax in the arguments of this call");
  };
  expect_operator("(");
  bool first = true;
  while (!at_operator(")")) {
    if (!first) {
      expect_operator(",");
      if (at_operator(")")) break;
    }
    first = false;
    if (at_operator("*")) {
      require(!out->star && !out->double_star);
      advance();
      out->star = argument();
    } else if (at_operator("**")) {
      require(!out->double_star);
      advance();
      out->double_star = argument();
    } else if (at(TokenKind::kName) && ahead().kind == TokenKind::kOperator && ahead().text == "=") {
      require(!out->double_star);
      std::string name = expect_any_name();
      advance();
      out->named.emplace_back(std::move(name), argument());
    } else {
      require(!out->star && !out->double_star && out->named.empty());
      out->positional.push_back(argument());
    }
  }
  advance();
  return out;
}

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
  ExprPtr node = add(make(ExprKind::kCall, line_here()), std::move(callee));
  node->arguments = parse_arguments(*node);
  return node;
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = expect_any_name();
  while (skip_operator(".")) name.append(".").append(expect_any_name());
  return name;
}

ExprPtr ExpressionParser::parse_filters(ExprPtr input, bool starts_inline) {
  while (starts_inline || at_operator("|")) {
    if (!starts_inline) advance();
    starts_inline = false;
    ExprPtr node = add(make(ExprKind::kFilter, line_here()), std::move(input));
    const size_t name_at = current().offset;
    node->name = parse_dotted_name();
    node->builtin = find_filter(node->name);
    if (node->builtin < 0 && soft_ == 0) source_.fail(name_at, fmt::format("no filter named '{}'", node->name));
    node->arguments = at_operator("(") ? parse_arguments(*node) : std::make_unique<ArgumentExprs>();
    input = std::move(node);
  }
  return input;
}

ExprPtr ExpressionParser::parse_test(ExprPtr subject) {
  ExprPtr node = add(make(ExprKind::kTest, line_here()), std::move(subject));
  advance();
  const bool negated = skip_name("not");
  const size_t name_at = current().offset;
  node->name = parse_dotted_name();
  node->builtin = find_test(node->name);
  if (node->builtin < 0 && soft_ == 0) source_.fail(name_at, fmt::format("no test named '{}'", node->name));
  if (at_operator("(")) {
    node->arguments = parse_arguments(*node);
  } else {
    node->arguments = std::make_unique<ArgumentExprs>();
    const bool has_argument = (at(TokenKind::kName) && !at_name("else") && !at_name("or") && !at_name("and")) ||
                              at(TokenKind::kString) || at(TokenKind::kNumber) || at_operator("[") || at_operator("{");
    if (has_argument) {
      if (at_name("is")) fail("tests cannot be chained with 'is'");
      ExprPtr argument = parse_postfix(parse_primary());
      node->depth = std::max(node->depth, argument->depth + 1);
      node->arguments->positional.push_back(std::move(argument));
    }
  }
  const int line = node->line;
  return negated ? add(make(ExprKind::kNot, line), std::move(node)) : std::move(node);
}

}  // namespace braid
