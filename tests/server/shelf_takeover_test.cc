// A shelf of a shard that took another one's place: of each frame it learns from the workers where it is.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/prng.h"
#include "tests/server/shelf_world.h"

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::uint8_t kFormer = wire::kHasFormer;

ShelfEpoch successor(std::uint32_t workers) {
  return {.epoch = Epoch(7),
          .worker_count = workers,
          .placement = placed(256, 64),
          .recovers = true,
          .takes_over = true};
}

Bytes bits(int value) {
  return Bytes{static_cast<std::byte>(value)};
}

class ShelfTakeoverTest : public testing::Test {
 protected:
  explicit ShelfTakeoverTest(std::uint32_t workers = 2) : world_(successor(workers), {}) {
    world_.declare_all(declaration("t", DType::kFloat32, 16));
  }
  // What each answer brings to whom.
  std::vector<std::pair<std::uint32_t, Bytes>> answered() {
    std::vector<std::pair<std::uint32_t, Bytes>> found;
    for (const auto& answer : world_.out.answers) {
      found.emplace_back(answer.header.worker.value, bytes_of(answer.payload()));
    }
    return found;
  }
  ShelfWorld world_;
};

const Bytes kOne = floats({1, 2, 3, 4});
const Bytes kTwo = floats({10, 20, 30, 40});
const Bytes kSum = floats({11, 22, 33, 44});

TEST_F(ShelfTakeoverTest, goes_on_in_the_round_that_is_pushed_whatever_that_is) {
  world_.push(0, "t", 41, kOne);
  world_.push(1, "t", 41, kTwo);
  EXPECT_THAT(answered(), ElementsAre(std::pair(0U, kSum), std::pair(1U, kSum)));
  world_.out.clear();
  world_.push(1, "t", 42, kTwo);
  world_.push(0, "t", 42, kTwo);
  EXPECT_THAT(world_.out.answers, SizeIs(2)) << "the takeover is over";
  EXPECT_THAT(world_.out.violations, IsEmpty());
}

TEST_F(ShelfTakeoverTest, who_lacks_a_sum_that_another_has_gets_that_one) {
  world_.push(0, "t", 5, kOne);  // has no answer to it
  world_.have(1, "t", 6, {}, kFormer);
  ASSERT_THAT(world_.out.given, SizeIs(1));
  EXPECT_EQ(world_.out.given[0].worker, WorkerRank(1));
  EXPECT_EQ(world_.out.given[0].round, Round(5));
  EXPECT_THAT(world_.out.answers, IsEmpty());
  const Bytes used = floats({7, 7, 7, 7});  // whatever it is: worker 1 has used it
  world_.push(1, "t", 5, used, {}, wire::kSum);
  EXPECT_THAT(answered(), ElementsAre(std::pair(0U, used)));
  world_.out.clear();
  world_.push(1, "t", 6, kOne);
  world_.push(0, "t", 6, kTwo);
  EXPECT_THAT(answered(), ElementsAre(std::pair(0U, kSum), std::pair(1U, kSum)));
}

TEST_F(ShelfTakeoverTest,
       of_a_coded_tensor_a_sum_comes_as_codes_or_as_elements_and_is_answered_so) {
  const Bytes codes = filled(20, 0);  // a scale and 16 codes
  for (const auto& [name, given] : {std::pair("codes", filled(20, 1)),
                                    std::pair("elements", floats(std::vector<float>(16, 0.3F)))}) {
    wire::Declare coded = declaration(name, DType::kFloat32, 64);
    coded.format = Format::kInt8;
    world_.declare_all(coded);
    world_.push(0, name, 5, codes);
    world_.have(1, name, 6, {}, kFormer);
    world_.push(1, name, 5, given, {}, wire::kSum);
    EXPECT_THAT(answered(), ElementsAre(std::pair(0U, given)));
    world_.out.clear();
    for (const std::uint32_t worker : {0U, 1U}) world_.push(worker, name, 6, codes);
    EXPECT_THAT(answered(), ElementsAre(std::pair(0U, codes), std::pair(1U, codes)));
    world_.out.clear();
  }
  world_.push(1, "elements", 7, floats(std::vector<float>(16, 0.3F)));
  EXPECT_THAT(world_.out.violations, SizeIs(1)) << "a contribution is codes";
}

TEST_F(ShelfTakeoverTest, a_sum_of_which_nobody_has_said_that_he_has_it_is_made_of_contributions) {
  world_.have(0, "t", 5, {}, kFormer);
  world_.have(1, "t", 5, {}, kFormer);
  world_.push(0, "t", 5, kOne);
  world_.push(1, "t", 5, kTwo);
  EXPECT_THAT(answered(), ElementsAre(std::pair(0U, kSum), std::pair(1U, kSum)));
}

TEST_F(ShelfTakeoverTest, of_the_frames_of_a_part_each_is_where_it_is) {
  world_.declare_all(declaration("wide", DType::kFloat32, 192));  // three frames
  world_.have(0, "wide", 3, bits(0b010), kFormer);                // the second is answered
  world_.have(1, "wide", 3, {}, kFormer);
  const Bytes payload = filled(64, 0);
  for (const std::uint64_t offset : {0U, 64U, 128U}) {
    world_.push(1, "wide", 3, payload, {.part = 0, .offset = offset});
  }
  ASSERT_THAT(world_.out.given, SizeIs(1));
  EXPECT_EQ(world_.out.given[0].offset_bytes, 64U);
  world_.push(0, "wide", 3, payload, {.part = 0, .offset = 0});
  world_.push(0, "wide", 3, payload, {.part = 0, .offset = 128});
  EXPECT_THAT(world_.out.answers, SizeIs(4));
}

TEST_F(ShelfTakeoverTest, who_has_said_what_it_has_is_told_when_all_have) {
  world_.have(0, "t", 6, {}, kFormer);
  EXPECT_THAT(world_.out.settled_frames, IsEmpty());
  world_.have(1, "t", 6, {}, kFormer);
  ASSERT_THAT(world_.out.settled_frames, SizeIs(2));
  for (const std::uint32_t worker : {0U, 1U}) {
    EXPECT_EQ(world_.out.settled_frames[worker].worker, WorkerRank(worker));
    EXPECT_EQ(world_.out.settled_frames[worker].round, Round(5));
  }
  EXPECT_THAT(world_.out.given, IsEmpty());
  world_.disconnect(1);
  world_.reconnect(1);
  world_.declare(1, declaration("t", DType::kFloat32, 16));
  world_.out.clear();
  world_.have(1, "t", 6, {}, kFormer);
  EXPECT_THAT(world_.out.settled_frames, SizeIs(1)) << "its word may have been lost";
}

TEST_F(ShelfTakeoverTest, and_when_one_that_has_not_leaves) {
  world_.have(0, "t", 6, {}, kFormer);
  world_.leave(1);
  ASSERT_THAT(world_.out.settled_frames, SizeIs(1));
  EXPECT_EQ(world_.out.settled_frames[0].worker, WorkerRank(0));
}

TEST_F(ShelfTakeoverTest, who_was_asked_and_is_gone_is_asked_again_when_it_is_back) {
  world_.push(0, "t", 5, kOne);
  world_.have(1, "t", 6, {}, kFormer);
  world_.disconnect(1);
  world_.reconnect(1);
  world_.declare(1, declaration("t", DType::kFloat32, 16));
  world_.have(1, "t", 6, {}, kFormer);
  EXPECT_THAT(world_.out.given, SizeIs(2));
}

// It has left the job, and took the sum of round 5 along.
TEST_F(ShelfTakeoverTest, a_sum_that_only_a_worker_had_which_left_ends_its_tensor_by_that_name) {
  world_.have(1, "t", 6, {}, kFormer);
  world_.told_all(0);
  world_.push(0, "t", 5, kOne);
  world_.leave(1);
  EXPECT_THAT(world_.out.spoiled, IsEmpty()) << "it is connected, and was asked";
  world_.disconnect(1);
  ASSERT_THAT(world_.out.spoiled, SizeIs(1));
  EXPECT_EQ(world_.out.spoiled[0].code, Code::kDisconnected);
  EXPECT_EQ(world_.out.spoiled[0].text,
            "tensor \"t\" (float32, shape 4, 16 bytes, sum): its server was lost, and its last sum "
            "had only worker 1, which has left the job");
  EXPECT_EQ(world_.out.spoiled[0].cause.kind, CauseKind::kLeft);
  EXPECT_EQ(world_.out.spoiled[0].cause.who.rank, 1U);
  EXPECT_THAT(world_.out.again, IsEmpty()) << "without its contribution it would be another sum";
}

TEST_F(ShelfTakeoverTest, who_needs_it_may_come_when_the_other_has_left) {
  world_.have(1, "t", 6, {}, kFormer);
  world_.disconnect(1);
  world_.leave(1);
  world_.told_all(0);
  EXPECT_THAT(world_.out.spoiled, IsEmpty());
  world_.push(0, "t", 5, kOne);
  EXPECT_THAT(world_.out.spoiled, SizeIs(1));
}

TEST(ShelfTakeover, a_sum_is_not_taken_for_gone_before_all_have_said_what_they_have) {
  ShelfWorld world(successor(3), {});
  world.declare_all(declaration("t", DType::kFloat32, 16));
  world.told_all(0);
  world.have(1, "t", 6, {}, kFormer);
  world.push(0, "t", 5, kOne);
  world.leave(1);
  world.disconnect(1);
  EXPECT_THAT(world.out.spoiled, IsEmpty()) << "worker 2 has not come";
  world.told_all(2);
  EXPECT_THAT(world.out.spoiled, SizeIs(1)) << "it has it not";
}

// A relay that stands in for another before servers: of its crew, one needs what another took along.
TEST(ShelfTakeover, also_at_a_relay_before_servers_nobody_waits_for_a_sum_that_is_gone) {
  ShelfEpoch epoch = successor(4);
  epoch.groups = std::make_shared<const Groups>(std::vector<std::uint64_t>{1, 1, 1, 2});
  epoch.relay = WorkerRank(0);
  epoch.lost = {WorkerRank(0)};
  std::string name = "t";
  while (leader_of({WorkerRank(0), WorkerRank(1), WorkerRank(2)}, key_of(name), 0, 1) !=
         WorkerRank(0)) {
    name += "t";
  }
  ShelfWorld world(epoch, {});
  for (const std::uint32_t worker : {1U, 2U}) {
    world.declare(worker, declaration(name, DType::kFloat32, 16));
  }
  world.have(1, name, 6, {}, kFormer);
  world.told_all(1);
  world.told_all(2);
  world.leave(1);
  world.disconnect(1);
  world.push(2, name, 5, kOne);
  EXPECT_THAT(world.out.spoiled, SizeIs(1));
}

TEST(ShelfTakeover, a_loss_can_be_what_makes_a_sum_gone) {
  ShelfWorld world(successor(3), {});
  world.declare_all(declaration("t", DType::kFloat32, 16));
  world.have(1, "t", 6, {}, kFormer);
  world.have(2, "t", 6, {}, kFormer);
  for (const std::uint32_t worker : {0U, 1U, 2U}) world.told_all(worker);
  world.push(0, "t", 5, kOne);
  world.leave(1);
  world.disconnect(1);
  EXPECT_THAT(world.out.spoiled, IsEmpty());
  world.lose(2);
  EXPECT_THAT(world.out.spoiled, SizeIs(1));
}

TEST(ShelfTakeover, who_has_left_is_not_missed_while_another_has_the_sum) {
  ShelfWorld world(successor(3), {});
  world.declare_all(declaration("t", DType::kFloat32, 16));
  world.have(1, "t", 6, {}, kFormer);
  world.have(2, "t", 6, {}, kFormer);
  world.push(0, "t", 5, kOne);
  ASSERT_THAT(world.out.given, SizeIs(1));
  EXPECT_EQ(world.out.given[0].worker, WorkerRank(1));
  world.leave(1);
  world.disconnect(1);
  EXPECT_THAT(world.out.spoiled, IsEmpty());
  ASSERT_THAT(world.out.given, SizeIs(2));
  EXPECT_EQ(world.out.given[1].worker, WorkerRank(2));
}

TEST(ShelfTakeover, where_the_root_that_alone_got_it_has_left_with_it_the_others_are_answered) {
  ShelfWorld world(successor(3), {});
  wire::Declare reduced = declaration("t", DType::kFloat32, 16, Operation::kSum, 1);
  reduced.root_only = true;
  world.declare_all(reduced);
  world.have(1, "t", 6, {}, kFormer);
  for (const std::uint32_t worker : {0U, 1U, 2U}) world.told_all(worker);
  world.disconnect(1);
  world.leave(1);
  world.push(0, "t", 5, kOne);
  world.push(2, "t", 5, kOne);
  EXPECT_THAT(world.out.spoiled, IsEmpty());
  ASSERT_THAT(world.out.answers, SizeIs(2));
  for (const auto& answer : world.out.answers) {
    EXPECT_EQ(answer.header.flags, wire::kNoPayload);
    EXPECT_THAT(answer.payload(), IsEmpty());
  }
}

TEST_F(ShelfTakeoverTest, more_than_one_round_apart_breaks_the_protocol) {
  world_.push(0, "t", 5, kOne);
  world_.push(1, "t", 7, kOne);
  EXPECT_THAT(world_.out.violations, SizeIs(1));
}

TEST_F(ShelfTakeoverTest, who_has_no_more_inputs_may_have_stopped_many_rounds_ago) {
  world_.no_more_inputs(1);
  world_.have(1, "t", 3, {}, kFormer);
  world_.push(0, "t", 9, kOne);
  EXPECT_THAT(world_.out.violations, IsEmpty());
  EXPECT_THAT(answered(), ElementsAre(std::pair(0U, kOne)));
}

TEST_F(ShelfTakeoverTest,
       a_bitmap_that_is_too_long_or_of_what_is_not_declared_breaks_the_protocol) {
  world_.have(0, "t", 5, Bytes(2), kFormer);
  EXPECT_THAT(world_.out.violations, SizeIs(1));
  world_.reconnect(1);
  world_.have(1, "t", 5, {}, kFormer);
  EXPECT_THAT(world_.out.violations, SizeIs(2));
}

TEST_F(ShelfTakeoverTest, a_name_that_is_used_once_is_settled_when_all_have_said_what_they_have) {
  world_.have(0, "t", 1, {}, kFormer);
  world_.forget(0, "t");
  world_.told_all(0);
  EXPECT_THAT(world_.out.forgotten_by_all, IsEmpty()) << "worker 1 may lack it";
  world_.forget(1, "t");
  ASSERT_THAT(world_.out.forgotten_by_all, SizeIs(1));
  EXPECT_EQ(world_.out.forgotten_by_all[0].key, key_of("t"));
  EXPECT_FALSE(world_.out.forgotten_by_all[0].worker);
}

TEST(ShelfTakeover, who_does_not_name_what_others_have_forgotten_knows_that_it_is_settled) {
  ShelfWorld world(successor(2), {});
  world.declare(0, declaration("t", DType::kFloat32, 16));
  world.have(0, "t", 1, {}, kFormer);
  world.forget(0, "t");
  world.told_all(0);
  EXPECT_THAT(world.out.forgotten_by_all, IsEmpty());
  world.told_all(1);
  EXPECT_THAT(world.out.forgotten_by_all, SizeIs(1));
}

// Workers 0 and 1 are on one machine, whose relays speak for it; worker 2 is on another.
class ShelfTakeoverOfMachines : public testing::Test {
 protected:
  static ShelfEpoch machines() {
    ShelfEpoch epoch = successor(3);
    epoch.groups = std::make_shared<const Groups>(std::vector<std::uint64_t>{1, 1, 2});
    return epoch;
  }
  // Its only part is led by worker 0.
  static std::string name() {
    std::string name = "t";
    while (leader_of({WorkerRank(0), WorkerRank(1)}, key_of(name), 0, 1) != WorkerRank(0)) {
      name += "t";
    }
    return name;
  }
  ShelfWorld world_{machines(), {}};
};

TEST_F(ShelfTakeoverOfMachines, a_machine_that_says_nothing_of_a_name_has_told_all_of_its_relays) {
  world_.declare(2, declaration(name(), DType::kFloat32, 16));
  world_.have(2, name(), 1, {}, kFormer);
  world_.forget(2, name());
  world_.told_all(2);
  world_.told_all(1);
  EXPECT_THAT(world_.out.forgotten_by_all, IsEmpty()) << "worker 0 leads it, and may lack it";
  world_.told_all(0);
  EXPECT_THAT(world_.out.forgotten_by_all, SizeIs(1));
}

// Worker 1 is the root, and perhaps lost with what it got; its machine knows that it had it.
TEST_F(ShelfTakeoverOfMachines, who_speaks_for_the_root_may_know_without_a_payload_that_it_has_it) {
  wire::Declare reduced = declaration(name(), DType::kFloat32, 16, Operation::kSum, 1);
  reduced.root_only = true;
  world_.declare(0, reduced);
  world_.declare(2, reduced);
  world_.have(0, name(), 6, {}, kFormer);
  world_.push(2, name(), 5, kOne);
  ASSERT_THAT(world_.out.given, SizeIs(1));
  EXPECT_EQ(world_.out.given[0].worker, WorkerRank(0));
  world_.push(0, name(), 5, {}, {}, wire::kSum);
  EXPECT_THAT(world_.out.violations, IsEmpty());
  ASSERT_THAT(world_.out.answers, SizeIs(1));
  EXPECT_EQ(world_.out.answers[0].header.worker, WorkerRank(2));
  EXPECT_THAT(world_.out.answers[0].payload(), IsEmpty());
}

// The root was lost with what it got.
TEST_F(ShelfTakeoverOfMachines,
       a_sum_that_is_lost_with_the_root_that_alone_got_it_is_answered_without_a_payload) {
  wire::Declare reduced = declaration(name(), DType::kFloat32, 16, Operation::kSum, 1);
  reduced.root_only = true;
  world_.declare(0, reduced);
  world_.declare(2, reduced);
  world_.lose(1);
  world_.have(2, name(), 6, {}, kFormer);  // it knows that the root had it
  world_.push(0, name(), 5, kOne);         // for the others of the root's machine
  ASSERT_THAT(world_.out.given, SizeIs(1));
  world_.push(2, name(), 5, {}, {}, wire::kSum);
  ASSERT_THAT(world_.out.answers, SizeIs(1));
  EXPECT_EQ(world_.out.answers[0].header.worker, WorkerRank(0));
  EXPECT_EQ(world_.out.answers[0].header.flags, wire::kNoPayload);
  EXPECT_THAT(world_.out.answers[0].payload(), IsEmpty());
}

// Its others have no more inputs; what they have said that they have they still give.
TEST_F(ShelfTakeoverOfMachines, a_machine_that_pushes_no_more_gives_what_others_lack) {
  world_.declare(0, declaration(name(), DType::kFloat32, 16));
  world_.declare(2, declaration(name(), DType::kFloat32, 16));
  world_.lose(1);
  world_.have(0, name(), 6, {}, kFormer);
  world_.inputs(0, 0, wire::kNoMore);
  world_.push(2, name(), 5, kOne);
  ASSERT_THAT(world_.out.given, SizeIs(1));
  world_.push(0, name(), 5, kSum, {}, wire::kSum);
  EXPECT_THAT(world_.out.answers, SizeIs(1));
}

TEST_F(ShelfTakeoverOfMachines, who_does_not_lead_a_part_has_no_sum_of_it) {
  world_.declare(1, declaration(name(), DType::kFloat32, 16));
  world_.have(1, name(), 5, {}, kFormer);
  EXPECT_THAT(world_.out.violations, SizeIs(1));
}

TEST(ShelfTakeover, a_repeat_of_what_was_before_the_generation_of_inputs_counts_nowhere) {
  ShelfWorld world(successor(1), {});
  world.declare(0, declaration("t", DType::kFloat32, 16));
  wire::Header inputs = world.about(0, "");
  inputs.kind = wire::Kind::kInputs;
  inputs.round = Round(1);
  inputs.tag = 1;
  world.step(0, inputs, {});
  world.out.clear();
  world.push(0, "t", 1, kOne);
  EXPECT_THAT(world.out.answers, IsEmpty());
  world.push(0, "t", first_round(1).value, kOne);
  EXPECT_THAT(world.out.answers, SizeIs(1));
  EXPECT_THAT(world.out.violations, IsEmpty());
}

TEST(ShelfTakeover, the_generation_of_inputs_is_that_of_who_is_furthest_and_the_others_hear_of_it) {
  ShelfWorld world(successor(2), {});
  world.no_more_inputs(1);
  world.out.clear();
  wire::Header header = world.about(0, "");
  header.kind = wire::Kind::kInputs;
  header.round = Round(1);
  header.tag = 1 + 1;  // worker 1 was last
  world.step(0, header, {});
  ASSERT_THAT(world.out.inputs_done, SizeIs(1));
  EXPECT_FALSE(world.out.inputs_done[0].worker);
  EXPECT_EQ(world.out.inputs_done[0].generation, 1U);
  EXPECT_EQ(world.out.inputs_done[0].last, WorkerRank(1));
}

TEST(ShelfTakeover, who_was_last_in_the_generation_before_is_somebody) {
  for (const std::uint32_t tag : {0U, 3U, 1U << 31}) {
    ShelfWorld world(successor(2), {});
    wire::Header header = world.about(0, "");
    header.kind = wire::Kind::kInputs;
    header.round = Round(1);
    header.tag = tag;
    world.step(0, header, {});
    EXPECT_THAT(world.out.violations, SizeIs(1)) << tag;
    EXPECT_THAT(world.out.inputs_done, IsEmpty()) << tag;
  }
}

TEST(ShelfTakeover, once_the_generation_of_inputs_is_known_nobody_is_many_further) {
  ShelfWorld world(successor(2), {});
  wire::Header header = world.about(0, "");
  header.kind = wire::Kind::kInputs;
  header.tag = 1;
  header.round = Round(1000);
  world.step(0, header, {});
  EXPECT_THAT(world.out.violations, IsEmpty());
  header.round = Round(3000);
  world.step(0, header, {});
  EXPECT_THAT(world.out.violations, SizeIs(1));
}

// A worker that says anything, while two others push.
TEST(ShelfTakeover, any_words_in_any_order_are_borne) {
  constexpr wire::Kind kKinds[] = {wire::Kind::kPush,   wire::Kind::kPush,    wire::Kind::kDeclare,
                                   wire::Kind::kHave,   wire::Kind::kHave,    wire::Kind::kForget,
                                   wire::Kind::kInputs, wire::Kind::kMismatch};
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Prng prng(seed);
    ShelfWorld world(successor(3), {});
    const auto declared = declaration("t", DType::kFloat32, 512);
    for (int step = 0; step < 300; ++step) {
      const auto from = static_cast<std::uint32_t>(prng.below(3));
      if (prng.chance(0.05)) world.reconnect(from);
      wire::Header header = world.about(from, "t");
      const bool is_honest = from != 2;
      header.kind = is_honest ? kKinds[prng.below(3)] : kKinds[prng.below(std::size(kKinds))];
      header.round = Round(static_cast<std::uint32_t>(prng.below(is_honest ? 2 : 5)));
      header.part = PartIndex(static_cast<std::uint32_t>(prng.below(is_honest ? 2 : 3)));
      header.offset_bytes = prng.below(is_honest ? 4 : 6) * 64;
      Bytes payload(64);
      if (!is_honest) {
        header.flags = static_cast<std::uint8_t>(prng.below(4));
        header.tag = static_cast<std::uint32_t>(prng.below(6));
        header.count = static_cast<std::uint32_t>(prng.below(3));
        payload.resize(prng.below(3) * 32);
        if (header.kind == wire::Kind::kHave) payload.resize(prng.below(2));
        for (std::byte& byte : payload) byte = static_cast<std::byte>(prng.below(16));
      }
      if (header.kind == wire::Kind::kDeclare) payload = wire::encode(declared);
      world.step(from, header, payload);
      for (const auto& done : world.out.inputs_done) EXPECT_LT(done.last.value, 3U) << seed;
    }
  }
}

TEST(ShelfTakeover, a_spoiled_tensor_is_told_again_by_who_has_heard_of_it) {
  ShelfWorld world(successor(2), {});
  world.say_mismatch(0, "t", "they differ");
  world.declare(1, declaration("t", DType::kFloat32, 16));
  EXPECT_THAT(world.out.spoiled, SizeIs(2)) << "all that were connected, and who declares it";
}

TEST(ShelfTakeover, a_shard_that_took_no_place_knows_no_sums_of_others) {
  ShelfWorld world(2);
  world.declare_all(declaration("t", DType::kFloat32, 16));
  world.have(0, "t", 5, {}, kFormer);
  world.push(0, "t", 0, kOne, {}, wire::kSum);
  EXPECT_THAT(world.out.violations, SizeIs(2));
}

}  // namespace
}  // namespace byteps
