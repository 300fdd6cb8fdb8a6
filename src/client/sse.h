// Server-sent events out of a byte stream that is cut anywhere: the data of each event, comments left out.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace braid {

class SseParser {
 public:
  explicit SseParser(std::function<void(std::string_view data)> on_event) : on_event_(std::move(on_event)) {}
  void feed(std::string_view bytes);

 private:
  void take_line(std::string_view line);

  std::function<void(std::string_view)> on_event_;
  std::string rest_;  // an unfinished line
  std::string data_;  // of the event being read
  bool any_ = false;  // it has a data line, if an empty one
};

}  // namespace braid
