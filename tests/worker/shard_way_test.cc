// What is said to a shard beside frames: in order, and again where it has to be.
#include "worker/shard_way.h"

#include <string>

#include <gtest/gtest.h>

namespace byteps {
namespace {

using wire::Kind;

Word word(Kind kind, std::uint64_t key, bool lasts = false) {
  return {.kind = kind, .key = Key(key), .lasts = lasts};
}

// What is said now, by keys, until there is nothing more.
std::string said(ShardWay& way) {
  std::string text;
  while (const auto next = way.next_word()) {
    text += (text.empty() ? "" : " ") + std::to_string(next->key.value);
    way.word_is_said();
  }
  return text;
}

class ShardWayTest : public testing::Test {
 protected:
  ShardWayTest() { way_.up(); }
  void reconnect() {
    way_.down();
    way_.up();
  }
  ShardWay way_{true};
};

TEST_F(ShardWayTest, words_are_said_once_and_in_order) {
  way_.say(word(Kind::kDeclare, 1, true));
  way_.say(word(Kind::kMissing, 2));
  way_.say(word(Kind::kMismatch, 3, true));
  EXPECT_EQ(said(way_), "1 2 3");
  EXPECT_EQ(said(way_), "");
  way_.say(word(Kind::kMissing, 4));
  EXPECT_EQ(said(way_), "4");
}

TEST_F(ShardWayTest, words_that_last_are_said_again_on_each_connection_and_others_not) {
  way_.say(word(Kind::kMissing, 1));
  way_.say(word(Kind::kDeclare, 2, true));
  way_.say(word(Kind::kMissing, 3));
  way_.say(word(Kind::kMismatch, 4, true));
  EXPECT_EQ(said(way_), "1 2 3 4");
  reconnect();
  EXPECT_EQ(said(way_), "2 4");
  reconnect();
  way_.next_word();
  way_.word_is_said();  // only the first of them, and that connection ends too
  reconnect();
  EXPECT_EQ(said(way_), "2 4");
}

TEST_F(ShardWayTest, words_that_were_not_said_yet_outlive_a_connection) {
  way_.say(word(Kind::kMissing, 1));
  way_.say(word(Kind::kMissing, 2));
  way_.word_is_said();
  reconnect();
  EXPECT_EQ(said(way_), "2");
}

TEST_F(ShardWayTest, what_is_taken_back_is_not_said_any_more_whether_it_was_or_not) {
  way_.say(word(Kind::kDeclare, 1, true));
  way_.say(word(Kind::kDeclare, 2, true));
  way_.say(word(Kind::kMismatch, 1, true));
  EXPECT_EQ(said(way_), "1 2 1");
  way_.say(word(Kind::kDeclare, 3, true));
  way_.take_back(Kind::kDeclare, Key(1));
  EXPECT_EQ(said(way_), "3") << "nothing is passed over, and nothing said twice";
  way_.say(word(Kind::kDeclare, 4, true));
  way_.take_back(Kind::kDeclare, Key(4));
  EXPECT_EQ(said(way_), "");
  reconnect();
  EXPECT_EQ(said(way_), "2 1 3") << "the mismatch about that key is another word";
}

TEST_F(ShardWayTest, a_word_is_kept_by_who_sends_it_when_it_is_taken_back) {
  way_.say({.kind = Kind::kDeclare, .key = Key(1), .payload = {std::byte{7}}, .lasts = true});
  const auto lent = way_.next_word();
  way_.word_is_said();
  way_.take_back(Kind::kDeclare, Key(1));
  ASSERT_EQ(lent->payload.size(), 1U);
  EXPECT_EQ(lent->payload[0], std::byte{7});
}

}  // namespace
}  // namespace byteps
