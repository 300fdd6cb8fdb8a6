// Statements: for, if, set, macro, call, filter, with, block, generation, print, break, continue.
#include "text/jinja/parser.h"

#include <algorithm>

#include "base/error.h"
#include "text/jinja/parser_base.h"

namespace braid {
namespace {

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  TemplateCode parse() {
    TemplateCode code;
    code.body = parse_block({});
    code.symbols = std::move(symbols_);
    return code;
  }

 private:
  using EndWords = std::initializer_list<std::string_view>;

  // Statements up to a tag that starts with one of `ends`, which stays current; to the end of the template when empty.
  Block parse_block(EndWords ends) {
    Block body;
    while (!at(TokenKind::kEnd)) {
      if (at(TokenKind::kText)) {
        auto text = make_stmt(StmtKind::kText);
        text->text = current().text;
        advance();
        body.push_back(std::move(text));
      } else if (at(TokenKind::kPrintBegin)) {
        auto print = make_stmt(StmtKind::kPrint);
        advance();
        print->exprs.push_back(parse_tuple({}));
        expect(TokenKind::kPrintEnd, "'}}'");
        body.push_back(std::move(print));
      } else {
        expect(TokenKind::kBlockBegin, "a tag");
        for (const std::string_view word : ends)
          if (at_name(word)) return body;
        parse_statement(body);
        expect(TokenKind::kBlockEnd, "'%}'");
      }
    }
    if (ends.size() != 0) fail(fmt::format("the template ends before '{}'", *(ends.end() - 1)));
    return body;
  }

  // The body of a statement: the tag's end, then a block.
  Block parse_body(EndWords ends) {
    skip_operator(":");
    expect(TokenKind::kBlockEnd, "'%}'");
    return parse_block(ends);
  }
  Block parse_body_to(std::string_view end) {
    Block body = parse_body({end});
    advance();
    return body;
  }

  std::unique_ptr<Stmt> make_stmt(StmtKind kind) {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->line = line_here();
    return s;
  }

  void parse_statement(Block& body) {
    static const std::pair<std::string_view, std::unique_ptr<Stmt> (Parser::*)()> kStatements[] = {
        {"for", &Parser::parse_for},
        {"if", &Parser::parse_if},
        {"set", &Parser::parse_set},
        {"macro", &Parser::parse_macro},
        {"call", &Parser::parse_call_block},
        {"filter", &Parser::parse_filter_block},
        {"with", &Parser::parse_with},
        {"block", &Parser::parse_named_block},
        {"generation", &Parser::parse_generation},
        {"print", &Parser::parse_print},
        {"break", &Parser::parse_loop_control},
        {"continue", &Parser::parse_loop_control}};
    const Nesting level(*this);
    if (!at(TokenKind::kName)) fail(fmt::format("expected the name of a tag, got {}", describe_current()));
    for (const auto& [word, parse_one] : kStatements)
      if (at_name(word)) {
        body.push_back((this->*parse_one)());
        return;
      }
    for (const std::string_view word : {"include", "import", "from", "extends"})
      if (at_name(word)) fail(fmt::format("'{}' is not available: a chat template is a single file", word));
    fail(fmt::format("unknown tag {}", describe_current()));
  }

  std::unique_ptr<Stmt> parse_for() {
    auto s = make_stmt(StmtKind::kFor);
    advance();
    s->target = parse_target({.names_only = true, .end_word = "in"});
    expect_name("in");
    s->exprs.push_back(parse_tuple({.with_condition = false, .end_word = "recursive"}));
    s->exprs.push_back(skip_name("if") ? parse_expression() : nullptr);
    s->recursive = skip_name("recursive");
    ++loops_;
    s->body = parse_body({"endfor", "else"});
    --loops_;
    if (skip_name("else"))
      s->otherwise = parse_body_to("endfor");
    else
      advance();
    return s;
  }

  std::unique_ptr<Stmt> parse_if() {
    auto s = make_stmt(StmtKind::kIf);
    ++soft_;
    do {
      advance();  // if, elif
      s->exprs.push_back(parse_tuple({.with_condition = false}));
      s->bodies.push_back(parse_body({"elif", "else", "endif"}));
    } while (at_name("elif"));
    if (skip_name("else"))
      s->otherwise = parse_body_to("endif");
    else
      advance();
    --soft_;
    return s;
  }

  std::unique_ptr<Stmt> parse_set() {
    auto s = make_stmt(StmtKind::kSet);
    advance();
    s->target = parse_target({.names_only = true, .with_namespace = true});
    if (skip_operator("=")) {
      s->exprs.push_back(parse_tuple({}));
      return s;
    }
    s->kind = StmtKind::kSetBlock;
    s->exprs.push_back(parse_filters(nullptr, false));
    s->body = parse_nested_body_to("endset");
    return s;
  }

  void parse_signature(MacroCode& macro) {
    expect_operator("(");
    while (!at_operator(")")) {
      if (!macro.parameters.empty()) expect_operator(",");
      const std::string name = current().text;
      Parameter parameter{name, parse_name_target(), nullptr};
      if (skip_operator("="))
        parameter.fallback = parse_expression();
      else if (!macro.parameters.empty() && macro.parameters.back().fallback)
        fail("a parameter without default follows one with a default");
      macro.parameters.push_back(std::move(parameter));
    }
    advance();
  }

  // The body of a macro or a call block. Jinja passes caller, kwargs and varargs only to macros that mention them.
  void parse_macro_body(MacroCode& macro, std::string_view end) {
    const std::pair<std::string_view, bool*> implicit[] = {
        {"caller", &macro.uses_caller}, {"kwargs", &macro.uses_kwargs}, {"varargs", &macro.uses_varargs}};
    const size_t begin = mark();
    macro.body = parse_nested_body_to(end);
    for (const auto& [name, used] : implicit) *used = mentioned_since(begin, name);
  }

  // Loop controls do not reach out of a body that is a function in Jinja.
  Block parse_nested_body_to(std::string_view end) {
    const int outer = std::exchange(loops_, 0);
    Block body = parse_body_to(end);
    loops_ = outer;
    return body;
  }

  std::unique_ptr<Stmt> parse_macro() {
    auto s = make_stmt(StmtKind::kMacro);
    advance();
    s->macro = std::make_unique<MacroCode>();
    s->macro->name = current().text;
    s->symbol = parse_name_target();
    parse_signature(*s->macro);
    parse_macro_body(*s->macro, "endmacro");
    return s;
  }

  std::unique_ptr<Stmt> parse_call_block() {
    auto s = make_stmt(StmtKind::kCallBlock);
    advance();
    s->macro = std::make_unique<MacroCode>();
    s->macro->name = "caller";
    if (at_operator("(")) parse_signature(*s->macro);
    s->exprs.push_back(parse_expression());
    if (s->exprs[0]->kind != ExprKind::kCall) fail("'call' needs a call");
    parse_macro_body(*s->macro, "endcall");
    return s;
  }

  std::unique_ptr<Stmt> parse_filter_block() {
    auto s = make_stmt(StmtKind::kFilterBlock);
    advance();
    s->exprs.push_back(parse_filters(nullptr, true));
    s->body = parse_nested_body_to("endfilter");
    return s;
  }

  std::unique_ptr<Stmt> parse_with() {
    auto s = make_stmt(StmtKind::kWith);
    advance();
    while (!at(TokenKind::kBlockEnd)) {
      if (!s->targets.empty()) expect_operator(",");
      s->targets.push_back(parse_target({.names_only = true}));
      expect_operator("=");
      s->exprs.push_back(parse_expression());
    }
    s->body = parse_body_to("endwith");
    return s;
  }

  std::unique_ptr<Stmt> parse_named_block() {
    auto s = make_stmt(StmtKind::kScope);
    advance();
    const std::string name = expect_any_name();
    skip_name("scoped");
    s->body = parse_nested_body_to("endblock");
    skip_name(name);
    return s;
  }

  std::unique_ptr<Stmt> parse_generation() {
    auto s = make_stmt(StmtKind::kScope);
    advance();
    s->body = parse_nested_body_to("endgeneration");
    return s;
  }

  std::unique_ptr<Stmt> parse_print() {
    auto s = make_stmt(StmtKind::kPrint);
    advance();
    while (!at(TokenKind::kBlockEnd)) {
      if (!s->exprs.empty()) expect_operator(",");
      s->exprs.push_back(parse_expression());
    }
    return s;
  }

  std::unique_ptr<Stmt> parse_loop_control() {
    if (loops_ == 0) fail(fmt::format("'{}' outside of a loop", current().text));
    auto s = make_stmt(at_name("break") ? StmtKind::kBreak : StmtKind::kContinue);
    advance();
    return s;
  }

  int loops_ = 0;
};

}  // namespace

TemplateCode parse_template(std::string_view raw) {
  const TemplateSource source(raw);
  return Parser(source, tokenize(source)).parse();
}

}  // namespace braid
