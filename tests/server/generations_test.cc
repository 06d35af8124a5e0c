// In which generation of inputs workers are, by their own words.
#include "server/generations.h"

#include <gtest/gtest.h>

namespace byteps {
namespace {

// Of four workers.
class GenerationsTest : public testing::Test {
 protected:
  GenerationsTest() { generations_.begin_epoch(4); }
  void hear(std::uint32_t from, std::uint32_t generation, bool has_no_more = false) {
    const auto ahead = generations_.hear(WorkerRank(from), generation, has_no_more);
    ASSERT_TRUE(ahead);
    if (has_no_more && *ahead == 0) generations_.finish(WorkerRank(from));
  }
  // Who has said something untrue, since this worker contributes; nobody: kNone.
  std::uint32_t contradict(std::uint32_t from) {
    const auto untrue = generations_.contradict(WorkerRank(from));
    return untrue ? untrue->by.value : kNone;
  }
  static constexpr std::uint32_t kNone = UINT32_MAX;
  Generations generations_;
};

TEST_F(GenerationsTest, who_is_in_the_next_says_that_nobody_has_more_in_this_one) {
  hear(2, 1);
  EXPECT_EQ(contradict(1), 2U);
  EXPECT_EQ(contradict(1), kNone) << "the word counts no more";
}

TEST_F(GenerationsTest, who_has_said_that_it_has_no_more_contradicts_nobody) {
  hear(1, 0, true);
  hear(2, 1);
  EXPECT_EQ(contradict(1), kNone);
  EXPECT_EQ(contradict(3), 2U);
}

TEST_F(GenerationsTest, who_has_no_more_in_the_next_does_not_say_that_nobody_has) {
  hear(2, 1, true);
  generations_.begin_by_word_of(1, WorkerRank(2));
  EXPECT_EQ(contradict(1), kNone) << "in generation 1 it may be the first of many";
}

TEST_F(GenerationsTest, who_has_no_more_in_this_one_is_not_in_the_next_when_who_is_was_lost) {
  hear(0, 0, true);
  hear(2, 1);
  generations_.lose(WorkerRank(2));
  EXPECT_EQ(contradict(1), kNone) << "nobody that is left has said it";
}

TEST_F(GenerationsTest, nor_is_who_has_said_so_where_that_does_not_count_yet) {
  generations_.hear(WorkerRank(0), 0, true);  // at its own relay, before the servers have heard
  hear(2, 1);
  generations_.lose(WorkerRank(2));
  EXPECT_EQ(contradict(1), kNone);
}

TEST_F(GenerationsTest, who_is_in_the_next_as_well_stands_for_the_word_of_one_that_was_lost) {
  hear(2, 1);
  hear(3, 1);
  generations_.lose(WorkerRank(2));
  EXPECT_EQ(contradict(1), 3U);
}

TEST_F(GenerationsTest, also_if_it_has_said_before_that_it_has_no_more_in_this_one) {
  hear(3, 0, true);
  hear(2, 1);
  hear(3, 1);
  generations_.lose(WorkerRank(2));
  EXPECT_TRUE(generations_.begins(WorkerRank(3), first_round(1)));
  EXPECT_EQ(contradict(1), 3U);
}

TEST_F(GenerationsTest, a_word_that_was_untrue_stands_for_nobodys) {
  hear(3, 1);
  EXPECT_EQ(contradict(1), 3U);
  hear(2, 1);
  generations_.lose(WorkerRank(2));
  EXPECT_EQ(contradict(1), kNone);
}

TEST_F(GenerationsTest, a_word_of_a_generation_that_has_begun_is_no_word_any_more) {
  hear(2, 1);
  generations_.begin(1, WorkerRank(0));
  EXPECT_EQ(contradict(1), kNone);
  hear(2, 2);
  EXPECT_EQ(contradict(1), 2U);
}

TEST_F(GenerationsTest, a_word_of_a_later_one_than_begins_counts_on) {
  hear(2, 2);
  generations_.begin(1, WorkerRank(0));
  EXPECT_EQ(contradict(1), 2U);
}

TEST_F(GenerationsTest, so_does_that_which_stands_for_the_word_of_one_that_was_lost) {
  hear(2, 1);
  hear(3, 2);
  generations_.lose(WorkerRank(2));
  generations_.begin(1, WorkerRank(0));
  EXPECT_EQ(contradict(1), 3U);
}

}  // namespace
}  // namespace byteps
