// Template source to syntax tree. Throws Error with line and column for what Jinja refuses, and for what this sandbox
// leaves out: include, import, extends (they would read files).
#pragma once
#include <string_view>

#include "text/jinja/ast.h"

namespace braid {

TemplateCode parse_template(std::string_view source);

}  // namespace braid
