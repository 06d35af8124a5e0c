// Which sums all have, as the workers say it: then they go.
#include "server/settling.h"

#include <array>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shelf_world.h"

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

// Three workers, whose tensors have two frames of 64 bytes.
class SettlingTest : public testing::Test {
 protected:
  SettlingTest()
      : world_(ShelfEpoch{.epoch = Epoch(7),
                          .worker_count = 3,
                          .placement = placed(128, 64),
                          .recovers = true},
               {}) {
    world_.declare_all(declaration("t", DType::kUint8, 128));
  }
  // All push that round of that frame of "t".
  void sum(std::uint32_t round, std::uint64_t offset = 0) {
    for (std::uint32_t worker = 0; worker < 3; ++worker) push(worker, round, offset);
  }
  void push(std::uint32_t worker, std::uint32_t round, std::uint64_t offset = 0) {
    wire::Header header = world_.about(worker, "t");
    header.kind = wire::Kind::kPush;
    header.round = Round(round);
    header.offset_bytes = offset;
    header.count = acked_[worker];
    world_.step(worker, header, filled(64, 1));
  }
  void ack(std::uint32_t worker, std::uint32_t count) {
    wire::Header header = world_.about(worker, "");
    header.kind = wire::Kind::kAck;
    header.key = Key();
    header.count = acked_[worker] = count;
    world_.step(worker, header, {});
  }
  std::size_t lent_bytes() { return world_.pool.lent_bytes(); }

  ShelfWorld world_;
  std::array<std::uint32_t, 3> acked_{};  // what each has said last
};

TEST_F(SettlingTest, a_sum_goes_when_all_have_said_that_they_have_it) {
  sum(0);
  EXPECT_EQ(lent_bytes(), 64U) << "the sum";
  world_.take();
  ack(0, 1);
  ack(1, 1);
  EXPECT_EQ(lent_bytes(), 64U);
  ack(2, 1);
  EXPECT_EQ(lent_bytes(), 0U);
}

TEST_F(SettlingTest, workers_are_told_of_it_in_the_next_answer_or_after_a_while) {
  sum(0);
  for (const ShelfOutput::Answer& each : world_.take().answers) EXPECT_EQ(each.header.count, 0U);
  for (const std::uint32_t worker : {0U, 1U, 2U}) ack(worker, 1);
  sum(0, 64);
  for (const ShelfOutput::Answer& each : world_.take().answers) EXPECT_EQ(each.header.count, 1U);
  world_.tick(Settling::kSilenceNs);
  EXPECT_THAT(world_.take().settled, IsEmpty()) << "the answers have said it";
  for (const std::uint32_t worker : {0U, 1U, 2U}) ack(worker, 2);
  EXPECT_EQ(world_.shelf.next_deadline(), 2 * Settling::kSilenceNs);
  world_.tick(2 * Settling::kSilenceNs);
  const Told out = world_.take();
  ASSERT_THAT(out.settled, SizeIs(3));
  for (const ShelfOutput::Settled& each : out.settled) EXPECT_EQ(each.count, 2U);
}

TEST_F(SettlingTest, who_tells_on_a_new_connection_what_it_has_hears_of_that_frame_when_all_have) {
  sum(0);
  world_.take();
  for (const std::uint32_t worker : {0U, 1U}) {
    world_.reconnect(worker);
    acked_[worker] = 0;
    world_.declare(worker, declaration("t", DType::kUint8, 128));
    world_.have(worker, "t", 0, Bytes{std::byte{0b01}}, 0);
  }
  EXPECT_THAT(world_.take().settled_frames, IsEmpty());
  ack(2, 1);
  const Told told = world_.take();
  ASSERT_THAT(told.settled_frames, SizeIs(2));
  EXPECT_EQ(told.settled_frames[1].worker, WorkerRank(1));
  EXPECT_EQ(told.settled_frames[1].offset_bytes, 0U);
  EXPECT_EQ(told.settled_frames[1].round, Round(0));
  EXPECT_EQ(lent_bytes(), 0U);
  world_.have(0, "t", 0, Bytes{std::byte{0b01}}, 0);
  EXPECT_THAT(world_.take().settled_frames, SizeIs(1)) << "at once, if it is so";
}

TEST_F(SettlingTest, what_one_lacks_holds_back_the_count_behind_it_but_not_the_memory) {
  sum(0);
  sum(0, 64);
  world_.take();
  ack(0, 2);
  ack(1, 2);
  world_.reconnect(2);
  acked_[2] = 0;
  world_.declare(2, declaration("t", DType::kUint8, 128));
  world_.have(2, "t", 0, Bytes{std::byte{0b10}});  // the second one
  EXPECT_EQ(lent_bytes(), 64U);
  world_.tick(Settling::kSilenceNs);
  EXPECT_THAT(world_.take().settled, IsEmpty());
  push(2, 0);
  ASSERT_THAT(world_.out.answers, SizeIs(1)) << "a repeat";
  world_.take();
  ack(2, 1);
  EXPECT_EQ(lent_bytes(), 0U);
  world_.tick(2 * Settling::kSilenceNs);
  const Told out = world_.take();
  ASSERT_THAT(out.settled, SizeIs(3));
  EXPECT_EQ(out.settled[0].count, 2U);
  EXPECT_EQ(out.settled[2].count, 1U) << "of its new connection";
}

TEST_F(SettlingTest, who_pushes_the_next_round_has_the_sum) {
  sum(0);
  world_.take();
  for (const std::uint32_t worker : {0U, 1U}) push(worker, 1);
  EXPECT_EQ(lent_bytes(), 2U * 64);
  push(2, 1);
  EXPECT_EQ(lent_bytes(), 64U) << "that of round 1, which the world holds";
}

TEST_F(SettlingTest, a_name_that_all_have_forgotten_is_settled) {
  sum(0);
  world_.take();
  for (const std::uint32_t worker : {0U, 1U, 2U}) world_.forget(worker, "t");
  EXPECT_EQ(lent_bytes(), 0U);
  world_.take();
  world_.tick(Settling::kSilenceNs);
  EXPECT_THAT(world_.take().settled, SizeIs(3));
}

// What the root alone gets: it has said so before anybody else's operation ends, and its contribution is gone.
class RootAloneTest : public SettlingTest {
 protected:
  RootAloneTest() {
    wire::Declare reduced = declaration("r", DType::kUint8, 128, Operation::kSum, 1);
    reduced.root_only = true;
    world_.declare_all(reduced);
    for (std::uint32_t worker = 0; worker < 3; ++worker) {
      world_.push(worker, "r", 0, filled(64, 1));
    }
  }
  static std::vector<std::uint32_t> receivers(const Told& out) {
    std::vector<std::uint32_t> workers;
    for (const ShelfOutput::Answer& each : out.answers) workers.push_back(each.header.worker.value);
    return workers;
  }
};

TEST_F(RootAloneTest, the_others_are_answered_when_the_root_has_it) {
  EXPECT_THAT(receivers(world_.take()), ElementsAre(1U));
  world_.push(0, "r", 0, filled(64, 1));
  EXPECT_THAT(receivers(world_.take()), IsEmpty()) << "a repeat does not change that";
  ack(1, 1);
  EXPECT_THAT(receivers(world_.take()), UnorderedElementsAre(0U, 2U));
  ack(0, 1);
  ack(2, 1);
  EXPECT_EQ(lent_bytes(), 0U);
}

TEST_F(RootAloneTest, also_when_its_word_was_lost_with_its_connection) {
  world_.take();
  world_.reconnect(1);
  wire::Declare reduced = declaration("r", DType::kUint8, 128, Operation::kSum, 1);
  reduced.root_only = true;
  world_.declare(1, reduced);
  world_.have(1, "r", 0, Bytes{std::byte{1}});
  EXPECT_THAT(receivers(world_.take()), UnorderedElementsAre(0U, 2U));
}

TEST_F(RootAloneTest, also_when_it_forgets_the_name_or_leaves_the_job) {
  world_.take();
  world_.forget(1, "r");
  EXPECT_THAT(receivers(world_.take()), UnorderedElementsAre(0U, 2U));
  for (std::uint32_t worker = 0; worker < 3; ++worker) {
    world_.push(worker, "r", 0, filled(64, 1), {0, 64});
  }
  EXPECT_THAT(receivers(world_.take()), ElementsAre(1U));
  ShelfOutputs outputs;
  world_.shelf.leave(WorkerRank(1), outputs);
  world_.out.add(std::move(outputs));
  EXPECT_THAT(receivers(world_.take()), UnorderedElementsAre(0U, 2U));
}

TEST_F(SettlingTest, who_has_no_more_inputs_is_not_waited_for) {
  world_.no_more_inputs(2);
  for (const std::uint32_t worker : {0U, 1U}) push(worker, 0);
  world_.take();
  for (const std::uint32_t worker : {0U, 1U}) ack(worker, 1);
  EXPECT_EQ(lent_bytes(), 0U);
}

// Workers 0 and 1 are on one machine, and worker 0 is no member.
TEST(Settling, members_of_a_machine_that_are_all_lost_lack_nothing_though_others_of_it_live) {
  ShelfWorld world({.epoch = Epoch(7),
                    .worker_count = 3,
                    .placement = placed(128, 64),
                    .groups = std::make_shared<const Groups>(std::vector<std::uint64_t>{1, 1, 2}),
                    .recovers = true},
                   {});
  wire::Declare of_two = declaration("t", DType::kUint8, 64);
  of_two.members = Members(std::vector<std::uint32_t>{1, 2});
  for (const std::uint32_t worker : {1U, 2U}) {
    world.declare(worker, of_two);
    world.push(worker, "t", 0, filled(64, 1));
  }
  world.take();
  wire::Header ack = world.about(2, "");
  ack.kind = wire::Kind::kAck;
  ack.key = Key();
  ack.count = 1;
  world.step(2, ack, {});
  EXPECT_EQ(world.pool.lent_bytes(), 64U) << "worker 1 may lack it";
  world.lose(1);
  EXPECT_EQ(world.pool.lent_bytes(), 0U);
}

TEST(Settling, who_had_left_before_a_sum_was_given_lacks_nothing) {
  ShelfWorld world({.epoch = Epoch(7),
                    .worker_count = 3,
                    .placement = placed(128, 64),
                    .recovers = true,
                    .takes_over = true},
                   {});
  world.declare_all(declaration("t", DType::kUint8, 64));
  world.leave(2);
  world.have(1, "t", 6, {}, wire::kHasFormer);
  world.push(0, "t", 5, filled(64, 1));
  world.push(1, "t", 5, filled(64, 2), {}, wire::kSum);
  world.take();
  wire::Header ack = world.about(0, "");
  ack.kind = wire::Kind::kAck;
  ack.key = Key();
  ack.count = 1;
  world.step(0, ack, {});
  world.tick(Settling::kSilenceNs);
  EXPECT_THAT(world.take().settled, SizeIs(1));
}

TEST_F(SettlingTest, when_the_epoch_ends_nobody_is_told_anything_any_more) {
  sum(0);
  world_.take();
  for (const std::uint32_t worker : {0U, 1U, 2U}) ack(worker, 1);
  world_.shelf.end_epoch();
  EXPECT_EQ(world_.shelf.next_deadline(), kNever);
  world_.tick(Settling::kSilenceNs);
  EXPECT_TRUE(world_.take().empty());
}

TEST_F(SettlingTest, counts_that_cannot_be_are_violations) {
  ack(0, 1);
  EXPECT_THAT(world_.take().violations, SizeIs(1)) << "more than were sent";
  sum(0);
  world_.take();
  ack(0, 1);
  ack(0, 0);
  EXPECT_THAT(world_.take().violations, SizeIs(1)) << "fewer than before";
  ack(1, 0xffffffff);
  EXPECT_THAT(world_.take().violations, SizeIs(1));
}

TEST_F(SettlingTest, a_repeat_by_somebody_who_said_that_it_has_the_sum_is_a_violation) {
  sum(0);
  world_.take();
  for (const std::uint32_t worker : {0U, 1U, 2U}) ack(worker, 1);
  push(1, 0);
  const Told out = world_.take();
  EXPECT_THAT(out.answers, IsEmpty());
  EXPECT_THAT(out.violations, SizeIs(1));
}

TEST_F(SettlingTest,
       of_answers_behind_one_that_stays_open_only_those_that_are_open_are_remembered) {
  sum(0, 64);
  ack(0, 1);
  ack(1, 1);  // worker 2 stands still; its tensor is not used for long, another one is
  wire::Declare other = declaration("of two", DType::kUint8, 64);
  other.members = Members(std::vector<std::uint32_t>{0, 1});
  for (const std::uint32_t worker : {0U, 1U}) world_.declare(worker, other);
  for (std::uint32_t round = 0; round < 5000; ++round) {
    for (const std::uint32_t worker : {0U, 1U}) {
      wire::Header header = world_.about(worker, "of two");
      header.kind = wire::Kind::kPush;
      header.round = Round(round);
      header.count = 1 + round;
      world_.step(worker, header, filled(64, 1));
    }
    EXPECT_THAT(world_.take().answers, SizeIs(round == 0 ? 5 : 2));
  }
  EXPECT_LT(world_.shelf.inventory().settling().answer_count(), 4U * 1024);
  world_.tick(Settling::kSilenceNs);
  EXPECT_THAT(world_.take().settled, IsEmpty());
  ack(2, 1);
  ack(0, 5001);
  ack(1, 5001);
  world_.tick(2 * Settling::kSilenceNs);
  EXPECT_THAT(world_.take().settled, SizeIs(3));
  EXPECT_EQ(lent_bytes(), 0U);
}

// At a relay before servers, of workers 0 and 1; worker 2 is on another machine. It leads the tensor.
class CrewSettlingTest : public testing::Test {
 protected:
  explicit CrewSettlingTest(bool takes_over = false)
      : world_(ShelfEpoch{.epoch = Epoch(7),
                          .worker_count = 3,
                          .placement = placed(128, 64),
                          .groups =
                              std::make_shared<const Groups>(std::vector<std::uint64_t>{1, 1, 2}),
                          .relay = WorkerRank(0),
                          .keeps_links = true,
                          .recovers = true,
                          .takes_over = takes_over},
               {}) {
    tensor_ = declaration("t", DType::kUint8, 64);
    while (leader_of({WorkerRank(0), WorkerRank(1)}, key_of(tensor_.name), 0, 1) != WorkerRank(0)) {
      tensor_.name += "t";
    }
  }
  void declare_both() {
    for (const std::uint32_t worker : {0U, 1U}) world_.declare(worker, tensor_);
  }
  void push(std::uint32_t worker, std::uint32_t round = 0) {
    wire::Header header = world_.about(worker, tensor_.name);
    header.kind = wire::Kind::kPush;
    header.round = Round(round);
    header.count = acked_[worker];
    const bool gives = tensor_.gives(WorkerRank(worker));
    header.flags = gives ? 0 : wire::kNoPayload;
    world_.step(worker, header, gives ? filled(64, 1) : Bytes());
  }
  // The servers' answer.
  void answer(std::uint32_t round = 0, const Bytes& sum = filled(64, 3)) {
    wire::Header header = world_.about(0, tensor_.name);
    header.round = Round(round);
    ShelfOutputs outputs;
    world_.shelf.answered(header, sum, outputs);
    world_.out.add(std::move(outputs));
  }
  void sum(std::uint32_t round = 0) {
    for (const std::uint32_t worker : {0U, 1U}) push(worker, round);
    answer(round);
  }
  void ack(std::uint32_t worker, std::uint32_t count) {
    wire::Header header = world_.about(worker, "");
    header.kind = wire::Kind::kAck;
    header.key = Key();
    header.count = acked_[worker] = count;
    world_.step(worker, header, {});
  }
  void tick() {
    world_.tick(world_.now + Settling::kSilenceNs);
    world_.tick(world_.now + Settling::kSilenceNs);
  }
  void settled_above(std::uint32_t round = 0) {
    world_.shelf.settled_above(key_of(tensor_.name), PartIndex(0), 0, Round(round));
  }
  std::vector<Round> rounds_of_crew() {
    std::vector<Round> rounds;
    for (const ShelfOutput::CrewHas& each : world_.take().crew_has) rounds.push_back(each.round);
    return rounds;
  }

  wire::Declare tensor_;
  ShelfWorld world_;
  std::array<std::uint32_t, 2> acked_{};  // what each has said last
};

TEST_F(CrewSettlingTest, that_all_of_the_crew_have_a_sum_is_said_and_does_not_settle_it) {
  declare_both();
  sum();
  EXPECT_THAT(rounds_of_crew(), IsEmpty());
  ack(0, 1);
  tick();
  EXPECT_THAT(rounds_of_crew(), IsEmpty());
  ack(1, 1);
  tick();
  const Told told = world_.take();
  ASSERT_THAT(told.crew_has, SizeIs(1));
  EXPECT_EQ(told.crew_has[0].key, key_of(tensor_.name));
  EXPECT_EQ(told.crew_has[0].round, Round(0));
  EXPECT_THAT(told.settled, IsEmpty()) << "those of other machines may lack it";
  settled_above();
  tick();
  const Told settled = world_.take();
  ASSERT_THAT(settled.settled, SizeIs(2));
  EXPECT_EQ(settled.settled[0].count, 1U);
  EXPECT_THAT(settled.crew_has, IsEmpty()) << "once";
}

TEST_F(CrewSettlingTest, nor_do_those_of_other_machines_settle_it_for_the_crew) {
  declare_both();
  sum();
  settled_above();
  tick();
  EXPECT_THAT(world_.take().settled, IsEmpty());
  ack(0, 1);
  ack(1, 1);
  tick();
  EXPECT_THAT(world_.take().settled, SizeIs(2));
}

TEST_F(CrewSettlingTest, of_another_round_they_say_nothing_of_this_one) {
  declare_both();
  sum(0);
  ack(0, 1);
  ack(1, 1);
  sum(1);
  ack(0, 2);
  ack(1, 2);
  world_.take();
  settled_above(0);
  tick();
  const Told told = world_.take();
  for (const ShelfOutput::Settled& each : told.settled) EXPECT_EQ(each.count, 1U);
  settled_above(1);
  tick();
  EXPECT_THAT(world_.take().settled, SizeIs(2));
}

TEST_F(CrewSettlingTest, who_pushes_the_next_round_has_the_sum) {
  declare_both();
  sum(0);
  push(0, 1);
  tick();
  EXPECT_THAT(rounds_of_crew(), IsEmpty());
  push(1, 1);
  tick();
  EXPECT_THAT(rounds_of_crew(), ElementsAre(Round(0)));
}

TEST_F(CrewSettlingTest, nobody_waits_for_one_of_the_crew_that_has_left) {
  declare_both();
  sum(0);
  ack(0, 1);
  tick();
  EXPECT_THAT(rounds_of_crew(), IsEmpty());
  ShelfOutputs outputs;
  world_.shelf.leave(WorkerRank(1), outputs);
  world_.out.add(std::move(outputs));
  EXPECT_THAT(rounds_of_crew(), ElementsAre(Round(0)));
}

TEST_F(CrewSettlingTest, nor_for_one_that_is_lost) {
  declare_both();
  sum(0);
  ack(0, 1);
  world_.lose(1);
  EXPECT_THAT(rounds_of_crew(), ElementsAre(Round(0)));
}

// Its crew has brought it, and what goes to the servers is what the others of the crew get.
TEST_F(CrewSettlingTest, the_sum_before_is_settled_while_the_next_is_with_the_servers) {
  tensor_.operation = Operation::kBroadcast;
  tensor_.root = WorkerRank(0);
  declare_both();
  for (const std::uint32_t worker : {0U, 1U}) push(worker, 0);
  answer(0, {});
  world_.take();
  for (const std::uint32_t worker : {0U, 1U}) push(worker, 1);
  settled_above(0);
  tick();
  answer(1, {});
  const Told told = world_.take();
  ASSERT_THAT(told.answers, SizeIs(2));
  for (const ShelfOutput::Answer& each : told.answers) {
    const bool is_root = each.header.worker == WorkerRank(0);
    EXPECT_EQ(bytes_of(each.payload()), is_root ? Bytes() : filled(64, 1));
  }
}

TEST_F(CrewSettlingTest, for_a_root_of_another_machine_the_servers_have_waited) {
  tensor_.root = WorkerRank(2);
  tensor_.root_only = true;
  declare_both();
  for (const std::uint32_t worker : {0U, 1U}) push(worker, 0);
  answer(0, {});
  EXPECT_THAT(world_.take().answers, SizeIs(2));
}

TEST_F(CrewSettlingTest, for_one_of_the_crew_it_waits_itself) {
  tensor_.root = WorkerRank(1);
  tensor_.root_only = true;
  declare_both();
  sum();
  ASSERT_THAT(world_.out.answers, SizeIs(1));
  EXPECT_EQ(world_.take().answers[0].header.worker, WorkerRank(1));
  ack(1, 1);
  tick();
  EXPECT_THAT(world_.take().answers, SizeIs(1));
}

TEST_F(CrewSettlingTest, an_answer_that_nobody_here_waits_for_is_of_a_sum_that_they_have) {
  answer(4);
  EXPECT_THAT(rounds_of_crew(), ElementsAre(Round(4)));
}

// What stands in for another is answered what that has pushed.
class StandInSettlingTest : public CrewSettlingTest {
 protected:
  StandInSettlingTest() : CrewSettlingTest(true) {}
};

// What the root has brought is not in the servers' answer.
TEST_F(StandInSettlingTest,
       a_sum_of_the_round_before_that_comes_late_does_not_take_the_place_of_this_one) {
  tensor_.operation = Operation::kBroadcast;
  declare_both();
  world_.have(1, tensor_.name, 5, {std::byte{1}});
  ASSERT_THAT(world_.take().given, SizeIs(1));
  for (const std::uint32_t worker : {0U, 1U}) push(worker, 6);
  ASSERT_THAT(world_.take().forwards, SizeIs(1));
  world_.push(1, tensor_.name, 5, filled(64, 7), {}, wire::kSum);
  const Told told = world_.take();
  ASSERT_FALSE(told.had.empty());
  EXPECT_EQ(bytes_of(told.had[0].buffer.span()), filled(64, 7));
  answer(6, {});
  const auto answers = world_.take().answers;
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(bytes_of(answers[1].payload()), filled(64, 1));
}

TEST_F(StandInSettlingTest, unless_they_are_to_come_for_it_yet) {
  answer(4);
  EXPECT_THAT(rounds_of_crew(), IsEmpty());
  declare_both();
  push(0, 4);
  answer(4);
  EXPECT_THAT(rounds_of_crew(), IsEmpty()) << "worker 1 has not pushed it";
}

TEST_F(StandInSettlingTest, or_are_further_by_now) {
  declare_both();
  for (const std::uint32_t worker : {0U, 1U}) push(worker, 5);
  world_.take();
  answer(4);
  EXPECT_THAT(rounds_of_crew(), ElementsAre(Round(4)));
}

}  // namespace
}  // namespace byteps
