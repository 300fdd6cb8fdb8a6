// The token cursor, the symbol table and the depth bound that the two halves of the parser (expressions, statements)
// share.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace braid {

class ExpressionParser {
 public:
  ExpressionParser(const TemplateSource& source, std::vector<Token> tokens)
      : source_(source), tokens_(std::move(tokens)) {}

 protected:
  struct TupleRules {
    bool names_only = false, with_condition = true, in_parentheses = false, with_namespace = false;
    std::string_view end_word = {};
  };
  ExprPtr parse_expression(bool with_condition = true);
  ExprPtr parse_tuple(const TupleRules& rules);
  ExprPtr parse_filters(ExprPtr input, bool starts_inline);
  ExprPtr parse_target(const TupleRules& rules);
  int parse_name_target();  // a single name; its symbol

  const Token& current() const { return tokens_[position_]; }
  const Token& ahead() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  void advance() { position_ += position_ + 1 < tokens_.size(); }
  bool at(TokenKind kind) const { return current().kind == kind; }
  bool at_operator(std::string_view text) const { return at(TokenKind::kOperator) && current().text == text; }
  bool at_name(std::string_view text) const { return at(TokenKind::kName) && current().text == text; }
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);
  std::string expect_any_name();
  void expect(TokenKind kind, std::string_view what);
  [[noreturn]] void fail(const std::string& what) const { source_.fail(current().offset, what); }
  std::string describe_current() const;
  size_t mark() const { return position_; }
  bool mentioned_since(size_t mark, std::string_view name) const;  // as a name anywhere in the tokens since `mark`

  int symbol(const std::string& name);
  int line_here();
  ExprPtr make(ExprKind kind, int line);
  ExprPtr add(ExprPtr parent, ExprPtr child);  // appends, keeps `depth`

  // Guards one level of nesting in the source.
  struct Nesting {
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    ExpressionParser& parser;
  };

  const TemplateSource& source_;
  std::vector<std::string> symbols_;
  int soft_ = 0;  // inside an `if`, where Jinja reports an unknown filter only when it is reached

 private:
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters = true);
  ExprPtr parse_primary(bool with_namespace = false);
  ExprPtr parse_name(bool with_namespace);
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_filter_or_test(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr node);
  ExprPtr parse_subscribed();
  ExprPtr parse_call(ExprPtr callee);
  ExprPtr parse_test(ExprPtr node);
  std::unique_ptr<Arguments> parse_arguments(Expr& owner);
  std::string parse_dotted_name();
  bool at_tuple_end(std::string_view end_word) const;
  void check_assignable(const Expr& target) const;

  std::vector<Token> tokens_;
  size_t position_ = 0;
  int nesting_ = 0;
  size_t line_offset_ = 0;  // line_here() counts newlines from here
  int line_ = 1;
};

}  // namespace braid
