#include "base/json.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"

namespace braid {

std::string read_text_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error("cannot read {}: {}", path, std::strerror(errno));
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

Json read_json_file(const std::string& path) {
  try {
    return Json::parse(read_text_file(path));
  } catch (const Json::parse_error& e) {
    throw Error("{} is not valid JSON: {}", path, e.what());
  }
}

std::string to_string(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}
std::string to_string(const OrderedJson& value, int indent) {
  return value.dump(indent, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace braid
