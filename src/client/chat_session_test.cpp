#include "client/chat_session.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace braid {
namespace {

std::string text(const ChatSession& s) {
  std::string all;
  for (const OrderedJson& m : s.messages()) {
    all += m["role"].get<std::string>().substr(0, 1) + ":" + m["content"].get<std::string>() + " ";
  }
  return all;
}

TEST(ChatSession, Turns) {
  ChatSession s;
  s.ask("1");
  s.answered("one");
  s.ask("2");
  s.take_back();
  EXPECT_EQ(text(s), "u:1 a:one ");
  s.set_system("brief");
  s.set_system("long");
  EXPECT_EQ(text(s), "s:long u:1 a:one ");
  EXPECT_EQ(s.n_answers(), 1u);
  EXPECT_TRUE(s.reopen());
  EXPECT_EQ(text(s), "s:long u:1 ");
  EXPECT_FALSE(s.reopen());
  s.reset();
  EXPECT_EQ(text(s), "s:long ");
  s.set_system("");
  EXPECT_EQ(text(s), "");
}

TEST(ChatSession, SavesAndLoads) {
  const std::string file = ::testing::TempDir() + "chat.json";
  ChatSession s;
  s.set_system("brief");
  s.ask("Zürich?\n");
  s.answered("yes");
  s.ask("unanswered");
  s.save(file);
  ChatSession other;
  other.load(file);
  EXPECT_EQ(text(other), "s:brief u:Zürich?\n a:yes ");
  for (const char* bad : {"{}", "[1]", "[{\"role\": 1, \"content\": 2}]", "[", "[{\"role\": \"user\"}]"}) {
    std::ofstream(file) << bad;
    EXPECT_THROW(other.load(file), Error) << bad;
  }
  EXPECT_EQ(text(other), "s:brief u:Zürich?\n a:yes ");  // untouched
  EXPECT_THROW(other.load(file + ".missing"), Error);
  EXPECT_THROW(other.save("/nowhere/x"), Error);
}

}  // namespace
}  // namespace braid
