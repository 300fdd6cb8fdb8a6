// The two ways to fail on purpose. Error is the user's fault (flag, file, combination): one sentence that gives the
// number, the rule and the nearest legal value; `main` prints it and exits 2. BRAID_CHECK is a bug in braid: it prints
// file, line and values and aborts, in release builds too. User input must never reach a CHECK.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace braid {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
  template <typename... Args>
  explicit Error(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// A run-time failure that is nobody's flag: a lost peer, a device that died. Exit code 1.
class RuntimeFailure : public std::runtime_error {
 public:
  explicit RuntimeFailure(const std::string& message) : std::runtime_error(message) {}
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace braid

#define BRAID_CHECK(condition, ...)                                                        \
  do {                                                                                     \
    if (!(condition)) [[unlikely]]                                                         \
      ::braid::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
