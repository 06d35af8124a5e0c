// Relays in a job that goes on without a worker that is lost: what the servers hear of their crews, and one that stands
// in for another. Worker 2 is on another machine.
#include <algorithm>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/relay/one_relay.h"

namespace byteps {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

struct RelayLosses : testing::Test {
  explicit RelayLosses(bool stands_in = false) : one({.continues = true, .stands_in = stands_in}) {}

  static std::vector<wire::Header> of_kind(const std::vector<wire::Header>& sent, wire::Kind kind) {
    std::vector<wire::Header> found;
    for (const wire::Header& each : sent) {
      if (each.kind == kind) found.push_back(each);
    }
    return found;
  }
  // As a server does: its first answer on this connection.
  void answer(const wire::Header& push) {
    wire::Header header = push;
    header.kind = wire::Kind::kAnswer;
    header.count = 0;
    ASSERT_TRUE(one.relay->on_answer(ShardIndex(0), header, filled(64, 0)).is_ok());
  }
  void ack(std::uint32_t worker, std::uint32_t count) {
    wire::Header header = one.about(worker, wire::Kind::kAck);
    header.key = Key();
    header.count = count;
    one.relay->step(WorkerRank(worker), header, {}, one.now);
  }
  void have(std::uint32_t worker, std::uint32_t round, std::uint8_t bits) {
    wire::Header header = one.about(worker, wire::Kind::kHave);
    header.round = Round(round);
    one.relay->step(WorkerRank(worker), header, std::vector<std::byte>{std::byte{bits}}, one.now);
  }
  void say_all(std::uint32_t worker) {
    wire::Header header = one.about(worker, wire::Kind::kHave);
    header.flags = wire::kAll;
    one.relay->step(WorkerRank(worker), header, {}, one.now);
  }
  void give(std::uint32_t worker, std::uint32_t round, std::uint8_t flags) {
    wire::Header header = one.about(worker, wire::Kind::kPush);
    header.round = Round(round);
    header.flags = flags;
    const bool is_sum = flags == wire::kSum;
    one.relay->step(WorkerRank(worker), header, is_sum ? filled(64, 7) : Bytes(), one.now);
  }

  One one;
};

TEST_F(RelayLosses, the_servers_hear_that_it_has_a_sum_when_all_of_its_crew_have) {
  one.declare(0);
  one.declare(1);
  one.both();
  const auto pushes = of_kind(one.send(), wire::Kind::kPush);
  ASSERT_THAT(pushes, SizeIs(1));
  answer(pushes[0]);
  one.give_back();
  ack(0, 1);
  one.now += kSecond;
  EXPECT_THAT(of_kind(one.send(), wire::Kind::kAck), IsEmpty()) << "worker 1 may lack it";
  ack(1, 1);
  one.now += kSecond;
  const auto acks = of_kind(one.send(), wire::Kind::kAck);
  ASSERT_THAT(acks, SizeIs(1));
  EXPECT_EQ(acks[0].count, 1U);
}

TEST_F(RelayLosses, nobody_waits_for_a_worker_that_is_lost_and_the_push_says_that_it_is_not_in) {
  one.declare(0);
  one.declare(1);
  one.push(0);
  EXPECT_THAT(of_kind(one.send(), wire::Kind::kPush), IsEmpty());
  one.relay->lose(WorkerRank(1));
  const auto pushes = of_kind(one.send(), wire::Kind::kPush);
  ASSERT_THAT(pushes, SizeIs(1));
  EXPECT_EQ(pushes[0].lost, 0b10) << "the second of its crew";
}

TEST_F(RelayLosses, what_a_lost_worker_has_contributed_counts) {
  one.declare(0);
  one.declare(1);
  one.push(1);
  one.relay->lose(WorkerRank(1));
  one.push(0);
  const auto pushes = of_kind(one.send(), wire::Kind::kPush);
  ASSERT_THAT(pushes, SizeIs(1));
  EXPECT_EQ(pushes[0].lost, 0);
}

TEST_F(RelayLosses, a_crew_hears_that_a_sum_is_settled_when_the_servers_say_so) {
  one.declare(0);
  one.declare(1);
  one.both();
  answer(of_kind(one.send(), wire::Kind::kPush)[0]);
  one.give_back();
  ack(0, 1);
  ack(1, 1);
  one.now += kSecond;
  one.relay->tick(one.now);
  EXPECT_THAT(one.told().settled, IsEmpty()) << "worker 2 may lack it";
  wire::Header header = one.about(0, wire::Kind::kSettled);
  header.key = Key();
  header.count = 1;
  one.relay->on_recovery(ShardIndex(0), header);
  one.now += kSecond;
  one.relay->tick(one.now);
  const Told told = one.told();
  ASSERT_THAT(told.settled, SizeIs(2));
  EXPECT_EQ(told.settled[0].count, 1U);
}

TEST_F(RelayLosses, nobody_waits_for_the_word_of_a_worker_that_has_left) {
  one.declare(0);
  one.declare(1);
  one.both();
  answer(of_kind(one.send(), wire::Kind::kPush)[0]);
  one.give_back();
  ack(0, 1);
  one.relay->disconnect(WorkerRank(1));
  one.now += kSecond;
  EXPECT_THAT(of_kind(one.send(), wire::Kind::kAck), IsEmpty()) << "worker 1 may come back";
  one.relay->leave(WorkerRank(1));
  one.now += kSecond;
  EXPECT_THAT(of_kind(one.send(), wire::Kind::kAck), SizeIs(1));
}

// ---- one that stands in for another

struct StandIn : RelayLosses {
  StandIn() : RelayLosses(true) {}
};

TEST_F(StandIn, says_in_the_place_of_the_lost_worker_that_there_are_no_more_inputs) {
  const auto inputs = of_kind(one.send(), wire::Kind::kInputs);
  ASSERT_THAT(inputs, SizeIs(2));
  EXPECT_EQ(inputs[0].flags, wire::kEnding) << "before what it has";
  EXPECT_EQ(inputs[1].flags, wire::kNoMore);
  EXPECT_EQ(inputs[1].worker, WorkerRank(0));
}

TEST_F(StandIn, pushes_what_nobody_of_its_crew_has_in_the_round_that_it_is_in) {
  one.declare(1);
  say_all(1);
  one.push(1, 5);
  const auto pushes = of_kind(one.send(), wire::Kind::kPush);
  ASSERT_THAT(pushes, SizeIs(1));
  EXPECT_EQ(pushes[0].round, Round(5));
  EXPECT_EQ(pushes[0].worker, WorkerRank(0));
  EXPECT_EQ(pushes[0].lost, 1) << "the one for whom it stands in";
}

TEST_F(StandIn, fetches_what_one_of_its_crew_has_for_others_may_lack_it_and_says_that_it_has_it) {
  one.declare(1);
  have(1, 5, 1);
  const Told told = one.told();
  ASSERT_THAT(told.given, SizeIs(1));
  EXPECT_EQ(told.given[0].worker, WorkerRank(1));
  EXPECT_EQ(told.given[0].round, Round(5));
  EXPECT_THAT(of_kind(one.send(), wire::Kind::kHave), IsEmpty()) << "it is not here yet";
  give(1, 5, wire::kSum);
  const auto haves = of_kind(one.send(), wire::Kind::kHave);
  ASSERT_THAT(haves, Not(IsEmpty()));
  EXPECT_EQ(haves.back().round, Round(5));
  EXPECT_EQ(haves.back().flags & wire::kSome, 0) << "all that are left of the crew have it";
  // The successor of a server asks for it.
  wire::Header wanted = one.about(0, wire::Kind::kGive);
  wanted.round = Round(5);
  one.relay->on_recovery(ShardIndex(0), wanted);
  const auto gifts = of_kind(one.send(), wire::Kind::kPush);
  ASSERT_THAT(gifts, SizeIs(1));
  EXPECT_EQ(gifts[0].flags, wire::kSum);
  EXPECT_EQ(one.payloads.back(), filled(64, 7));
}

TEST_F(StandIn, says_nothing_of_a_sum_that_all_have) {
  one.declare(1);
  have(1, 5, 1);
  give(1, 5, wire::kSum | wire::kNoPayload);
  EXPECT_THAT(of_kind(one.send(), wire::Kind::kHave), IsEmpty());
  one.push(1, 6);
  const auto pushes = of_kind(one.send(), wire::Kind::kPush);
  ASSERT_THAT(pushes, SizeIs(1));
  EXPECT_EQ(pushes[0].round, Round(6));
}

TEST_F(StandIn, tells_a_successor_that_this_was_all_when_its_crew_have_said_so) {
  one.replace();
  const auto is_all = [](const wire::Header& each) { return each.flags == wire::kAll; };
  auto haves = of_kind(one.send(), wire::Kind::kHave);
  EXPECT_TRUE(std::none_of(haves.begin(), haves.end(), is_all));
  say_all(1);
  haves = of_kind(one.send(), wire::Kind::kHave);
  EXPECT_TRUE(std::any_of(haves.begin(), haves.end(), is_all));
}

// Who does not name what others have forgotten knows that it is settled.
TEST_F(StandIn, names_to_a_successor_what_its_crew_have_begun_before_it_says_that_this_was_all) {
  one.x.total_bytes = 4 * kPartitionBytes;
  one.x.name = one.name_led_by(1);  // it leads other parts
  const auto place_of = [](const std::vector<wire::Header>& sent, auto&& is_it) {
    return std::find_if(sent.begin(), sent.end(), is_it) - sent.begin();
  };
  const auto is_name = [&](const wire::Header& each) {
    return each.kind == wire::Kind::kDeclare && each.key == one.key();
  };
  const auto is_all = [](const wire::Header& each) {
    return each.kind == wire::Kind::kHave && each.flags == wire::kAll;
  };
  for (const bool is_begun : {false, true}) {  // before the successor has come
    one.replace();
    if (!is_begun) {
      one.send();
      one.declare(1);
      say_all(1);
    }
    const std::vector<wire::Header> sent = one.send();
    const auto all = place_of(sent, is_all);
    EXPECT_LT(all, std::ssize(sent));
    EXPECT_LT(place_of(sent, is_name), all);
  }
}

TEST_F(StandIn, an_answer_to_what_the_relay_before_it_has_pushed_counts_when_its_crew_have_it) {
  const auto acks = [&] {
    one.now += kSecond;
    return of_kind(one.send(), wire::Kind::kAck);
  };
  wire::Header pushed = one.about(0, wire::Kind::kPush);
  pushed.round = Round(5);
  answer(pushed);
  EXPECT_THAT(acks(), IsEmpty()) << "worker 1 has not come for it yet";
  one.declare(1);
  say_all(1);
  one.push(1, 5);
  const auto pushes = of_kind(one.send(), wire::Kind::kPush);
  ASSERT_THAT(pushes, SizeIs(1));
  answer(pushes[0]);
  one.give_back();
  EXPECT_THAT(acks(), IsEmpty());
  ack(1, 1);
  const auto said = acks();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].count, 2U);
}

// The lost relay may have known it, and what a shard keeps of it is kept until this machine gives it up.
TEST(StandInOfTwoShards, gives_up_at_all_shards_a_name_that_it_does_not_know_when_all_have_told) {
  One one({.shards = 2, .continues = true, .stands_in = true});
  const auto forgets = [&](std::uint32_t shard) {
    return RelayLosses::of_kind(one.send(shard), wire::Kind::kForget);
  };
  const auto is_forgotten_at = [&](std::uint32_t shard) {
    wire::Header word = one.about(0, wire::Kind::kForgotten);
    one.relay->on_recovery(ShardIndex(shard), word);
    return !one.told().forgotten_by_all.empty();
  };
  for (const std::uint32_t shard : {0U, 1U}) one.send(shard);
  EXPECT_FALSE(is_forgotten_at(0)) << "it has not said so yet";
  one.forget(1);
  EXPECT_THAT(forgets(0), IsEmpty()) << "worker 1 may name it yet";
  wire::Header all = one.about(1, wire::Kind::kHave);
  all.flags = wire::kAll;
  one.relay->step(WorkerRank(1), all, {}, one.now);
  for (const std::uint32_t shard : {0U, 1U}) {
    ASSERT_THAT(forgets(shard), SizeIs(1));
    one.reconnect(shard);
    EXPECT_THAT(forgets(shard), Not(IsEmpty())) << "it may be lost";
  }
  EXPECT_THAT(one.told().forgotten_by_all, IsEmpty());
  EXPECT_FALSE(is_forgotten_at(0));
  EXPECT_TRUE(is_forgotten_at(1)) << "worker 1 hears it";
}

TEST_F(StandIn, leaves_a_name_to_those_who_have_named_it_since) {
  one.forget(1);
  one.declare(1);
  say_all(1);
  EXPECT_THAT(of_kind(one.send(), wire::Kind::kForget), IsEmpty());
}

// The root of x is lost: what one shard has of it cannot be summed, what another has was.
TEST_F(StandIn, an_answer_of_a_tensor_that_cannot_be_summed_holds_nothing_back) {
  const Status why(Code::kDisconnected, "its root was lost");
  for (const bool is_told_first : {false, true}) {
    if (is_told_first) one.relay->on_mismatch(one.key(), why);
    wire::Header pushed = one.about(0, wire::Kind::kPush);  // by the relay before it
    pushed.round = Round(5);
    answer(pushed);
    if (!is_told_first) one.relay->on_mismatch(one.key(), why);
    one.now += kSecond;
    const auto acks = of_kind(one.send(), wire::Kind::kAck);
    ASSERT_THAT(acks, SizeIs(1)) << "nobody waits for it";
    EXPECT_EQ(acks[0].count, is_told_first ? 2U : 1U);
  }
}

}  // namespace
}  // namespace byteps
