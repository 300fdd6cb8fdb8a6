#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>

#include "base/error.h"

namespace braid {
namespace {

std::atomic<LogLevel> current_level{LogLevel::kInfo};

spdlog::logger& logger() {
  static std::shared_ptr<spdlog::logger> instance = [] {
    auto made = spdlog::stderr_color_mt("braid");
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    made->set_level(spdlog::level::trace);
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) { current_level.store(level, std::memory_order_relaxed); }
LogLevel log_level() { return current_level.load(std::memory_order_relaxed); }

LogLevel parse_log_level(std::string_view name) {
  if (name == "debug" || name == "DEBUG") return LogLevel::kDebug;
  if (name == "info" || name == "INFO") return LogLevel::kInfo;
  if (name == "warn" || name == "warning" || name == "WARNING") return LogLevel::kWarn;
  if (name == "error" || name == "ERROR") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  throw Error("log level '{}' is unknown; use debug, info, warn, error or off", name);
}

void log_line(LogLevel level, std::string_view text) {
  static constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                          spdlog::level::err, spdlog::level::off};
  logger().log(kLevels[static_cast<int>(level)], "{}", text);
}

}  // namespace braid
