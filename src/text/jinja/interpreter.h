// Walks a template's tree and writes the prompt.
#pragma once
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/runtime.h"

namespace braid {

using TemplateVariables = std::vector<std::pair<std::string, Value>>;

// Throws Error "chat template, line N: ..." for whatever the template does wrong, raise_exception included. Any thread;
// `code` is only read.
std::string render_template(const TemplateCode& code, const TemplateVariables& variables, const std::tm& now,
                            const JinjaLimits& limits = {});

}  // namespace braid
