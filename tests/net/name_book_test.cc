#include "net/name_book.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace byteps {
namespace {

using testing::ElementsAre;

const Status kNoAnswer(Code::kDisconnected, "no name server answers");

TEST(NameBook, a_name_is_looked_up_once_however_many_ask_and_never_again_while_it_works) {
  NameBook book;
  const NameBook::Known first = book.ask("gpu2");
  EXPECT_TRUE(first.look_up);
  EXPECT_EQ(first.addresses, nullptr);
  EXPECT_FALSE(book.ask("gpu2").look_up) << "it is under way";
  EXPECT_TRUE(book.ask("gpu3").look_up) << "another name";
  book.answer("gpu2", NameBook::Addresses{"10.0.0.2", "fe80::2%eth0"});
  for (int i = 0; i < 3; ++i) {
    const NameBook::Known known = book.ask("gpu2");
    EXPECT_FALSE(known.look_up);
    ASSERT_NE(known.addresses, nullptr);
    EXPECT_THAT(*known.addresses, ElementsAre("10.0.0.2", "fe80::2%eth0"));
  }
}

TEST(NameBook, after_a_failure_a_name_is_looked_up_anew_beside_attempts_at_what_is_known) {
  NameBook book;
  (void)book.ask("gpu2");
  book.answer("gpu2", NameBook::Addresses{"10.0.0.2"});
  book.failed("gpu2");
  const NameBook::Known doubted = book.ask("gpu2");
  EXPECT_TRUE(doubted.look_up);
  ASSERT_NE(doubted.addresses, nullptr);
  EXPECT_THAT(*doubted.addresses, ElementsAre("10.0.0.2"));
  book.failed("gpu2");
  EXPECT_FALSE(book.ask("gpu2").look_up) << "one at a time";
  book.answer("gpu2", NameBook::Addresses{"10.0.0.7"});
  EXPECT_THAT(*book.ask("gpu2").addresses, ElementsAre("10.0.0.7"));
}

TEST(NameBook, a_look_up_that_fails_takes_nothing_away) {
  NameBook book;
  (void)book.ask("gpu2");
  book.answer("gpu2", NameBook::Addresses{"10.0.0.2"});
  book.failed("gpu2");
  EXPECT_TRUE(book.ask("gpu2").look_up);
  book.answer("gpu2", kNoAnswer);
  EXPECT_THAT(*book.ask("gpu2").addresses, ElementsAre("10.0.0.2"));
}

TEST(NameBook, where_nothing_is_known_the_next_who_asks_begins_another_look_up) {
  NameBook book;
  EXPECT_TRUE(book.ask("gpu2").look_up);
  book.answer("gpu2", kNoAnswer);
  const NameBook::Known again = book.ask("gpu2");
  EXPECT_TRUE(again.look_up);
  EXPECT_EQ(again.addresses, nullptr);
}

TEST(NameBook, forgets_names_at_rest_when_there_are_too_many_but_none_that_is_looked_up) {
  NameBook book;
  EXPECT_TRUE(book.ask("under way").look_up);
  for (std::size_t i = 0; i < NameBook::kNamesMax; ++i) {
    const std::string host = "host" + std::to_string(i);
    (void)book.ask(host);
    book.answer(host, NameBook::Addresses{"10.0.0.1"});
  }
  EXPECT_FALSE(book.ask("under way").look_up);
  EXPECT_TRUE(book.ask("host0").look_up) << "it was forgotten";
}

}  // namespace
}  // namespace byteps
