// A worker is lost, and the job goes on without it: sums are of those that are left, and of what it had contributed.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/shelf_world.h"

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

ShelfEpoch recovering(std::uint32_t workers) {
  return {
      .epoch = Epoch(7), .worker_count = workers, .placement = placed(256, 64), .recovers = true};
}

const Bytes kOne = floats({1, 2});
const Bytes kTwo = floats({10, 20});
const Bytes kFour = floats({100, 200});

class ShelfLossesTest : public testing::Test {
 protected:
  ShelfLossesTest() : world_(recovering(3), {}) {}
  // What each answer brings to whom.
  std::vector<std::pair<std::uint32_t, Bytes>> answered() {
    std::vector<std::pair<std::uint32_t, Bytes>> found;
    for (const auto& answer : world_.out.answers) {
      found.emplace_back(answer.header.worker.value, bytes_of(answer.payload()));
    }
    std::sort(found.begin(), found.end());
    world_.out.answers.clear();
    return found;
  }
  ShelfWorld world_;
};

TEST_F(ShelfLossesTest, what_waited_for_the_lost_one_alone_is_finished_without_it) {
  world_.declare_all(declaration("t", DType::kFloat32, 8));
  world_.push(0, "t", 0, kOne);
  world_.push(1, "t", 0, kTwo);
  EXPECT_THAT(answered(), IsEmpty());
  world_.lose(2);
  const Bytes sum = floats({11, 22});
  EXPECT_THAT(answered(), ElementsAre(std::pair(0U, sum), std::pair(1U, sum)));
  world_.push(0, "t", 1, kTwo);
  world_.push(1, "t", 1, kTwo);
  EXPECT_THAT(answered(), SizeIs(2)) << "nor do later rounds wait for it";
}

TEST_F(ShelfLossesTest, what_the_lost_one_has_contributed_counts) {
  world_.declare_all(declaration("t", DType::kFloat32, 8));
  world_.push(2, "t", 0, kFour);
  world_.push(0, "t", 0, kOne);
  world_.lose(2);
  EXPECT_THAT(answered(), IsEmpty()) << "worker 1 is awaited still";
  world_.push(1, "t", 0, kTwo);
  const Bytes sum = floats({111, 222});
  EXPECT_THAT(answered(), ElementsAre(std::pair(0U, sum), std::pair(1U, sum)));
}

TEST_F(ShelfLossesTest, an_average_is_of_those_that_are_in_it) {
  world_.declare_all(declaration("t", DType::kFloat32, 8, Operation::kAverage));
  world_.push(2, "t", 0, floats({6, 9}));
  world_.push(0, "t", 0, floats({0, 0}));
  world_.lose(2);
  world_.push(1, "t", 0, floats({0, 0}));
  const Bytes third = floats({2, 3});
  EXPECT_THAT(answered(), ElementsAre(std::pair(0U, third), std::pair(1U, third)));
  world_.push(0, "t", 1, floats({6, 8}));
  world_.push(1, "t", 1, floats({0, 0}));
  const Bytes half = floats({3, 4});
  EXPECT_THAT(answered(), ElementsAre(std::pair(0U, half), std::pair(1U, half)));
}

TEST_F(ShelfLossesTest, each_frame_says_from_which_round_on_it_is_without_the_lost_one) {
  world_.declare_all(declaration("t", DType::kFloat32, 128));  // two frames
  world_.push(2, "t", 0, filled(64, 0));
  world_.push(0, "t", 0, filled(64, 0), {.part = 0, .offset = 64});
  world_.lose(2);
  world_.push(0, "t", 0, filled(64, 0));
  world_.push(1, "t", 0, filled(64, 0));
  EXPECT_THAT(world_.out.absences, IsEmpty()) << "it is in the first round of the first";
  world_.push(1, "t", 0, filled(64, 0), {.part = 0, .offset = 64});
  ASSERT_THAT(world_.out.absences, SizeIs(1));
  EXPECT_EQ(world_.out.absences[0].name, "t");
  EXPECT_EQ(world_.out.absences[0].worker, WorkerRank(2));
  EXPECT_EQ(world_.out.absences[0].first_element, 16U);
  EXPECT_EQ(world_.out.absences[0].element_count, 16U);
  EXPECT_EQ(world_.out.absences[0].since, Round(0));
  world_.out.absences.clear();
  for (const std::uint32_t each : {0U, 1U}) world_.push(each, "t", 1, filled(64, 0));
  ASSERT_THAT(world_.out.absences, SizeIs(1));
  EXPECT_EQ(world_.out.absences[0].first_element, 0U);
  EXPECT_EQ(world_.out.absences[0].since, Round(1));
  world_.out.absences.clear();
  for (const std::uint32_t each : {0U, 1U}) world_.push(each, "t", 2, filled(64, 0));
  EXPECT_THAT(world_.out.absences, IsEmpty()) << "once";
  world_.push(0, "t", 3, filled(64, 0));
  world_.lose(1);
  ASSERT_THAT(world_.out.absences, SizeIs(2)) << "all that are not in it";
  EXPECT_EQ(world_.out.absences[0].worker, WorkerRank(1));
  EXPECT_EQ(world_.out.absences[0].since, Round(3));
}

TEST_F(ShelfLossesTest, a_broadcast_whose_root_is_lost_ends_with_its_name) {
  world_.declare_all(declaration("b", DType::kFloat32, 8, Operation::kBroadcast, 2));
  world_.push(0, "b", 0, {}, {}, wire::kNoPayload);
  world_.push(1, "b", 0, {}, {}, wire::kNoPayload);
  world_.lose(2);
  ASSERT_THAT(world_.out.spoiled, SizeIs(1));
  EXPECT_THAT(world_.out.spoiled[0].text, HasSubstr("its root, worker 2, was lost"));
  EXPECT_THAT(world_.out.spoiled[0].text, HasSubstr("leader()"));
  EXPECT_EQ(world_.out.spoiled[0].cause.kind, CauseKind::kGone);
}

TEST_F(ShelfLossesTest, a_broadcast_that_its_root_has_begun_goes_on) {
  world_.declare_all(declaration("b", DType::kFloat32, 8, Operation::kBroadcast, 2));
  world_.push(2, "b", 0, kFour);
  world_.push(0, "b", 0, {}, {}, wire::kNoPayload);
  world_.lose(2);
  world_.push(1, "b", 0, {}, {}, wire::kNoPayload);
  EXPECT_THAT(answered(), ElementsAre(std::pair(0U, kFour), std::pair(1U, kFour)));
  EXPECT_THAT(world_.out.spoiled, IsEmpty());
}

TEST_F(ShelfLossesTest, the_end_of_inputs_does_not_wait_for_it_in_any_generation) {
  world_.no_more_inputs(0);
  world_.no_more_inputs(1);
  world_.out.clear();
  world_.lose(2);
  ASSERT_THAT(world_.out.inputs_done, SizeIs(1));
  EXPECT_EQ(world_.out.inputs_done[0].generation, 1U);
  EXPECT_EQ(world_.out.inputs_done[0].last, WorkerRank(1));
  world_.out.clear();
  world_.no_more_inputs(0, 1);
  world_.no_more_inputs(1, 1);
  EXPECT_EQ(world_.out.inputs_done.back().generation, 2U);
}

TEST_F(ShelfLossesTest, a_name_that_all_others_have_forgotten_is_forgotten) {
  world_.declare_all(declaration("once", DType::kFloat32, 8));
  world_.push(0, "once", 0, kOne);
  world_.push(1, "once", 0, kTwo);
  world_.lose(2);
  world_.forget(0, "once");
  world_.forget(1, "once");
  EXPECT_THAT(world_.out.forgotten_by_all, SizeIs(1));
}

TEST_F(ShelfLossesTest, what_another_shard_could_not_sum_goes_with_what_was_pushed_of_it) {
  world_.declare_all(declaration("b", DType::kFloat32, 8, Operation::kBroadcast, 2));
  world_.push(0, "b", 0, {}, {}, wire::kNoPayload);
  world_.lose(2);
  const Inventory& inventory = world_.shelf.inventory();
  EXPECT_EQ(inventory.incomplete_frame_count(), 1U);
  world_.forget(0, "b");
  EXPECT_EQ(inventory.incomplete_frame_count(), 1U) << "worker 1 may have heard of nothing";
  world_.forget(1, "b");
  EXPECT_EQ(inventory.incomplete_frame_count(), 0U);
  EXPECT_THAT(inventory.tensors(), IsEmpty());
}

TEST_F(ShelfLossesTest, what_could_not_be_summed_is_told_later_though_others_have_forgotten_it) {
  world_.declare(0, declaration("t", DType::kFloat32, 8));
  world_.declare(1, declaration("t", DType::kInt32, 8));
  EXPECT_THAT(world_.out.spoiled, SizeIs(1));
  for (const std::uint32_t worker : {0U, 1U, 2U}) {
    if (worker < 2) world_.forget(worker, "t");
    world_.no_more_inputs(worker);
  }
  EXPECT_EQ(world_.out.inputs_done.back().generation, 1U);
  world_.out.clear();
  world_.declare(2, declaration("t", DType::kFloat32, 8));
  EXPECT_THAT(world_.out.spoiled, SizeIs(1)) << "or it would wait for them";
}

TEST_F(ShelfLossesTest,
       members_that_have_forgotten_it_are_not_all_where_ranks_disagree_about_them) {
  const std::vector<std::uint32_t> members = {0, 1};
  wire::Declare declared = declaration("t", DType::kFloat32, 8);
  declared.members = Members(members);
  world_.declare(0, declared);
  world_.declare(1, declaration("t", DType::kFloat32, 8));
  world_.forget(0, "t");
  world_.forget(1, "t");
  world_.out.clear();
  world_.declare(2, declaration("t", DType::kFloat32, 8));
  EXPECT_THAT(world_.out.spoiled, SizeIs(1)) << "to worker 2 it is one of all";
}

TEST_F(ShelfLossesTest, a_successor_knows_who_was_lost_before_it_came) {
  ShelfEpoch facts = recovering(3);
  facts.takes_over = true;
  facts.lost = {WorkerRank(2)};
  ShelfWorld heir(facts, {});
  heir.declare(0, declaration("t", DType::kFloat32, 8));
  heir.declare(1, declaration("t", DType::kFloat32, 8));
  heir.push(0, "t", 4, kOne);
  heir.push(1, "t", 4, kTwo);
  EXPECT_THAT(heir.out.answers, SizeIs(2));
}

TEST_F(ShelfLossesTest, a_sum_that_the_lost_one_alone_had_is_made_anew_without_it) {
  ShelfEpoch facts = recovering(3);
  facts.takes_over = true;
  ShelfWorld heir(facts, {});
  heir.declare_all(declaration("t", DType::kFloat32, 8));
  heir.have(2, "t", 5, {}, wire::kHasFormer);
  heir.push(0, "t", 4, kOne);
  heir.push(1, "t", 4, kTwo);
  ASSERT_THAT(heir.out.given, SizeIs(1)) << "worker 2 is asked for it";
  heir.lose(2);
  EXPECT_THAT(heir.out.again, SizeIs(2));
  heir.push(0, "t", 4, kOne);
  heir.push(1, "t", 4, kTwo);
  ASSERT_THAT(heir.out.answers, SizeIs(2));
  EXPECT_EQ(bytes_of(heir.out.answers[0].payload()), floats({11, 22}));
}

// Another shard says when all have no more; this one may not have heard of all.
TEST(ShelfLosses, who_had_no_more_before_another_was_lost_is_not_taken_to_be_in_the_next) {
  ShelfWorld world(recovering(4), {});
  world.declare_all(declaration("t", DType::kFloat32, 8));
  world.no_more_inputs(0);
  world.inputs(2, 1, 0);
  world.lose(2);
  world.push(1, "t", 0, kOne);
  world.push(3, "t", 0, kTwo);
  EXPECT_THAT(world.out.violations, IsEmpty());
  EXPECT_THAT(world.out.answers, SizeIs(2));
}

TEST(ShelfLosses, who_is_in_the_next_begins_it_though_who_said_so_first_was_lost) {
  ShelfWorld world(recovering(4), {});
  const wire::Declare declared = declaration("t", DType::kFloat32, 8);
  world.declare_all(declared);
  for (const std::uint32_t worker : {0U, 3U}) world.no_more_inputs(worker);
  world.inputs(2, 1, 0);
  world.inputs(3, 1, 0);
  world.lose(2);
  world.push(3, "t", first_round(1).value, kOne);
  EXPECT_THAT(world.out.violations, IsEmpty());
  world.push(0, "t", first_round(1).value, kTwo);
  world.push(1, "t", first_round(1).value, kFour);
  ASSERT_THAT(world.out.answers, SizeIs(3));
  EXPECT_EQ(bytes_of(world.out.answers[0].payload()), floats({111, 222}));
}

// ---- machines whose workers sum first

// Workers 0 and 1 are on one machine, worker 2 on another. Another relay stands in for that of worker 0, which is lost.
class MachineLossesTest : public testing::Test {
 protected:
  MachineLossesTest() : world_(facts(), {}) {
    while (leader_of({WorkerRank(0), WorkerRank(1)}, key_of(tensor_.name), 0, 1) != WorkerRank(0)) {
      tensor_.name += "t";
    }
    for (const std::uint32_t worker : {0U, 2U}) world_.declare(worker, tensor_);
  }
  static ShelfEpoch facts() {
    ShelfEpoch facts = recovering(3);
    facts.groups = std::make_shared<const Groups>(std::vector<std::uint64_t>{1, 1, 2});
    return facts;
  }
  void lose_first() {
    ShelfOutputs outputs;
    world_.shelf.lose(WorkerRank(0), outputs, {WorkerRank(0)});
    world_.out.add(std::move(outputs));
    world_.reconnect(0);
    world_.declare(0, tensor_);
  }
  void push(std::uint32_t worker, std::uint16_t lost = 0) {
    wire::Header header = world_.about(worker, tensor_.name);
    header.kind = wire::Kind::kPush;
    header.lost = lost;
    world_.step(worker, header, kOne);
  }
  void ack(std::uint32_t worker) {
    wire::Header header = world_.about(worker, "");
    header.kind = wire::Kind::kAck;
    header.key = Key();
    header.count = 1;
    world_.step(worker, header, {});
  }
  wire::Declare tensor_ = declaration("t", DType::kFloat32, 8);
  ShelfWorld world_;
};

TEST_F(MachineLossesTest, what_stands_in_says_again_what_its_crew_have_forgotten) {
  world_.forget(0, tensor_.name);
  lose_first();
  world_.forget(2, tensor_.name);
  EXPECT_THAT(world_.out.forgotten_by_all, IsEmpty()) << "some of the crew may not have";
  world_.forget(0, tensor_.name);
  EXPECT_THAT(world_.out.forgotten_by_all, SizeIs(1));
}

TEST_F(MachineLossesTest, a_sum_that_the_rest_of_a_crew_may_lack_is_kept_until_they_are_lost_too) {
  push(0);
  push(2);
  ack(2);
  lose_first();
  EXPECT_GT(world_.pool.lent_bytes(), 0U) << "worker 1 may come for it";
  world_.take();
  push(0, 0b01);
  EXPECT_THAT(world_.take().answers, SizeIs(1));
  world_.lose(1);
  EXPECT_EQ(world_.pool.lent_bytes(), 0U);
}

TEST_F(MachineLossesTest,
       what_comes_late_of_a_crew_that_has_no_more_inputs_or_is_lost_is_not_summed) {
  lose_first();
  world_.no_more_inputs(1);
  world_.take();
  push(0, 0b01);
  const Told told = world_.take();
  EXPECT_THAT(told.violations, IsEmpty());
  EXPECT_EQ(world_.shelf.inventory().incomplete_frame_count(), 0U);
}

}  // namespace
}  // namespace byteps
