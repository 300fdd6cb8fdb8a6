// A conversation as the chat API takes it: an optional system text, then questions and answers in turn. What is saved
// is the list of messages itself, which `braid generate --messages` reads as well.
#pragma once
#include <memory>
#include <string>

#include "base/json.h"

namespace braid {

class ChatSession {
 public:
  ChatSession();
  void set_system(const std::string& text);  // empty: none
  void ask(const std::string& text);         // the messages end with a question now
  void answered(const std::string& text);    // ... with its answer
  void take_back();                          // drops the unanswered question
  bool reopen();                             // drops the last answer, to be asked again; false where there is none
  void reset();                              // everything but the system text

  const OrderedJson& messages() const { return *messages_; }
  size_t n_answers() const;
  void save(const std::string& file) const;  // throw Error
  void load(const std::string& file);

 private:
  bool last_is(const char* role) const;

  std::shared_ptr<OrderedJson> messages_;  // owned; nlohmann's type is only declared here
};

}  // namespace braid
