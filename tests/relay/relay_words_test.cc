// What goes through a relay beside frames, both ways; and the relay that has nobody above it.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/relay/one_relay.h"

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Kind;

// ---- declarations

TEST(RelayDeclarations, reach_the_servers_before_anything_is_pushed) {
  One one;
  one.declare(1);
  EXPECT_THAT(one.kinds_sent(), ElementsAre(Kind::kDeclare));
  EXPECT_EQ(wire::decode_declare(one.payloads[0]).value(), one.x);
  one.declare(0);
  EXPECT_THAT(one.kinds_sent(), IsEmpty()) << "it is known";
}

TEST(RelayDeclarations, say_whose_they_are) {
  for (const std::uint32_t worker : {0U, 1U}) {
    One one;
    one.declare(worker);
    const std::vector<wire::Header> sent = one.send();
    ASSERT_THAT(sent, SizeIs(1));
    EXPECT_EQ(sent[0].worker, WorkerRank(0)) << "who says it";
    EXPECT_EQ(sent[0].part, PartIndex(worker + 1));
  }
}

TEST(RelayDeclarations, go_to_the_shard_of_the_first_part_by_the_relay_that_leads_it) {
  One one({.shards = 2});
  one.declare(0);
  const std::uint32_t first =
      Placement(kPartitionBytes, kFrameBytes, {1, 1}).first_shard(one.key()).value;
  EXPECT_THAT(one.kinds_sent(first), ElementsAre(Kind::kDeclare));
  EXPECT_THAT(one.kinds_sent(1 - first), IsEmpty());
  one.x.name = one.name_led_by(1);
  one.declare(0);
  for (const std::uint32_t shard : {0U, 1U}) EXPECT_THAT(one.kinds_sent(shard), IsEmpty());
}

TEST(RelayDeclarations, are_said_again_on_a_new_connection_and_from_the_first_push_on_with_that) {
  One one;
  one.declare(0);
  one.declare(1);
  one.send();
  one.reconnect();
  EXPECT_THAT(one.kinds_sent(), ElementsAre(Kind::kDeclare));
  one.both();
  one.send();
  one.reconnect();
  EXPECT_THAT(one.kinds_sent(), ElementsAre(Kind::kDeclare, Kind::kPush)) << "once, not twice";
  one.give_back();
}

TEST(RelayDeclarations, what_is_pushed_before_it_was_said_is_declared_once) {
  One one;
  one.declare(0);
  one.declare(1);
  one.both();
  EXPECT_THAT(one.kinds_sent(), ElementsAre(Kind::kDeclare, Kind::kPush));
  one.give_back();
}

// ---- frames

TEST(RelayFrames, go_on_one_by_one_while_others_of_the_part_are_missing) {
  One one;
  one.x.total_bytes = 2 * kFrameBytes;
  one.declare(0);
  one.declare(1);
  one.both();
  std::vector<wire::Header> sent = one.send();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[1].offset_bytes, 0U);
  wire::Header second = one.about(0, Kind::kPush);
  second.offset_bytes = kFrameBytes;
  second.priority = 5;
  one.relay->step(WorkerRank(0), second, filled(64, 0), 0);
  EXPECT_THAT(one.send(), IsEmpty());
  second.worker = WorkerRank(1);
  one.relay->step(WorkerRank(1), second, filled(64, 0), 0);
  sent = one.send();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].offset_bytes, kFrameBytes);
  EXPECT_EQ(sent[0].worker, WorkerRank(0)) << "in its own name";
  one.give_back();
}

TEST(RelayFrames, have_the_priority_that_workers_gave_them) {
  One one;
  one.declare(0);
  one.declare(1);
  for (const std::uint32_t worker : {0U, 1U}) {
    wire::Header header = one.about(worker, Kind::kPush);
    header.priority = -3;
    one.relay->step(WorkerRank(worker), header, filled(64, 0), 0);
  }
  const std::vector<wire::Header> sent = one.send();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[1].priority, -3);
  one.give_back();
}

// ---- who is missing

TEST(RelayMissing, whom_this_machine_misses_the_servers_and_those_who_wait_are_told) {
  One one;
  one.declare(0);
  one.declare(1);
  one.push(1);
  one.send();
  one.told();
  one.now = 10 * kSecond;
  const std::vector<wire::Header> sent = one.send();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].kind, Kind::kMissing);
  EXPECT_EQ(sent[0].key, one.key());
  EXPECT_THAT(wire::decode_missing(one.payloads[0]).value().ranks.some(), ElementsAre(0));
  const Told told = one.told();
  ASSERT_THAT(told.missing, SizeIs(1));
  EXPECT_THAT(told.missing[0].to, ElementsAre(WorkerRank(1)));
  EXPECT_THAT(told.missing[0].ranks, ElementsAre(0));
  one.reconnect();
  EXPECT_THAT(one.kinds_sent(), ElementsAre(Kind::kDeclare)) << "by now it may not be true";
}

TEST(RelayMissing, whom_the_servers_miss_those_here_are_told) {
  One one;
  one.declare(0);
  one.declare(1);
  one.both();
  const std::vector<wire::Header> sent = one.send();
  one.give_back();
  one.told();
  wire::Header header = sent[1];
  header.kind = Kind::kMissing;
  const Members whom(std::vector<std::uint32_t>{2});
  one.relay->on_missing(header, whom);
  const Told told = one.told();
  ASSERT_THAT(told.missing, SizeIs(1));
  EXPECT_THAT(told.missing[0].to, ElementsAre(WorkerRank(0), WorkerRank(1)));
  EXPECT_THAT(told.missing[0].ranks, ElementsAre(2));
  EXPECT_EQ(told.missing[0].key, one.key());
  header.epoch = Epoch(6);
  one.relay->on_missing(header, whom);
  header.epoch = Epoch(7);
  header.key = key_of("unknown");
  one.relay->on_missing(header, whom);
  EXPECT_TRUE(one.told().empty());
}

// ---- mismatches

TEST(RelayMismatch, that_the_servers_know_is_told_to_all_and_to_who_declares_the_name_later) {
  One one;
  one.relay->on_mismatch(one.key(), {Code::kMismatch, "ranks 2 and 3 disagree"});
  const Told at_once = one.told();
  ASSERT_THAT(at_once.spoiled, SizeIs(1)) << "whoever would declare it to another relay";
  EXPECT_EQ(at_once.spoiled[0].worker, std::nullopt);
  one.declare(1);
  const Told told = one.told();
  ASSERT_THAT(told.spoiled, SizeIs(1));
  EXPECT_EQ(told.spoiled[0].text, "ranks 2 and 3 disagree");
  EXPECT_THAT(one.kinds_sent(), IsEmpty()) << "the servers said so";
}

TEST(RelayMismatch, that_was_found_here_is_said_to_the_servers_on_each_connection) {
  One one;
  one.declare(0);
  one.x.total_bytes = 128;
  one.declare(1);
  one.send();
  one.reconnect();
  const std::vector<wire::Header> sent = one.send();
  ASSERT_FALSE(sent.empty());
  EXPECT_EQ(sent.back().kind, Kind::kMismatch);
  const wire::Text text = wire::decode_text(one.payloads.back()).value();
  EXPECT_THAT(text.text, testing::HasSubstr("rank"));
  EXPECT_EQ(text.code, static_cast<std::uint32_t>(Code::kMismatch));
}

// ---- names that are forgotten

TEST(RelayForgets, what_all_here_have_forgotten_the_servers_hear_once) {
  One one;
  one.declare(0);
  one.declare(1);
  one.both();
  const std::vector<wire::Header> sent = one.send();
  one.give_back();
  one.answer(sent[1]);
  EXPECT_THAT(one.told().answers, SizeIs(2));
  one.forget(1);
  EXPECT_THAT(one.kinds_sent(), IsEmpty()) << "one uses it still";
  one.forget(0);
  const std::vector<wire::Header> forgets = one.send();
  ASSERT_THAT(forgets, SizeIs(1));
  EXPECT_EQ(forgets[0].kind, Kind::kForget);
  EXPECT_EQ(forgets[0].key, one.key());
  one.forget(0);
  EXPECT_THAT(one.kinds_sent(), IsEmpty()) << "a repeat";
  EXPECT_EQ(one.pool.lent_bytes(), 0U);
}

TEST(RelayForgets, while_a_payload_is_lent_the_servers_hear_later) {
  One one;
  one.declare(0);
  one.declare(1);
  one.both();
  const std::vector<wire::Header> sent = one.send();
  one.answer(sent[1]);
  one.told();
  one.forget(0);
  one.forget(1);
  EXPECT_THAT(one.kinds_sent(), IsEmpty());
  one.give_back();
  EXPECT_THAT(one.kinds_sent(), ElementsAre(Kind::kForget));
  EXPECT_EQ(one.relay->uplink().tensors().size(), 0U);
  EXPECT_EQ(one.pool.lent_bytes(), 0U);
}

// ---- the end of inputs

TEST(RelayInputs, of_the_worker_beside_it_are_heard_when_the_first_shard_has_heard_of_their_end) {
  One one({.shards = 2});
  one.inputs(0, 0, true);
  EXPECT_TRUE(one.told().empty());
  const std::vector<wire::Header> sent = one.send(0);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].kind, Kind::kInputs);
  EXPECT_EQ(sent[0].flags, wire::kNoMore);
  EXPECT_EQ(sent[0].worker, WorkerRank(0));
  one.inputs(0, 0, true);  // it has a new connection, say
  EXPECT_THAT(one.kinds_sent(0), IsEmpty());
  one.inputs_done(0, 1);
  EXPECT_TRUE(one.told().empty()) << "that is not the first";
  one.inputs_done(0, 0);
  const Told told = one.told();
  ASSERT_THAT(told.inputs_done, SizeIs(1));
  EXPECT_EQ(told.inputs_done[0].worker, WorkerRank(0));
  EXPECT_EQ(told.inputs_done[0].generation, 0U);
  EXPECT_THAT(one.kinds_sent(1), ElementsAre(Kind::kInputs));
  one.inputs_done(0, 0);
  EXPECT_TRUE(one.told().empty()) << "a repeat";
}

TEST(RelayInputs, of_another_worker_are_its_own_relays_to_say) {
  One one;
  one.inputs(1, 0, true);
  const Told told = one.told();
  ASSERT_THAT(told.inputs_done, SizeIs(1));
  EXPECT_EQ(told.inputs_done[0].worker, WorkerRank(1));
  EXPECT_THAT(one.kinds_sent(), IsEmpty());
}

TEST(RelayInputs, what_waits_for_the_worker_beside_it_goes_on_when_that_is_heard) {
  One one;
  one.declare(1);
  one.push(1);
  one.inputs(0, 0, true);
  EXPECT_THAT(one.kinds_sent(), ElementsAre(Kind::kDeclare, Kind::kInputs));
  one.inputs_done(0);
  const std::vector<wire::Header> sent = one.send();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[1].kind, Kind::kPush);
  one.give_back();
  one.answer(sent[1]);
  const Told told = one.told();
  ASSERT_THAT(told.answers, SizeIs(1));
  EXPECT_EQ(told.answers[0].header.worker, WorkerRank(1));
}

TEST(RelayInputs, the_worker_beside_it_hears_of_the_next_generation_and_who_was_last) {
  One one;
  one.inputs(0, 0, true);
  one.send();
  one.inputs_done(0);
  one.told();
  one.inputs_done(1, 0, 2);
  Told told = one.told();
  ASSERT_THAT(told.inputs_done, SizeIs(1));
  EXPECT_EQ(told.inputs_done[0].worker, WorkerRank(0));
  EXPECT_EQ(told.inputs_done[0].generation, 1U);
  EXPECT_EQ(told.inputs_done[0].last, WorkerRank(2));
  one.inputs(0, 1, true);
  EXPECT_THAT(one.kinds_sent(), ElementsAre(Kind::kInputs)) << "and again in that one";
  one.inputs_done(1);
  told = one.told();
  ASSERT_THAT(told.inputs_done, SizeIs(1));
  EXPECT_EQ(told.inputs_done[0].generation, 1U);
}

TEST(RelayInputs,
     rounds_of_the_next_generation_are_held_until_the_servers_have_said_that_it_begins) {
  One one;
  one.declare(0);
  one.declare(1);
  one.inputs(0, 0, true);
  one.send();
  one.inputs_done(0);
  one.told();
  one.inputs(1, 1, false);  // its own relay has heard
  const std::uint32_t round = first_round(1).value;
  one.both(round);
  EXPECT_THAT(one.kinds_sent(), IsEmpty());
  EXPECT_THAT(one.told().violations, IsEmpty());
  one.inputs_done(1);
  const std::vector<wire::Header> sent = one.send();
  ASSERT_THAT(sent, SizeIs(3));
  EXPECT_EQ(sent[0].kind, Kind::kInputs) << "of the new generation";
  EXPECT_EQ(sent[2].kind, Kind::kPush);
  EXPECT_EQ(sent[2].round.value, round);
  one.give_back();
}

TEST(RelayInputs, a_job_that_fails_meanwhile_ends_them_without_a_word_to_the_workers) {
  One one;
  one.declare(0);
  one.declare(1);
  one.both();
  one.inputs(0, 0, true);
  one.send();
  one.inputs_done(0);
  one.told();
  one.inputs_done(1);  // the push is at the transport still
  one.relay->fail_all({Code::kDisconnected, "the job has failed"});
  one.give_back();
  one.relay->tick(1);
  EXPECT_TRUE(one.relay->is_idle());
  EXPECT_THAT(one.told().inputs_done, IsEmpty());
}

// ---- where no server is used

TEST(RelayAlone, finishes_what_it_sums) {
  One one({.is_alone = true});
  one.declare(0);
  one.declare(1);
  one.push(0);
  EXPECT_TRUE(one.told().empty());
  one.push(1);
  const Told told = one.told();
  EXPECT_THAT(told.answers, SizeIs(2));
  EXPECT_THAT(told.forwards, IsEmpty());
  EXPECT_TRUE(one.relay->is_idle());
  EXPECT_TRUE(one.relay->is_alone());
}

TEST(RelayAlone, keeps_no_sum_that_all_were_told_and_takes_no_repeat) {
  One one({.is_alone = true});
  one.declare(0);
  one.declare(1);
  one.both();
  EXPECT_THAT(one.told().answers, SizeIs(2));
  EXPECT_EQ(one.pool.lent_bytes(), 0U);
  one.push(1);
  const Told told = one.told();
  EXPECT_THAT(told.violations, SizeIs(1));
  EXPECT_THAT(told.answers, IsEmpty());
}

TEST(RelayAlone, averages_divide_by_all_here) {
  One one({.is_alone = true});
  one.x.operation = Operation::kAverage;
  one.x.total_bytes = 4;
  one.declare(0);
  one.declare(1);
  for (const std::uint32_t worker : {0U, 1U}) {
    one.relay->step(WorkerRank(worker), one.about(worker, Kind::kPush),
                    floats({worker == 0 ? 1.0F : 5.0F}), 0);
  }
  const Told told = one.told();
  ASSERT_THAT(told.answers, SizeIs(2));
  EXPECT_EQ(bytes_of(told.answers[0].payload()), floats({3}));
}

TEST(RelayAlone, inputs_end_as_at_a_server) {
  One one({.is_alone = true});
  one.inputs(0, 0, true);
  Told told = one.told();
  ASSERT_THAT(told.inputs_done, SizeIs(1));
  EXPECT_EQ(told.inputs_done[0].worker, WorkerRank(0)) << "at once, also the one beside it";
  one.declare(1);
  one.push(1);
  EXPECT_THAT(one.told().answers, SizeIs(1)) << "nobody waits for worker 0";
  one.inputs(1, 0, true);
  told = one.told();
  ASSERT_THAT(told.inputs_done, SizeIs(1));
  EXPECT_EQ(told.inputs_done[0].worker, std::nullopt);
  EXPECT_EQ(told.inputs_done[0].generation, 1U);
  EXPECT_EQ(told.inputs_done[0].last, WorkerRank(1));
}

TEST(RelayAlone, asks_for_what_is_late_and_forgets_what_all_have_forgotten) {
  One one({.is_alone = true});
  one.declare(0);
  one.declare(1);
  one.push(0);
  one.relay->tick(0);
  ASSERT_NE(one.relay->next_deadline(), kNever);
  one.relay->tick(one.relay->next_deadline());
  const Told told = one.told();
  ASSERT_FALSE(told.wanted.empty());
  EXPECT_EQ(told.wanted[0].worker, WorkerRank(1));
  one.push(1);
  one.told();
  one.forget(0);
  one.forget(1);
  EXPECT_TRUE(one.told().empty());
  EXPECT_EQ(one.relay->shelf().inventory().tensors().size(), 0U);
}

// ---- successors of servers that are lost

TEST(RelaySuccessors, hear_which_sums_a_relay_has_and_are_given_them) {
  One one({.keeps_sums = true});
  one.x.total_bytes = 2 * kFrameBytes;
  one.declare(0);
  one.declare(1);
  one.both();
  one.answer(one.send().back());
  one.replace();
  const std::vector<wire::Header> sent = one.send();
  ASSERT_THAT(sent, SizeIs(3));
  EXPECT_EQ(sent[0].kind, Kind::kDeclare);
  EXPECT_EQ(sent[1].kind, Kind::kHave);
  EXPECT_EQ(one.payloads[1], Bytes{std::byte{1}}) << "the first frame";
  EXPECT_EQ(sent[2].kind, Kind::kHave);
  EXPECT_EQ(sent[2].flags, wire::kAll);

  wire::Header give = one.about(0, Kind::kGive);
  one.relay->uplink().on_recovery(ShardIndex(0), give);
  const std::vector<wire::Header> given = one.send();
  ASSERT_THAT(given, SizeIs(1));
  EXPECT_EQ(given[0].kind, Kind::kPush);
  EXPECT_EQ(given[0].flags, wire::kSum);
  EXPECT_EQ(one.payloads[0], filled(64, 0));
}

TEST(RelaySuccessors, hear_nothing_of_parts_that_another_leads) {
  One one({.keeps_sums = true});
  one.x.total_bytes = 2 * kPartitionBytes;
  one.declare(0);
  one.declare(1);
  one.sum_first_part();
  one.replace();
  std::vector<PartIndex> parts;
  for (const wire::Header& sent : one.send()) {
    if (sent.kind == Kind::kHave && sent.flags == wire::kHasFormer) parts.push_back(sent.part);
  }
  EXPECT_THAT(parts, ElementsAre(PartIndex(0)));
}

TEST(RelaySuccessors, are_told_of_names_that_are_used_once) {
  One one({.keeps_sums = true});
  one.declare(0);
  one.declare(1);
  one.sum_first_part();
  one.forget(0);
  one.forget(1);
  EXPECT_THAT(one.kinds_sent(), ElementsAre(Kind::kForget));
  one.replace();
  EXPECT_THAT(one.kinds_sent(),
              ElementsAre(Kind::kDeclare, Kind::kHave, Kind::kForget, Kind::kHave, Kind::kForget))
      << "what it has, that this is all, and what is said until it is heard";
  wire::Header settled = one.about(0, Kind::kForgotten);
  one.relay->uplink().on_recovery(ShardIndex(0), settled);
  one.replace();
  EXPECT_THAT(one.kinds_sent(), ElementsAre(Kind::kHave, Kind::kForget)) << "nothing is kept of it";
}

TEST(RelaySuccessors, hear_how_many_rounds_the_worker_beside_it_has_begun) {
  One one({.keeps_sums = true});
  one.declare(0);
  one.inputs(0, 0, true, 5);
  std::vector<std::uint64_t> rounds;
  for (const wire::Header& sent : one.send()) {
    if (sent.kind == Kind::kInputs) rounds.push_back(sent.offset_bytes);
  }
  EXPECT_THAT(rounds, ElementsAre(5, 5)) << "before sums, and behind them";
}

}  // namespace
}  // namespace byteps
