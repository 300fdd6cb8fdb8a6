#include "client/sse.h"

namespace braid {

void SseParser::feed(std::string_view bytes) {
  rest_.append(bytes);
  size_t at = 0;
  for (size_t end; (end = rest_.find('\n', at)) != std::string::npos; at = end + 1) {
    std::string_view line(rest_.data() + at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    take_line(line);
  }
  rest_.erase(0, at);
}

void SseParser::take_line(std::string_view line) {
  if (line.empty()) {  // the event's end
    if (any_) on_event_(data_);
    data_.clear();
    any_ = false;
    return;
  }
  if (!line.starts_with("data:")) return;  // a comment, or a field that nobody here needs
  line.remove_prefix(5);
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (any_) data_ += '\n';
  data_ += line;
  any_ = true;
}

}  // namespace braid
