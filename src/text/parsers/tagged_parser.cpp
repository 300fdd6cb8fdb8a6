// See tagged_parser.h. Text stays in the buffer until it is certain to be no part of a marker.
#include "text/parsers/tagged_parser.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "text/parsers/marker_scan.h"

namespace braid {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
constexpr std::string_view kSpace = " \t\r\n";
constexpr size_t kMaxRejected = 32;  // end markers inside values before one is believed: bounds the rescans of a body

size_t size_without_trailing(std::string_view text, std::string_view characters) {
  const size_t last = text.find_last_not_of(characters);
  return last == std::string_view::npos ? 0 : last + 1;
}

}  // namespace

TaggedParser::TaggedParser(OutputParserOptions options, const ToolDialect* dialect)
    : options_(std::move(options)), dialect_(dialect), types_(parameter_types(options_.tool_schemas)) {
  options_.tool_schemas = nullptr;
  const bool reasons = !options_.reasoning.empty();
  state_ = !reasons ? State::kContent : options_.reasoning_open ? State::kReasoning : State::kStart;
  drop_newlines_ = state_ == State::kReasoning;
}

std::vector<OutputEvent> TaggedParser::push(std::string_view delta) {
  buffer_ += delta;
  advance(false);
  return std::exchange(events_, {});
}

std::vector<OutputEvent> TaggedParser::finish() {
  advance(true);
  return std::exchange(events_, {});
}

void TaggedParser::advance(bool is_final) {
  bool more = true;
  while (more) switch (state_) {
      case State::kStart:
        more = advance_start(is_final);
        break;
      case State::kReasoning:
        more = advance_reasoning(is_final);
        break;
      case State::kContent:
        more = advance_content(is_final);
        break;
      case State::kCall:
        more = advance_call(is_final);
        break;
    }
}

bool TaggedParser::advance_start(bool is_final) {
  const size_t begin = std::min(buffer_.find_first_not_of(kSpace), buffer_.size());
  const std::string_view rest = std::string_view(buffer_).substr(begin);
  if (rest.starts_with(kThink)) {
    buffer_.erase(0, begin + kThink.size());
    state_ = State::kReasoning;
    drop_newlines_ = true;
    return true;
  }
  if (!is_final && kThink.starts_with(rest)) return false;
  state_ = State::kContent;
  return true;
}

bool TaggedParser::drop_leading_newlines(bool is_final) {
  if (!drop_newlines_) return true;
  const size_t begin = buffer_.find_first_not_of("\r\n");
  buffer_.erase(0, begin);
  if (buffer_.empty() && !is_final) return false;
  drop_newlines_ = false;
  return true;
}

bool TaggedParser::advance_reasoning(bool is_final) {
  if (drop_newlines_) {
    // A model may repeat the <think> that its prompt already opened.
    const size_t begin = std::min(buffer_.find_first_not_of("\r\n"), buffer_.size());
    const std::string_view rest = std::string_view(buffer_).substr(begin);
    if (rest.starts_with(kThink)) {
      buffer_.erase(0, begin + kThink.size());
      return true;
    }
    if (!is_final && kThink.starts_with(rest)) return false;
    drop_leading_newlines(true);
  }
  std::vector<std::string_view> ends = {kEndThink};
  if (dialect_ != nullptr && dialect_->ends_reasoning) {
    ends.insert(ends.end(), dialect_->section_begin.begin(), dialect_->section_begin.end());
    if (!dialect_->only_in_section) ends.push_back(dialect_->call_begin);
  }
  const MarkerHit hit = find_marker(buffer_, ends);
  const size_t certain = hit.found() ? hit.at
                         : is_final  ? buffer_.size()
                                     : buffer_.size() - possible_marker_suffix(buffer_, ends);
  const size_t kept = size_without_trailing(std::string_view(buffer_).substr(0, certain), "\r\n");
  emit(OutputEvent::Kind::kReasoning, std::string_view(buffer_).substr(0, kept));
  if (!hit.found()) {
    buffer_.erase(0, is_final ? buffer_.size() : kept);
    return false;
  }
  buffer_.erase(0, hit.at + (hit.which == 0 ? kEndThink.size() : 0));
  state_ = State::kContent;
  drop_newlines_ = true;
  return true;
}

bool TaggedParser::advance_content(bool is_final) {
  if (!drop_leading_newlines(is_final)) return false;
  if (dialect_ == nullptr) {
    emit(OutputEvent::Kind::kContent, buffer_);
    buffer_.clear();
    return false;
  }
  std::vector<std::string_view> markers;
  if (in_section_ || !dialect_->only_in_section) markers.push_back(dialect_->call_begin);
  const size_t n_calls = markers.size();
  markers.insert(markers.end(), dialect_->section_begin.begin(), dialect_->section_begin.end());
  const size_t n_begins = markers.size();
  markers.insert(markers.end(), dialect_->section_end.begin(), dialect_->section_end.end());
  const MarkerHit hit = find_marker(buffer_, markers);
  if (!hit.found()) {
    const size_t certain = buffer_.size() - (is_final ? 0 : possible_marker_suffix(buffer_, markers));
    const std::string_view text = std::string_view(buffer_).substr(0, certain);
    // White space is withheld until it is known not to be the layout before a call.
    const size_t kept = is_final && !has_calls_ ? certain : size_without_trailing(text, kSpace);
    emit_content(text.substr(0, kept));
    buffer_.erase(0, is_final ? buffer_.size() : kept);
    return false;
  }
  const std::string_view before = std::string_view(buffer_).substr(0, hit.at);
  const size_t kept = size_without_trailing(before, kSpace);
  emit_content(before.substr(0, kept));
  space_before_call_ = before.substr(kept);
  buffer_.erase(0, hit.at + markers[hit.which].size());
  if (hit.which < n_calls) {
    state_ = State::kCall;
    scanned_ = n_rejected_ = first_rejected_ = 0;
  } else {
    in_section_ = hit.which < n_begins;
    after_call_ = has_calls_ = true;
  }
  return true;
}

bool TaggedParser::advance_call(bool is_final) {
  // A forgotten end marker shows in the next begin or in the section's end.
  std::vector<std::string_view> ends = {dialect_->call_end, dialect_->call_begin};
  ends.insert(ends.end(), dialect_->section_end.begin(), dialect_->section_end.end());
  while (true) {
    const MarkerHit hit = find_marker(buffer_, ends, scanned_);
    if (!hit.found()) break;
    const size_t end_size = hit.which == 0 ? dialect_->call_end.size() : 0;
    if (n_rejected_ >= kMaxRejected || dialect_->is_complete(std::string_view(buffer_).substr(0, hit.at)))
      return end_call(hit.at, end_size);
    if (n_rejected_++ == 0) first_rejected_ = hit.at;
    scanned_ = hit.at + ends[hit.which].size();
  }
  if (!is_final) {
    scanned_ = std::max(scanned_, buffer_.size() - possible_marker_suffix(buffer_, ends));
    return false;
  }
  if (n_rejected_ > 0) {
    const bool at_end_marker = std::string_view(buffer_).substr(first_rejected_).starts_with(dialect_->call_end);
    return end_call(first_rejected_, at_end_marker ? dialect_->call_end.size() : 0);
  }
  return end_call(buffer_.size(), 0);
}

// Reports the call whose body is the buffer's first `body_size` bytes; one that names no function is content.
bool TaggedParser::end_call(size_t body_size, size_t end_size) {
  const std::string_view body = std::string_view(buffer_).substr(0, body_size);
  if (auto call = dialect_->parse(body, types_)) {
    const int index = n_calls_++;
    std::string id = call->id.empty() ? options_.make_id() : std::move(call->id);
    events_.push_back({OutputEvent::Kind::kToolStart, "", index, std::move(id), std::move(call->name)});
    events_.push_back({OutputEvent::Kind::kToolArguments, std::move(call->arguments), index, "", ""});
    after_call_ = has_calls_ = true;
  } else {
    emit_content(
        fmt::format("{}{}{}", space_before_call_, dialect_->call_begin, buffer_.substr(0, body_size + end_size)));
  }
  buffer_.erase(0, body_size + end_size);
  state_ = State::kContent;
  return true;
}

void TaggedParser::emit(OutputEvent::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (!events_.empty() && events_.back().kind == kind)
    events_.back().text += text;
  else
    events_.push_back({kind, std::string(text), 0, "", ""});
}

void TaggedParser::emit_content(std::string_view text) {
  if (after_call_) {
    const size_t begin = text.find_first_not_of(kSpace);
    if (begin == std::string_view::npos) return;
    text.remove_prefix(begin);
    after_call_ = false;
  }
  emit(OutputEvent::Kind::kContent, text);
}

}  // namespace braid
