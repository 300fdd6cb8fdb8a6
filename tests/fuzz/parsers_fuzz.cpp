// Any bytes as a model's output, for every dialect: whole and in pieces the same reply, arguments always a JSON object.
// Input: one byte for the dialect, one for the size of the pieces, then the text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/parsers/json_repair.h"
#include "text/parsers/output_parser.h"

namespace {

struct Reply {
  std::string content, reasoning;
  std::vector<std::string> names, arguments;
  bool operator==(const Reply&) const = default;
};

void collect(Reply& reply, const std::vector<braid::OutputEvent>& events) {
  for (const auto& e : events) {
    switch (e.kind) {
      case braid::OutputEvent::Kind::kContent:
        reply.content += e.text;
        break;
      case braid::OutputEvent::Kind::kReasoning:
        reply.reasoning += e.text;
        break;
      case braid::OutputEvent::Kind::kToolStart:
        reply.names.push_back(e.name);
        break;
      case braid::OutputEvent::Kind::kToolArguments:
        reply.arguments.push_back(e.text);
        break;
    }
  }
}

Reply parse(const std::string& dialect, bool reasoning_open, std::string_view text, size_t piece) {
  braid::OutputParserOptions options;
  options.reasoning = "think";
  options.tools = dialect;
  options.reasoning_open = reasoning_open;
  options.make_id = [] { return std::string("id"); };
  const auto parser = braid::make_output_parser(options);
  Reply reply;
  for (size_t at = 0; at < text.size(); at += piece) collect(reply, parser->push(text.substr(at, piece)));
  collect(reply, parser->finish());
  return reply;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto& names = braid::tool_dialect_names();
  const std::string& dialect = names[data[0] % names.size()];
  const bool open = (data[0] & 0x80) != 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Reply whole = parse(dialect, open, text, std::max<size_t>(1, text.size()));
  if (whole != parse(dialect, open, text, 1 + data[1] % 16)) std::abort();
  if (whole.names.size() != whole.arguments.size()) std::abort();
  for (const std::string& arguments : whole.arguments)
    if (!braid::OrderedJson::parse(arguments, nullptr, false).is_object()) std::abort();
  return 0;
}
