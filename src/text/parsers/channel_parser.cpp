// See channel_parser.h. A header runs from <|start|> (or the beginning) to <|message|>.
#include "text/parsers/channel_parser.h"

#include <algorithm>
#include <utility>

#include "text/parsers/json_repair.h"
#include "text/parsers/marker_scan.h"

namespace braid {
namespace {

constexpr std::string_view kMarkers[] = {"<|channel|>", "<|message|>", "<|end|>",      "<|start|>",
                                         "<|call|>",    "<|return|>",  "<|constrain|>"};
enum Marker : size_t { kChannel, kMessage, kEnd, kStart, kCall, kReturn, kConstrain };

std::string_view word_after(std::string_view text, std::string_view prefix) {
  const size_t at = text.find(prefix);
  if (at == std::string_view::npos) return "";
  text.remove_prefix(at + prefix.size());
  return text.substr(0, text.find_first_of(" \t\r\n<"));
}

// Before the first marker: a reply to <|start|>assistant may go on with its recipient; other text is content.
bool may_be_header(std::string_view text) {
  static constexpr std::string_view kRecipient = " to=";
  return kRecipient.starts_with(text) || text.starts_with(kRecipient);
}

}  // namespace

std::vector<OutputEvent> ChannelParser::push(std::string_view delta) {
  buffer_ += delta;
  advance(false);
  return std::exchange(events_, {});
}

std::vector<OutputEvent> ChannelParser::finish() {
  advance(true);
  if (state_ == State::kBody) end_body();
  return std::exchange(events_, {});
}

void ChannelParser::advance(bool is_final) {
  while (true) {
    const MarkerHit hit = find_marker(buffer_, kMarkers);
    const size_t certain =
        hit.found() ? hit.at : buffer_.size() - (is_final ? 0 : possible_marker_suffix(buffer_, kMarkers));
    const std::string_view text = std::string_view(buffer_).substr(0, certain);
    if (state_ == State::kBody)
      write_body(text);
    else
      header_ += text;
    if (state_ == State::kHeader && is_first_ && (!may_be_header(header_) || (is_final && !hit.found()))) {
      state_ = State::kBody;
      write_body(std::exchange(header_, {}));
    }
    buffer_.erase(0, certain);
    if (!hit.found()) return;
    buffer_.erase(0, kMarkers[hit.which].size());
    is_first_ = false;
    if (hit.which == kMessage && state_ == State::kHeader) {
      begin_body();
    } else if (hit.which == kChannel || hit.which == kConstrain) {
      if (state_ == State::kBody) end_body();
      header_ += kMarkers[hit.which];
    } else {  // the end of a message, or the start of one whose predecessor was not ended
      if (state_ == State::kBody) end_body();
      header_.clear();
    }
  }
}

void ChannelParser::begin_body() {
  const std::string_view recipient = word_after(header_, "to=");
  const std::string_view channel = word_after(header_, kMarkers[kChannel]);
  state_ = State::kBody;
  target_ = Target::kContent;
  if (!recipient.empty() && recipient != "assistant") {
    target_ = Target::kTool;
    tool_name_ = recipient.starts_with("functions.") ? recipient.substr(10) : recipient;
    arguments_.clear();
  } else if (channel == "analysis") {
    target_ = Target::kReasoning;
  }
  header_.clear();
}

void ChannelParser::write_body(std::string_view text) {
  if (text.empty()) return;
  if (target_ == Target::kTool) {
    arguments_ += text;
    return;
  }
  const auto kind = target_ == Target::kReasoning ? OutputEvent::Kind::kReasoning : OutputEvent::Kind::kContent;
  if (!events_.empty() && events_.back().kind == kind)
    events_.back().text += text;
  else
    events_.push_back({kind, std::string(text), 0, "", ""});
}

void ChannelParser::end_body() {
  state_ = State::kHeader;
  if (target_ == Target::kTool) {
    const int index = n_calls_++;
    events_.push_back({OutputEvent::Kind::kToolStart, "", index, options_.make_id(), std::exchange(tool_name_, {})});
    events_.push_back(
        {OutputEvent::Kind::kToolArguments, repair_arguments(std::exchange(arguments_, {})), index, "", ""});
  }
  target_ = Target::kContent;
}

}  // namespace braid
