// The one exception of a bad request: status, OpenAI error type, the field at fault and a sentence. Thrown while a
// request is parsed, rendered or admitted; caught in one place, Server::respond_safely.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace braid {

class ApiError : public std::runtime_error {
 public:
  ApiError(int http_status, std::string error_type, std::string field, const std::string& message,
           std::string error_code = "")
      : std::runtime_error(message),
        status(http_status),
        type(std::move(error_type)),
        param(std::move(field)),
        code(std::move(error_code)) {}

  int status;
  std::string type;   // "invalid_request_error", "not_found_error", ...
  std::string param;  // the field at fault; empty: none, null in the reply
  std::string code;   // machine-readable cause where OpenAI has one; empty: null in the reply
};

// A field that is wrong: 400 naming it.
template <typename... Args>
[[nodiscard]] ApiError bad_field(const std::string& param, fmt::format_string<Args...> format, Args&&... args) {
  return ApiError(400, "invalid_request_error", param, fmt::format(format, std::forward<Args>(args)...));
}

// {"error": {"message", "type", "param", "code"}}
std::string error_body(const ApiError& error);

}  // namespace braid
