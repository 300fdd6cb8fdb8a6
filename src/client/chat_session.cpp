#include "client/chat_session.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace braid {
namespace {

OrderedJson message(const char* role, const std::string& text) { return {{"role", role}, {"content", text}}; }

}  // namespace

ChatSession::ChatSession() : messages_(std::make_shared<OrderedJson>(OrderedJson::array())) {}

bool ChatSession::last_is(const char* role) const { return !messages_->empty() && messages_->back()["role"] == role; }

void ChatSession::set_system(const std::string& text) {
  OrderedJson& m = *messages_;
  if (!m.empty() && m[0]["role"] == "system") m.erase(0);
  if (!text.empty()) m.insert(m.begin(), message("system", text));
}

void ChatSession::ask(const std::string& text) { messages_->push_back(message("user", text)); }
void ChatSession::answered(const std::string& text) { messages_->push_back(message("assistant", text)); }

void ChatSession::take_back() {
  if (last_is("user")) messages_->erase(messages_->size() - 1);
}

bool ChatSession::reopen() {
  if (!last_is("assistant")) return false;
  messages_->erase(messages_->size() - 1);
  return last_is("user");
}

void ChatSession::reset() {
  OrderedJson kept = OrderedJson::array();
  if (!messages_->empty() && (*messages_)[0]["role"] == "system") kept.push_back((*messages_)[0]);
  *messages_ = std::move(kept);
}

size_t ChatSession::n_answers() const {
  size_t n = 0;
  for (const OrderedJson& m : *messages_) n += m["role"] == "assistant";
  return n;
}

void ChatSession::save(const std::string& file) const {
  std::ofstream out(file, std::ios::binary);
  out << to_string(*messages_, 1) << '\n';
  if (!out.flush()) throw Error("cannot write {}: {}", file, std::strerror(errno));
}

void ChatSession::load(const std::string& file) {
  OrderedJson read = OrderedJson::parse(read_text_file(file), nullptr, false);
  bool good = read.is_array();
  for (size_t i = 0; good && i < read.size(); ++i) {
    const OrderedJson& m = read[i];
    good = m.is_object() && m.contains("role") && m["role"].is_string() && m.contains("content");
  }
  if (!good) throw Error("{} does not hold a JSON list of messages with role and content", file);
  *messages_ = std::move(read);
  take_back();  // a question that was never answered would be asked with the next one
}

}  // namespace braid
