// The rows of the table in docs/design/0013-recovery.md. That they fit together is in takeover_exploration_test.cc.
#include "server/takeover.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

using ::testing::ElementsAre;
using Doing = Takeover::Doing;

class TakeoverTest : public testing::Test {
 protected:
  // The bits of these ranks.
  static std::vector<std::uint64_t> bits(const std::vector<std::uint32_t>& ranks) {
    std::vector<std::uint64_t> all(1, 0);
    for (const std::uint32_t rank : ranks) all[0] |= std::uint64_t{1} << rank;
    return all;
  }
  Takeover::Scene scene() const { return {contributed_, connected_}; }
  Doing push(std::uint32_t from, std::uint32_t round) {
    const Doing doing = takeover_.on_push(WorkerRank(from), Round(round), scene());
    if (doing.drops) contributed_ = bits({});
    if (doing.adds) contributed_[0] |= std::uint64_t{1} << from;
    return doing;
  }
  Doing have(std::uint32_t from, std::uint32_t round) {
    const Doing doing = takeover_.on_have(WorkerRank(from), Round(round), scene());
    if (doing.drops) contributed_ = bits({});
    return doing;
  }

  Takeover takeover_{3};
  std::vector<std::uint64_t> contributed_ = bits({});
  std::vector<std::uint64_t> connected_ = bits({0, 1, 2});
};

TEST_F(TakeoverTest, a_frame_is_in_the_round_that_is_pushed_first) {
  EXPECT_EQ(takeover_.round(), std::nullopt);
  EXPECT_EQ(push(1, 7), Doing{.adds = true});
  EXPECT_EQ(takeover_.round(), Round(7));
  EXPECT_EQ(push(0, 7), Doing{.adds = true});
}

TEST_F(TakeoverTest, or_in_the_one_behind_the_sum_that_somebody_has) {
  EXPECT_EQ(have(1, 7), Doing{});
  EXPECT_EQ(takeover_.round(), Round(8));
}

TEST_F(TakeoverTest, who_lacks_the_sum_of_the_round_before_gets_it_from_who_has_it) {
  push(1, 8);
  EXPECT_EQ(push(0, 7), Doing{.giver = WorkerRank(1)});
  EXPECT_EQ(push(2, 7), Doing{}) << "it is asked for already";
  const Doing given = takeover_.on_sum(WorkerRank(1), Round(7));
  EXPECT_TRUE(given.keeps);
  EXPECT_THAT(given.answered, ElementsAre(WorkerRank(0), WorkerRank(2)));
  EXPECT_EQ(push(0, 7), Doing{.answered = {WorkerRank(0)}}) << "its answer was lost";
  EXPECT_EQ(takeover_.on_sum(WorkerRank(1), Round(7)), Doing{}) << "a repeat";
}

TEST_F(TakeoverTest, a_sum_that_nobody_could_have_is_not_taken) {
  push(1, 8);
  push(0, 7);
  EXPECT_EQ(takeover_.on_sum(WorkerRank(2), Round(7)), Doing{});
  EXPECT_EQ(takeover_.on_sum(WorkerRank(1), Round(6)), Doing{});
}

TEST_F(TakeoverTest, what_was_added_is_dropped_when_somebody_has_that_sum) {
  push(0, 7);
  push(2, 7);
  const Doing doing = have(1, 7);
  EXPECT_TRUE(doing.drops);
  EXPECT_EQ(doing.giver, WorkerRank(1)) << "who has contributed needs it";
  EXPECT_THAT(takeover_.on_sum(WorkerRank(1), Round(7)).answered,
              ElementsAre(WorkerRank(0), WorkerRank(2)));
  EXPECT_EQ(takeover_.round(), Round(8));
}

TEST_F(TakeoverTest, a_push_of_the_next_round_says_the_same) {
  push(0, 7);
  const Doing doing = push(1, 8);
  EXPECT_TRUE(doing.drops && doing.adds);
  EXPECT_EQ(doing.giver, WorkerRank(1));
}

TEST_F(TakeoverTest, another_is_asked_when_who_was_asked_is_gone) {
  push(1, 8);
  push(2, 8);
  EXPECT_EQ(push(0, 7).giver, WorkerRank(1));
  connected_ = bits({0, 2});
  EXPECT_EQ(takeover_.on_down(WorkerRank(1), scene()), Doing{.giver = WorkerRank(2)});
}

TEST_F(TakeoverTest, a_sum_that_nobody_alive_has_is_made_anew) {
  push(1, 8);
  push(0, 7);
  connected_ = bits({0, 2});
  EXPECT_EQ(takeover_.on_down(WorkerRank(1), scene()), Doing{}) << "it may come back";
  const Doing doing = takeover_.on_lost(WorkerRank(1), scene());
  EXPECT_TRUE(doing.drops);
  EXPECT_THAT(doing.again, ElementsAre(WorkerRank(0)));
  EXPECT_EQ(takeover_.round(), Round(7));
}

TEST_F(TakeoverTest, what_is_older_says_nothing_and_two_rounds_further_is_wrong) {
  push(1, 8);
  EXPECT_EQ(push(0, 6), Doing{});
  EXPECT_EQ(have(0, 5), Doing{});
  EXPECT_TRUE(push(0, 10).is_wrong);
  EXPECT_TRUE(have(0, 9).is_wrong);
}

// At a relay, where others may come for it.
TEST_F(TakeoverTest, a_relay_asks_for_a_sum_as_soon_as_somebody_has_it_and_once) {
  Takeover relay(3, true);
  EXPECT_EQ(relay.on_have(WorkerRank(1), Round(7), scene()), Doing{.giver = WorkerRank(1)});
  EXPECT_EQ(relay.on_have(WorkerRank(2), Round(7), scene()), Doing{}) << "it is asked for already";
  EXPECT_TRUE(relay.is_fetching());
  relay.on_settled(WorkerRank(1), Round(7));
  EXPECT_FALSE(relay.is_fetching()) << "all have it";
  EXPECT_TRUE(relay.has_sum());
}

TEST_F(TakeoverTest, a_member_that_pushes_what_it_said_to_have_has_it_no_more) {
  have(0, 7);
  have(1, 7);
  EXPECT_EQ(push(1, 7), Doing{.giver = WorkerRank(0)}) << "a relay whose crew has lost who had it";
  EXPECT_FALSE(takeover_.has_sum(WorkerRank(1)));
}

}  // namespace
}  // namespace byteps
