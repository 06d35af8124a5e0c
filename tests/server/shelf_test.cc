// Each promise of docs/protocol.md about summing, as a sentence. shelf_model_test.cc has the chaos.
#include "server/shelf.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/phrases.h"
#include "base/prng.h"
#include "kernels/coding.h"
#include "tests/server/shelf_world.h"

namespace byteps {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr auto kF32 = DType::kFloat32;
const wire::Declare kX = declaration("x", kF32, 8);

TEST(Shelf, sends_the_sum_to_all_workers_when_the_last_contribution_is_in) {
  ShelfWorld world(3);
  world.declare_all(kX);
  world.push(2, "x", 0, floats({1, 10}), {}, 0, 22);
  world.push(0, "x", 0, floats({2, 20}), {}, 0, 20);
  EXPECT_TRUE(world.out.empty());
  world.push(1, "x", 0, floats({4, 40}), {}, 0, 21);
  const Told out = world.take();
  ASSERT_EQ(out.answers.size(), 3U);
  for (std::uint32_t worker = 0; worker < 3; ++worker) {
    const ShelfOutput::Answer& answer = out.answers[worker];
    EXPECT_EQ(answer.header.kind, wire::Kind::kAnswer);
    EXPECT_EQ(answer.header.epoch, Epoch(7));
    EXPECT_EQ(answer.header.key, key_of("x"));
    EXPECT_EQ(answer.header.round, Round(0));
    EXPECT_EQ(answer.header.worker, WorkerRank(worker));
    EXPECT_EQ(answer.header.tag, 20U + worker);
    EXPECT_EQ(answer.header.flags, 0);
    EXPECT_EQ(bytes_of(answer.payload()), floats({7, 70}));
  }
}

// ---- coded tensors

class CodedShelf : public testing::TestWithParam<Format> {
 protected:
  static wire::Declare coded(Operation operation = Operation::kSum) {
    wire::Declare declared = declaration("x", kF32, 4 * 40, operation);
    declared.format = GetParam();
    return declared;
  }
  static CodingKernels coding() { return coding_kernels_for(GetParam(), {}, best_kernels()); }
  static Bytes code(const Bytes& elements) {
    Bytes payload(payload_bytes(GetParam(), elements.size() / 4));
    coding().encode(payload, elements, {}, {});
    return payload;
  }
  static Bytes elements(float first, float step) {
    std::vector<float> numbers;
    for (int i = 0; i < 40; ++i) numbers.push_back(first + step * static_cast<float>(i));
    return floats(numbers);
  }
  // What the codes of these say, added in this order, divided, and coded again.
  static Bytes sum(const std::vector<Bytes>& contributions, std::uint32_t divisor) {
    Bytes total(4 * 40);
    coding().load(total, code(contributions.front()), {});
    for (std::size_t i = 1; i < contributions.size(); ++i)
      coding().add(total, code(contributions[i]), {});
    kernels_for(kF32, Operation::kSum, best_kernels()).finish(total, total, {.divisor = divisor});
    return code(total);
  }
};

TEST_P(CodedShelf, adds_what_the_codes_say_and_answers_with_codes) {
  for (const bool deterministic : {false, true}) {
    ShelfSettings settings;
    settings.deterministic = deterministic;
    ShelfWorld world(3, 4096, 2048, settings);
    world.declare_all(coded(Operation::kAverage));
    const std::vector<Bytes> contributions = {elements(1, 0.5F), elements(-3, 0.01F),
                                              elements(0, -0.25F)};
    for (const std::uint32_t worker : {1U, 0U, 2U}) {
      world.push(worker, "x", 0, code(contributions[worker]));
    }
    const Told out = world.take();
    ASSERT_EQ(out.answers.size(), 3U);
    const Bytes expected = deterministic
                               ? sum(contributions, 3)
                               : sum({contributions[1], contributions[0], contributions[2]}, 3);
    for (const auto& answer : out.answers) EXPECT_EQ(bytes_of(answer.payload()), expected);
    EXPECT_LE(world.pool.lent_bytes(), 256U) << "the sum is kept coded";
  }
}

TEST_P(CodedShelf, a_payload_of_another_length_breaks_the_protocol) {
  ShelfWorld world(1, 4096, 2048);
  world.declare(0, coded());
  world.push(0, "x", 0, elements(0, 1));  // plain
  EXPECT_THAT(world.out.violations, SizeIs(1));
  EXPECT_THAT(world.out.answers, IsEmpty());
}

TEST_P(CodedShelf, who_codes_otherwise_is_told_how_the_others_do) {
  ShelfWorld world(2, 4096, 2048);
  wire::Declare plain = coded();
  plain.format = Format::kPlain;
  world.declare(0, plain);
  world.declare(1, coded());
  ASSERT_THAT(world.out.spoiled, SizeIs(1));
  EXPECT_THAT(world.out.spoiled[0].text, HasSubstr(std::string("coded as ") + name(GetParam())));
}

TEST_P(CodedShelf, at_a_relay_elements_come_and_go_as_they_are) {
  ShelfEpoch epoch{.epoch = Epoch(7), .worker_count = 2, .placement = placed(4096, 2048)};
  epoch.groups = std::make_shared<const Groups>(std::vector<std::uint64_t>{1, 1});
  epoch.relay = leader_of({WorkerRank(0), WorkerRank(1)}, key_of("x"), 0, 1);
  ShelfWorld world(epoch, {});
  world.declare_all(coded());
  for (const std::uint32_t worker : {0U, 1U}) world.push(worker, "x", 0, elements(1, 1));
  ASSERT_THAT(world.out.forwards, SizeIs(1));
  EXPECT_EQ(world.out.forwards[0].payload_bytes, 4U * 40);
}

// ---- parts that are coded together

wire::Declare of_parts(Format format, const Codec& codec, Operation operation = Operation::kSum) {
  wire::Declare declared = declaration("x", kF32, 4 * 4, operation);
  declared.format = format;
  declared.codec = codec;
  return declared;
}

// What all get when one worker, of so many, gives these numbers and the others zeros.
std::vector<float> decoded(const wire::Declare& declared, const Bytes& payload, Round round) {
  std::vector<float> numbers(4);
  coding_kernels_for(declared.format, *declared.codec, best_kernels())
      .load(std::as_writable_bytes(std::span(numbers)), payload,
            {.key = key_of("x"), .part = PartIndex(0), .round = round});
  return numbers;
}
Bytes coded(const wire::Declare& declared, const Bytes& elements, std::uint32_t round) {
  const CodingKernels coding = coding_kernels_for(declared.format, *declared.codec, best_kernels());
  Bytes payload(coding.payload_bytes(elements.size()));
  coding.encode(payload, elements, {},
                {.key = key_of("x"), .part = PartIndex(0), .round = Round(round), .rank = 0});
  return payload;
}

TEST(ShelfOfParts, what_the_codes_of_a_sum_leave_is_in_the_next_one) {
  const wire::Declare declared = of_parts(Format::kTopk, {.k = 1, .error_feedback = true});
  ShelfWorld world(2, 4096, 2048);
  world.declare_all(declared);
  world.push(0, "x", 0, coded(declared, floats({0, 3, 0, 0}), 0));
  world.push(1, "x", 0, coded(declared, floats({0, 0, 2, 0}), 0));
  Told out = world.take();
  ASSERT_THAT(out.answers, SizeIs(2));
  EXPECT_EQ(decoded(declared, bytes_of(out.answers[0].payload()), Round(0)),
            (std::vector<float>{0, 3, 0, 0}));
  EXPECT_GE(world.pool.lent_bytes(), 16U + 8U) << "its residual is kept";
  world.push(0, "x", 1, coded(declared, floats({0, 1, 0, 0}), 1));
  world.push(1, "x", 1, coded(declared, floats({0, 0, 0, 1}), 1));
  out = world.take();
  ASSERT_THAT(out.answers, SizeIs(2));
  EXPECT_EQ(decoded(declared, bytes_of(out.answers[1].payload()), Round(1)),
            (std::vector<float>{0, 0, 2, 0}));
}

TEST(ShelfOfParts, payloads_of_randomk_are_added_and_divided_as_they_are) {
  const wire::Declare declared =
      of_parts(Format::kRandomk, {.k = 2, .error_feedback = true}, Operation::kAverage);
  ShelfWorld world(2, 4096, 2048);
  world.declare_all(declared);
  world.push(0, "x", 0, floats({4, 10}));
  world.push(1, "x", 0, floats({2, 20}));
  const Told out = world.take();
  ASSERT_THAT(out.answers, SizeIs(2));
  EXPECT_EQ(bytes_of(out.answers[0].payload()), floats({3, 15}));
}

TEST(ShelfOfParts, codes_that_there_are_not_break_the_protocol_and_add_nothing) {
  const wire::Declare declared = of_parts(Format::kTopk, {.k = 2});
  for (const bool deterministic : {false, true}) {
    ShelfSettings settings;
    settings.deterministic = deterministic;
    ShelfWorld world(2, 4096, 2048, settings);
    world.declare_all(declared);
    const std::uint32_t words[] = {3, 0, 3, 0};  // do not rise
    Bytes payload(sizeof words + 4);             // is told by its length from the elements
    std::memcpy(payload.data(), words, sizeof words);
    world.push(1, "x", 0, payload);
    EXPECT_THAT(world.out.violations, SizeIs(1));
    EXPECT_EQ(world.pool.lent_bytes(), 0U);
  }
}

TEST(ShelfOfParts, who_means_another_codec_is_told_what_the_others_do) {
  ShelfWorld world(2, 4096, 2048);
  world.declare(0, of_parts(Format::kTopk, {.k = 0.01, .error_feedback = true}));
  world.declare(1, of_parts(Format::kTopk, {.k = 0.02, .error_feedback = true}));
  ASSERT_THAT(world.out.spoiled, SizeIs(1));
  EXPECT_THAT(world.out.spoiled[0].text,
              HasSubstr("coded as topk with k = 0.01 and error feedback"));
  EXPECT_THAT(world.out.spoiled[0].text,
              HasSubstr("coded as topk with k = 0.02 and error feedback"));
}

INSTANTIATE_TEST_SUITE_P(all, CodedShelf,
                         testing::Values(Format::kFloat16, Format::kBfloat16, Format::kInt8,
                                         Format::kInt4),
                         [](const auto& each) { return name(each.param); });

TEST(Shelf, answers_of_each_frame_begin_with_another_worker) {
  ShelfWorld world(3);
  world.declare_all(declaration("x", kF32, 192));
  std::vector<std::vector<std::uint32_t>> orders;
  for (const std::uint64_t offset : {0U, 64U, 128U}) {
    for (std::uint32_t worker = 0; worker < 3; ++worker) {
      world.push(worker, "x", 0, filled(64, 0), {.part = 0, .offset = offset});
    }
    std::vector<std::uint32_t>& order = orders.emplace_back();
    for (const ShelfOutput::Answer& answer : world.take().answers) {
      order.push_back(answer.header.worker.value);
    }
  }
  const std::vector<std::vector<std::uint32_t>> expected = {{0, 1, 2}, {1, 2, 0}, {2, 0, 1}};
  EXPECT_EQ(orders, expected);
}

TEST(Shelf, answers_a_frame_before_the_rest_of_its_part_is_there) {
  ShelfWorld world(2);
  world.declare_all(declaration("x", kF32, 600));
  world.push(0, "x", 0, filled(64, 0), {1, 128});
  world.push(1, "x", 0, filled(64, 0), {1, 128});
  const Told out = world.take();
  ASSERT_EQ(out.answers.size(), 2U);
  EXPECT_EQ(out.answers[0].header.part, PartIndex(1));
  EXPECT_EQ(out.answers[0].header.offset_bytes, 128U);
}

TEST(Shelf, takes_the_short_last_frame_of_the_short_last_part) {
  ShelfWorld world(1);
  world.declare(0, declaration("x", kF32, 256 + 64 + 12));
  world.push(0, "x", 0, filled(12, 0), {1, 64});
  ASSERT_EQ(world.out.answers.size(), 1U);
  EXPECT_EQ(world.out.answers[0].payload_bytes, 12U);
}

TEST(Shelf, sums_an_empty_tensor_as_one_empty_frame) {
  ShelfWorld world(2);
  world.declare_all(declaration("nothing", kF32, 0));
  for (std::uint32_t round = 0; round < 3; ++round) {
    world.push(0, "nothing", round, {});
    world.push(1, "nothing", round, {});
    const Told out = world.take();
    ASSERT_EQ(out.answers.size(), 2U);
    EXPECT_EQ(out.answers[0].payload().size(), 0U);
  }
  world.push(0, "nothing", 3, {}, {1, 0});
  EXPECT_EQ(world.out.violations.size(), 1U);
}

TEST(Shelf, an_average_divides_once_and_integers_towards_zero) {
  ShelfWorld world(2);
  world.declare_all(declaration("f", kF32, 8, Operation::kAverage));
  world.declare_all(declaration("i", DType::kInt32, 8, Operation::kAverage));
  world.push(0, "f", 0, floats({1, 2}));
  world.push(1, "f", 0, floats({2, 2}));
  EXPECT_EQ(bytes_of(world.take().answers.at(1).payload()), floats({1.5F, 2}));
  world.push(0, "i", 0, elements(DType::kInt32, {-3, 3}));
  world.push(1, "i", 0, elements(DType::kInt32, {0, 0}));
  EXPECT_EQ(bytes_of(world.take().answers.at(1).payload()), elements(DType::kInt32, {-1, 1}));
}

TEST(Shelf, half_types_round_once_at_the_end) {
  // 2048 + 1 is no float16; rounded after each addition the ones would be lost.
  ShelfWorld world(3);
  world.declare_all(declaration("h", DType::kFloat16, 2));
  world.push(0, "h", 0, elements(DType::kFloat16, {2048}));
  world.push(1, "h", 0, elements(DType::kFloat16, {1}));
  world.push(2, "h", 0, elements(DType::kFloat16, {1}));
  EXPECT_EQ(bytes_of(world.take().answers.at(0).payload()), elements(DType::kFloat16, {2050}));
}

// ---- repeats: the table of the protocol, line by line

wire::Declare of_members(wire::Declare declared, const std::vector<std::uint32_t>& members) {
  declared.members = Members(members);
  return declared;
}

TEST(Shelf, a_sum_of_some_is_finished_by_them_divided_by_their_count_and_goes_to_them_alone) {
  ShelfWorld world(70);
  const wire::Declare x = of_members(declaration("x", kF32, 8, Operation::kAverage), {1, 4, 66});
  for (const std::uint32_t worker : {66U, 1U, 4U}) world.declare(worker, x);
  world.push(66, "x", 0, floats({3, 30}));
  world.push(1, "x", 0, floats({1, 10}));
  EXPECT_TRUE(world.out.empty());
  world.push(4, "x", 0, floats({5, 50}));
  const Told out = world.take();
  ASSERT_EQ(out.answers.size(), 3U);
  const std::vector<std::uint32_t> expected = {1, 4, 66};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(out.answers[i].header.worker.value, expected[i]);
    EXPECT_EQ(bytes_of(out.answers[i].payload()), floats({3, 30}));
  }
  for (const std::uint32_t worker : {1U, 4U}) world.forget(worker, "x");
  world.forget(5, "x");
  EXPECT_EQ(world.shelf.inventory().tensors().size(), 1U) << "no member's word";
  world.forget(66, "x");
  EXPECT_EQ(world.shelf.inventory().tensors().size(), 0U);
}

TEST(Shelf, only_members_are_asked_and_told_who_is_missing) {
  ShelfWorld world(4);
  const wire::Declare x = of_members(kX, {0, 2, 3});
  for (const std::uint32_t worker : {0U, 2U, 3U}) world.declare(worker, x);
  world.push(2, "x", 0, floats({1, 1}));
  world.tick(5 * kMillisecond);
  EXPECT_EQ(world.wanted_workers(), (std::vector<std::uint32_t>{0, 3}));
  world.tick(100 * kSecond);
  const Told out = world.take();
  ASSERT_EQ(out.missing.size(), 1U);
  EXPECT_EQ(out.missing[0].to, std::vector<WorkerRank>{WorkerRank(2)});
  EXPECT_EQ(out.missing[0].ranks, (std::vector<std::uint32_t>{0, 3}));
}

TEST(Shelf, workers_that_disagree_about_the_members_are_all_told) {
  ShelfWorld world(3);
  world.declare(0, of_members(kX, {0, 1}));
  world.declare(2, of_members(kX, {1, 2}));
  Told out = world.take();
  ASSERT_EQ(out.spoiled.size(), 1U);
  EXPECT_EQ(out.spoiled[0].worker, std::nullopt);
  EXPECT_EQ(out.spoiled[0].code, Code::kMismatch);
  EXPECT_THAT(out.spoiled[0].text, HasSubstr("of workers 0 and 1"));
  EXPECT_THAT(out.spoiled[0].text, HasSubstr("of workers 1 and 2"));
  world.declare(1, of_members(kX, {0, 1}));
  out = world.take();
  ASSERT_EQ(out.spoiled.size(), 1U);
  EXPECT_EQ(out.spoiled[0].worker, WorkerRank(1));
}

TEST(Shelf, a_result_for_the_root_alone_goes_to_the_others_as_a_word) {
  ShelfWorld world(3);
  wire::Declare x = declaration("x", kF32, 8, Operation::kMax, 1);
  x.root_only = true;
  world.declare_all(x);
  world.push(0, "x", 0, floats({1, 9}));
  world.push(1, "x", 0, floats({2, 8}));
  world.push(2, "x", 0, floats({3, 7}));
  Told out = world.take();
  ASSERT_EQ(out.answers.size(), 3U);
  for (const ShelfOutput::Answer& answer : out.answers) {
    const bool is_root = answer.header.worker == WorkerRank(1);
    EXPECT_EQ(answer.header.flags, is_root ? 0 : wire::kNoPayload);
    EXPECT_EQ(bytes_of(answer.payload()), is_root ? floats({3, 9}) : Bytes());
  }
  world.push(1, "x", 0, floats({2, 8}));
  out = world.take();
  ASSERT_EQ(out.answers.size(), 1U) << "an answer that was lost";
  EXPECT_EQ(bytes_of(out.answers[0].payload()), floats({3, 9}));
}

TEST(Shelf, who_has_no_more_inputs_is_not_waited_for_nor_asked_nor_answered) {
  ShelfWorld world(3);
  const wire::Declare x = declaration("x", kF32, 8, Operation::kAverage);
  world.declare(1, x);
  world.declare(2, x);
  world.push(1, "x", 0, floats({3, 30}));
  world.push(2, "x", 0, floats({6, 60}));
  EXPECT_TRUE(world.out.answers.empty());
  world.no_more_inputs(0);
  Told out = world.take();
  ASSERT_EQ(out.inputs_done.size(), 1U) << "worker 0 hears that it was heard";
  EXPECT_EQ(out.inputs_done[0].worker, WorkerRank(0));
  EXPECT_EQ(out.inputs_done[0].generation, 0U) << "which is still the generation";
  ASSERT_EQ(out.answers.size(), 2U) << "and not to worker 0";
  EXPECT_EQ(bytes_of(out.answers[0].payload()), floats({3, 30})) << "divided by all";
  world.push(1, "x", 1, floats({1, 1}));
  world.tick(100 * kSecond);
  EXPECT_EQ(world.take().wanted.size(), 1U) << "worker 2 alone";
  world.push(2, "x", 1, floats({2, 2}));
  EXPECT_EQ(bytes_of(world.take().answers.at(1).payload()), floats({1, 1}));
}

TEST(Shelf, when_nobody_has_more_inputs_rounds_begin_anew_and_all_hear_who_was_last) {
  ShelfWorld world(2);
  world.declare_all(kX);
  world.push(1, "x", 0, floats({1, 1}));
  world.no_more_inputs(0);
  world.no_more_inputs(0);
  EXPECT_EQ(world.take().inputs_done.size(), 2U) << "the first may have been lost";
  world.no_more_inputs(1);
  Told out = world.take();
  ASSERT_EQ(out.inputs_done.size(), 1U);
  EXPECT_EQ(out.inputs_done[0].worker, std::nullopt);
  EXPECT_EQ(out.inputs_done[0].generation, 1U);
  EXPECT_EQ(out.inputs_done[0].last, WorkerRank(1));
  EXPECT_EQ(world.pool.lent_bytes(), 0U);
  world.no_more_inputs(0);
  out = world.take();
  ASSERT_EQ(out.inputs_done.size(), 1U) << "it had lost the word";
  EXPECT_EQ(out.inputs_done[0].worker, WorkerRank(0));
  world.push(1, "x", 0, floats({9, 9}));
  EXPECT_TRUE(world.take().violations.empty()) << "late";
  const std::uint32_t round = first_round(1).value;
  world.push(0, "x", round, floats({1, 2}));
  world.push(1, "x", round, floats({3, 4}));
  EXPECT_EQ(bytes_of(world.take().answers.at(0).payload()), floats({4, 6}));
}

TEST(Shelf, a_worker_in_a_later_generation_proves_that_the_earlier_one_is_over) {
  ShelfWorld world(2);
  world.declare_all(kX);
  world.no_more_inputs(1);
  world.inputs(0, 1, 0);
  const std::uint32_t round = first_round(1).value;
  world.push(0, "x", round, floats({1, 2}));
  EXPECT_TRUE(world.take().answers.empty()) << "worker 1 has inputs again";
  world.push(1, "x", round, floats({1, 2}));
  EXPECT_EQ(world.take().answers.size(), 2U);
}

// One member's word that nobody has more inputs, while others have: it must cost them nothing.
TEST(Shelf, who_says_falsely_that_all_inputs_have_ended_ends_its_own_connection_and_no_sum) {
  ShelfWorld world(3);
  world.declare_all(kX);
  for (std::uint32_t worker = 0; worker < 3; ++worker) world.push(worker, "x", 0, floats({1, 1}));
  world.take();
  world.inputs(2, 1, 0);
  EXPECT_TRUE(world.take().violations.empty()) << "it may be true";
  world.push(0, "x", 1, floats({1, 2}));
  Told out = world.take();
  ASSERT_EQ(out.violations.size(), 1U);
  EXPECT_EQ(out.violations[0].worker, WorkerRank(2));
  EXPECT_THAT(out.violations[0].text,
              HasSubstr("nobody had more inputs in generation 0, but worker 0 has"));
  world.reconnect(2);
  world.declare(2, kX);
  world.push(1, "x", 1, floats({1, 2}));
  world.push(2, "x", 1, floats({1, 2}));
  out = world.take();
  EXPECT_TRUE(out.violations.empty());
  ASSERT_EQ(out.answers.size(), 3U);
  EXPECT_EQ(bytes_of(out.answers[0].payload()), floats({3, 6}));
}

// All but the one that says so have contributed already, so nobody would push again by itself.
TEST(Shelf,
     who_waits_for_a_sum_when_another_says_that_all_inputs_have_ended_says_so_again_and_is_heard) {
  for (const bool pushes : {true, false}) {
    ShelfWorld world(3);
    world.declare_all(kX);
    for (std::uint32_t worker = 0; worker < 3; ++worker) world.push(worker, "x", 0, floats({1, 1}));
    world.take();
    for (const std::uint32_t worker : {0U, 1U}) world.push(worker, "x", 1, floats({1, 1}));
    if (pushes) {
      world.inputs(2, 1, 0);
      world.push(2, "x", first_round(1).value, floats({9, 9}));
    } else {
      world.no_more_inputs(2, 1);
    }
    Told out = world.take();
    ASSERT_EQ(out.renewed.size(), 2U) << "who waits";
    for (const std::uint32_t worker : {0U, 1U}) {
      EXPECT_EQ(out.renewed[worker].worker, WorkerRank(worker));
      EXPECT_THAT(out.renewed[worker].text, HasSubstr("worker 2 says that nobody has more"));
    }
    world.reconnect(0);
    world.declare(0, kX);
    world.push(0, "x", 1, floats({1, 1}));
    out = world.take();
    ASSERT_EQ(out.violations.size(), 1U);
    EXPECT_EQ(out.violations[0].worker, WorkerRank(2));
    ASSERT_EQ(out.spoiled.size(), 1U);
    EXPECT_EQ(out.spoiled[0].worker, std::nullopt) << "all are told";
    EXPECT_THAT(out.spoiled[0].text, AllOf(HasSubstr("\"x\""), HasSubstr("worker 2 said"),
                                           HasSubstr("but worker 0 has")));
  }
}

// What somebody has forgotten is dropped then. A push of it by who declared it here would break the protocol.
TEST(
    Shelf,
    who_has_declared_what_is_dropped_when_another_says_that_all_inputs_have_ended_is_to_declare_it_again) {
  ShelfWorld world(3);
  for (const std::uint32_t worker : {0U, 2U}) world.declare(worker, kX);
  world.forget(2, "x");
  world.take();
  world.no_more_inputs(2, 1);
  Told out = world.take();
  ASSERT_EQ(out.renewed.size(), 1U) << "worker 1 has not declared it";
  EXPECT_EQ(out.renewed[0].worker, WorkerRank(0));
  world.reconnect(0);
  world.declare(0, kX);
  world.declare(1, kX);
  for (const std::uint32_t worker : {0U, 1U}) {
    world.push(worker, "x", first_round(1).value, floats({1, 1}));
  }
  out = world.take();
  EXPECT_TRUE(out.violations.empty()) << "nobody said that there are none in generation 1 but one";
  ASSERT_EQ(out.answers.size(), 2U);
  for (const auto& answer : out.answers) EXPECT_EQ(bytes_of(answer.payload()), floats({2, 2}));
}

TEST(Shelf,
     who_has_said_that_it_has_no_more_inputs_is_not_asked_again_when_the_next_generation_begins) {
  ShelfWorld world(3);
  world.declare_all(kX);
  world.push(0, "x", 0, floats({1, 1}));  // to what has failed there
  world.no_more_inputs(0);
  world.take();
  world.no_more_inputs(2, 1);
  EXPECT_TRUE(world.take().renewed.empty());
}

TEST(Shelf, inputs_of_a_generation_that_cannot_have_begun_end_that_connection_alone) {
  ShelfWorld world(2);
  world.declare_all(kX);
  world.inputs(1, 1000, 0);
  Told out = world.take();
  ASSERT_EQ(out.violations.size(), 1U);
  EXPECT_EQ(out.violations[0].worker, WorkerRank(1));
  EXPECT_THAT(out.violations[0].text, HasSubstr("generation 1000"));
  world.push(0, "x", 0, floats({1, 1}));
  world.push(1, "x", 0, floats({2, 2}));
  out = world.take();
  EXPECT_TRUE(out.violations.empty());
  EXPECT_EQ(out.answers.size(), 2U);
}

// It does more than say so: then sums are lost, and nobody waits for them without a word.
TEST(Shelf, who_pushes_inputs_of_a_generation_that_has_not_begun_is_named_to_all) {
  ShelfWorld world(3);
  world.declare_all(kX);
  for (std::uint32_t worker = 0; worker < 3; ++worker) world.push(worker, "x", 0, floats({1, 1}));
  world.take();
  world.inputs(2, 1, 0);
  world.push(2, "x", first_round(1).value, floats({9, 9}));
  world.push(0, "x", 0, floats({1, 1}));
  EXPECT_TRUE(world.take().violations.empty()) << "a repeat that comes late";
  world.push(0, "x", 1, floats({1, 1}));
  const Told out = world.take();
  ASSERT_EQ(out.violations.size(), 1U);
  EXPECT_EQ(out.violations[0].worker, WorkerRank(2));
  ASSERT_EQ(out.spoiled.size(), 1U);
  EXPECT_EQ(out.spoiled[0].worker, std::nullopt) << "all are told";
  EXPECT_THAT(out.spoiled[0].text,
              AllOf(HasSubstr("\"x\""), HasSubstr("worker 2 said"), HasSubstr("but worker 0 has")));
}

TEST(Shelf, a_broadcast_without_its_root_is_an_error_and_a_push_after_the_last_input_a_breach) {
  ShelfWorld world(3);
  const wire::Declare b = declaration("b", kF32, 8, Operation::kBroadcast, 2);
  world.declare_all(b);
  world.declare_all(kX);
  world.push(2, "x", 0, floats({0, 0}));
  world.no_more_inputs(2);
  world.push(0, "b", 0, {}, {}, wire::kNoPayload);
  world.push(1, "b", 0, {}, {}, wire::kNoPayload);
  Told out = world.take();
  ASSERT_EQ(out.spoiled.size(), 1U);
  EXPECT_THAT(out.spoiled[0].text, HasSubstr("worker 2 has said that it has no more inputs"));
  world.push(2, "x", 0, floats({1, 1}));
  out = world.take();
  ASSERT_EQ(out.violations.size(), 1U);
  EXPECT_THAT(out.violations[0].text, HasSubstr("no more inputs"));
}

TEST(Shelf, deterministic_sums_go_on_without_those_who_have_no_more_inputs) {
  ShelfSettings settings;
  settings.deterministic = true;
  ShelfWorld world(3, 256, 64, settings);
  world.declare(1, kX);
  world.declare(2, kX);
  world.push(2, "x", 0, floats({1, 1}));
  world.no_more_inputs(0);
  world.push(1, "x", 0, floats({2, 2}));
  EXPECT_EQ(bytes_of(world.take().answers.at(0).payload()), floats({3, 3}));
  world.push(1, "x", 1, floats({5, 5}));
  world.push(2, "x", 1, floats({1, 1}));
  EXPECT_EQ(bytes_of(world.take().answers.at(0).payload()), floats({6, 6}));
}

TEST(Shelf, a_name_used_once_is_forgotten_without_those_who_have_no_more_inputs) {
  ShelfWorld world(2);
  world.declare(1, kX);
  world.no_more_inputs(0);
  world.push(1, "x", 0, floats({1, 1}));
  EXPECT_EQ(world.take().answers.size(), 1U);
  world.forget(1, "x");
  EXPECT_EQ(world.shelf.inventory().tensors().size(), 0U);
}

TEST(Shelf, a_scale_is_applied_once_with_the_division) {
  ShelfWorld world(2);
  wire::Declare x = declaration("x", DType::kInt32, 8, Operation::kAverage);
  x.scale = 1.5;
  world.declare_all(x);
  for (std::uint32_t round = 0; round < 2; ++round) {
    world.push(0, "x", round, elements(DType::kInt32, {7, -7}));
    world.push(1, "x", round, elements(DType::kInt32, {0, 0}));
    const Told out = world.take();
    ASSERT_EQ(out.answers.size(), 2U);
    EXPECT_EQ(bytes_of(out.answers[0].payload()), elements(DType::kInt32, {5, -5}))
        << "3.5 * 1.5 and -3.5 * 1.5, towards zero";
  }
}

TEST(Shelf, a_repeat_of_the_round_being_summed_is_ignored) {
  ShelfWorld world(2);
  world.declare_all(kX);
  world.push(0, "x", 0, floats({1, 1}), {}, 0, 5);
  world.push(0, "x", 0, floats({100, 100}), {}, 0, 6);
  EXPECT_TRUE(world.out.empty());
  world.push(1, "x", 0, floats({2, 2}));
  const Told out = world.take();
  ASSERT_EQ(out.answers.size(), 2U);
  EXPECT_EQ(bytes_of(out.answers[0].payload()), floats({3, 3}));
  EXPECT_EQ(out.answers[0].header.tag, 6U) << "the tag of the repeat counts";
}

TEST(Shelf, a_repeat_of_the_finished_round_is_answered_again) {
  ShelfWorld world(2);
  world.declare_all(kX);
  world.push(0, "x", 0, floats({1, 1}));
  world.push(1, "x", 0, floats({2, 2}));
  world.take();
  world.push(1, "x", 1, floats({50, 50}));  // the next round does not disturb it
  world.push(0, "x", 0, floats({9, 9}), {}, 0, 77);
  const Told out = world.take();
  ASSERT_EQ(out.answers.size(), 1U);
  EXPECT_EQ(out.answers[0].header.worker, WorkerRank(0));
  EXPECT_EQ(out.answers[0].header.round, Round(0));
  EXPECT_EQ(out.answers[0].header.tag, 77U);
  EXPECT_EQ(bytes_of(out.answers[0].payload()), floats({3, 3}));
}

TEST(Shelf, a_push_two_rounds_late_is_ignored) {
  ShelfWorld world(2);
  world.declare_all(kX);
  for (std::uint32_t round = 0; round < 2; ++round) {
    world.push(0, "x", round, floats({1, 1}));
    world.push(1, "x", round, floats({1, 1}));
  }
  world.take();
  world.push(0, "x", 0, floats({9, 9}));
  EXPECT_TRUE(world.out.empty());
  world.push(0, "x", 2, floats({3, 3}));
  world.push(1, "x", 2, floats({4, 4}));
  EXPECT_EQ(bytes_of(world.take().answers.at(0).payload()), floats({7, 7}));
}

TEST(Shelf, a_push_of_a_round_that_cannot_have_begun_breaks_the_protocol) {
  ShelfWorld world(2);
  world.declare_all(kX);
  world.push(0, "x", 1, floats({1, 1}));
  ASSERT_EQ(world.out.violations.size(), 1U);
  EXPECT_EQ(world.out.violations[0].worker, WorkerRank(0));
  EXPECT_THAT(world.out.violations[0].text, HasSubstr("\"x\""));
  EXPECT_EQ(world.shelf.inventory().incomplete_frame_count(), 0U);
}

TEST(Shelf, a_contribution_survives_the_end_of_its_connection) {
  ShelfWorld world(2);
  world.declare_all(kX);
  world.push(0, "x", 0, floats({1, 1}));
  world.reconnect(0);
  world.declare(0, kX);
  world.push(0, "x", 0, floats({7, 7}));  // half overwritten by now, and ignored
  world.push(1, "x", 0, floats({2, 2}));
  EXPECT_EQ(bytes_of(world.take().answers.at(0).payload()), floats({3, 3}));
}

TEST(Shelf, the_epoch_after_the_largest_number_is_later) {
  ShelfWorld world(1);
  ASSERT_TRUE(world.shelf.begin_epoch({Epoch(0xffffffff), 1, placed(256, 64)}).is_ok());
  world.reconnect(0);
  world.facts.epoch = Epoch(0);  // one later
  world.declare(0, kX);
  EXPECT_EQ(world.out.violations.size(), 1U);
  world.take();
  world.facts.epoch = Epoch(0xfffffffe);  // one earlier
  world.declare(0, kX);
  EXPECT_TRUE(world.out.empty());
}

// ---- memory

TEST(Shelf, a_tensor_at_rest_costs_its_bytes_once) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    ShelfWorld world(2);
    world.declare_all(declaration("x", dtype, 1024));
    EXPECT_EQ(world.pool.lent_bytes(), 0U) << "a declaration takes no memory";
    for (std::uint32_t round = 0; round < 3; ++round) {
      for (std::uint32_t worker = 0; worker < 2; ++worker) {
        for (std::uint32_t part = 0; part < 4; ++part) {
          for (std::uint64_t offset = 0; offset < 256; offset += 64) {
            world.push(worker, "x", round, filled(64, 0), {part, offset});
          }
        }
      }
      EXPECT_EQ(world.shelf.inventory().incomplete_frame_count(), 0U);
      world.out.clear();
      EXPECT_EQ(world.pool.lent_bytes(), 1024U);
    }
  }
}

TEST(Shelf, an_incomplete_frame_costs_one_accumulator_more) {
  ShelfWorld world(3);
  world.declare_all(declaration("f", kF32, 64));
  world.declare_all(declaration("h", DType::kFloat16, 64));
  world.push(0, "f", 0, filled(64, 0));
  world.push(1, "f", 0, filled(64, 0));
  EXPECT_EQ(world.pool.lent_bytes(), 64U);
  world.push(0, "h", 0, filled(64, 0));
  EXPECT_EQ(world.pool.lent_bytes(), 64U + 128U) << "float16 is summed in float32";
}

TEST(Shelf, an_announced_length_takes_no_memory) {
  ShelfWorld world(2);
  world.declare_all(declaration("huge", DType::kUint8, std::uint64_t{1} << 39));
  world.push(0, "huge", 0, filled(64, 1), {2'000'000'000, 192});
  EXPECT_THAT(world.out.violations, IsEmpty());
  EXPECT_EQ(world.pool.lent_bytes(), 64U);
}

TEST(Shelf, a_tensor_without_memory_is_refused_by_name_and_the_shelf_lives) {
  ShelfSettings settings;
  settings.memory_bytes_max =
      3 * 4096 + 4000;  // three frames, and the records of two parts and tensors
  ShelfWorld world(2, 16384, 4096, settings);
  world.declare_all(declaration("big", kF32, 16384));
  world.declare_all(kX);
  for (const std::uint64_t offset : {0, 4096, 8192, 12288}) {
    world.push(0, "big", 0, filled(4096, 0), {0, offset});
  }
  ASSERT_EQ(world.out.spoiled.size(), 1U);
  EXPECT_EQ(world.out.spoiled[0].code, Code::kSystem);
  EXPECT_EQ(world.out.spoiled[0].key, key_of("big"));
  EXPECT_FALSE(world.out.spoiled[0].worker.has_value()) << "all are told";
  EXPECT_THAT(world.out.spoiled[0].text,
              HasSubstr("\"big\" (float32, shape 4096, 16384 bytes, sum)"));
  EXPECT_THAT(world.out.spoiled[0].text, HasSubstr("4096 more bytes beside"));
  EXPECT_EQ(world.pool.lent_bytes(), 0U);
  EXPECT_EQ(world.shelf.inventory().incomplete_frame_count(), 0U);
  world.take();
  world.push(0, "big", 0, filled(4096, 0));  // on its way when the worker was told
  EXPECT_TRUE(world.out.empty());
  world.push(0, "x", 0, floats({1, 1}));
  world.push(1, "x", 0, floats({1, 1}));
  EXPECT_EQ(world.take().answers.size(), 2U);
}

TEST(Shelf, pushes_without_payload_of_ever_more_parts_reach_the_limit_too) {
  ShelfSettings settings;
  settings.memory_bytes_max = 100'000;
  ShelfWorld world(2, 256, 64, settings);
  world.declare_all(
      declaration("b", DType::kUint8, std::uint64_t{1} << 39, Operation::kBroadcast, 0));
  std::uint32_t part = 0;
  while (world.out.spoiled.empty() && part < 1000) {
    world.push(1, "b", 0, {}, {part++, 0}, wire::kNoPayload);
  }
  ASSERT_EQ(world.out.spoiled.size(), 1U) << "their records grow without end";
  EXPECT_GT(part, 100U);
  world.take();
  world.declare_all(kX);
  world.push(0, "x", 0, floats({1, 1}));
  world.push(1, "x", 0, floats({1, 1}));
  EXPECT_EQ(world.take().answers.size(), 2U) << "and are gone with the tensor";
}

TEST(Shelf, declarations_count_with_all_that_they_take_and_reach_a_limit_before_memory_does) {
  ShelfSettings settings;
  settings.memory_bytes_max = 4'000'000;
  ShelfWorld world(4096, 256, 64, settings);
  std::vector<std::uint32_t> ranks(4095);  // as a bitmap they are 512 bytes
  std::iota(ranks.begin(), ranks.end(), 0U);
  wire::Declare declared = declaration("0", kF32, 4);
  declared.members = Members(ranks);
  std::uint32_t count = 0;
  for (; world.out.failures.empty() && count < 1000; ++count) {
    declared.name = std::to_string(count);
    world.declare(0, declared);
  }
  ASSERT_EQ(world.out.failures.size(), 1U);
  EXPECT_LE(world.shelf.inventory().tensors().size() * ranks.size() * sizeof(std::uint32_t),
            1'000'000U);
  EXPECT_THAT(world.out.failures[0].why.message(), HasSubstr(std::to_string(count - 1)));
  EXPECT_THAT(world.out.failures[0].why.message(),
              HasSubstr("a quarter is for this (BYTEPS_SERVER_MEMORY_MB allows each of its shards "
                        "4000000 bytes)"));
  EXPECT_GT(world.shelf.inventory().tensors().size(), 10U);
}

TEST(Shelf, what_tensors_take_that_are_forgotten_is_free_for_others) {
  ShelfSettings settings;
  settings.memory_bytes_max = 100'000;
  ShelfWorld world(2, 256, 64, settings);
  for (int i = 0; i < 10'000; ++i) {
    const std::string name = std::to_string(i);
    world.declare_all(declaration(name, kF32, 4));
    for (const std::uint32_t worker : {0, 1}) world.forget(worker, name);
  }
  EXPECT_THAT(world.out.failures, IsEmpty());
  EXPECT_EQ(world.shelf.inventory().tensors().size(), 0U);
}

TEST(Shelf, the_end_of_an_epoch_gives_back_all_memory_to_the_machine) {
  ShelfWorld world(2);
  world.declare_all(kX);
  for (const std::uint32_t worker : {0, 1}) world.push(worker, "x", 0, floats({1, 1}));
  world.push(0, "x", 1, floats({1, 1}));
  world.take();
  EXPECT_GT(world.pool.lent_bytes(), 0U);
  world.shelf.end_epoch();
  EXPECT_EQ(world.pool.lent_bytes() + world.pool.idle_bytes(), 0U);
  EXPECT_EQ(world.shelf.next_deadline(), kNever);
}

TEST(Shelf, too_many_tensors_fail_the_job) {
  ShelfSettings settings;
  settings.tensor_count_max = 2;
  ShelfWorld world(1, 256, 64, settings);
  for (const char* name : {"a", "b", "c"}) world.declare(0, declaration(name, kF32, 4));
  ASSERT_EQ(world.out.failures.size(), 1U);
  EXPECT_THAT(world.out.failures[0].why.message(), HasSubstr("\"c\""));
  EXPECT_EQ(world.shelf.inventory().tensors().size(), 2U);
}

// ---- broadcast

TEST(Shelf, a_broadcast_gives_the_roots_bytes_to_the_others_and_a_word_to_the_root) {
  ShelfWorld world(3);
  world.declare_all(declaration("b", DType::kFloat16, 4, Operation::kBroadcast, 1));
  world.push(0, "b", 0, {}, {}, wire::kNoPayload);
  world.push(1, "b", 0, filled(4, 0xff));  // NaN: bytes are copied, not added
  EXPECT_TRUE(world.out.empty()) << "worker 2 has not come";
  world.push(2, "b", 0, {}, {}, wire::kNoPayload);
  const Told out = world.take();
  ASSERT_EQ(out.answers.size(), 3U);
  EXPECT_EQ(bytes_of(out.answers[0].payload()), filled(4, 0xff));
  EXPECT_EQ(out.answers[1].header.flags, wire::kNoPayload);
  EXPECT_EQ(out.answers[1].payload().size(), 0U);
  EXPECT_EQ(bytes_of(out.answers[2].payload()), filled(4, 0xff));
}

TEST(Shelf, a_lost_broadcast_answer_is_sent_again) {
  ShelfWorld world(2);
  world.declare_all(declaration("b", kF32, 4, Operation::kBroadcast, 1));
  world.push(0, "b", 0, {}, {}, wire::kNoPayload);
  world.push(1, "b", 0, filled(4, 3));
  world.take();
  world.push(0, "b", 0, {}, {}, wire::kNoPayload);
  world.push(1, "b", 0, filled(4, 9));
  const Told out = world.take();
  ASSERT_EQ(out.answers.size(), 2U);
  EXPECT_EQ(bytes_of(out.answers[0].payload()), filled(4, 3));
  EXPECT_EQ(out.answers[1].header.flags, wire::kNoPayload);
}

// ---- declarations

TEST(Shelf, a_mismatch_names_tensor_ranks_and_what_each_had_and_goes_to_all) {
  ShelfWorld world(2);
  world.declare(0, declaration("layer.weight", kF32, 4096));
  world.push(0, "layer.weight", 0, filled(64, 0));
  world.declare(1, declaration("layer.weight", DType::kFloat64, 4096));
  const Told out = world.take();
  ASSERT_EQ(out.spoiled.size(), 1U);
  EXPECT_FALSE(out.spoiled[0].worker.has_value());
  EXPECT_EQ(out.spoiled[0].code, Code::kMismatch);
  EXPECT_THAT(out.spoiled[0].text,
              HasSubstr("tensor \"layer.weight\" differs between ranks: worker 0 (float32, shape "
                        "1024, 4096 bytes, sum), but worker 1 (float64, shape 512, 4096 bytes, "
                        "sum)"));
  EXPECT_EQ(world.pool.lent_bytes(), 0U) << "a spoiled tensor holds no memory";
  world.push(0, "layer.weight", 0, filled(64, 0), {0, 64});
  world.push(1, "layer.weight", 0, filled(64, 0));
  EXPECT_TRUE(world.out.empty()) << "pushes that were on their way are ignored";
}

TEST(Shelf, a_mismatch_is_told_again_to_those_who_declare_or_connect_later) {
  ShelfWorld world(3);
  world.declare(0, kX);
  world.declare(1, declaration("x", kF32, 12));
  world.take();
  world.declare(2, kX);
  ASSERT_EQ(world.out.spoiled.size(), 1U);
  EXPECT_EQ(world.out.spoiled[0].worker, WorkerRank(2));
  world.take();
  world.reconnect(1);
  ASSERT_EQ(world.out.spoiled.size(), 1U);
  EXPECT_EQ(world.out.spoiled[0].worker, WorkerRank(1));
  EXPECT_THAT(world.out.spoiled[0].text, HasSubstr("12 bytes"));
}

TEST(Shelf, the_root_matters_for_broadcasts_only) {
  ShelfWorld world(2);
  world.declare(0, declaration("s", kF32, 8, Operation::kSum, 0));
  world.declare(1, declaration("s", kF32, 8, Operation::kSum, 1));
  EXPECT_TRUE(world.out.empty());
  world.declare(0, declaration("b", kF32, 8, Operation::kBroadcast, 0));
  world.declare(1, declaration("b", kF32, 8, Operation::kBroadcast, 1));
  ASSERT_EQ(world.out.spoiled.size(), 1U);
  EXPECT_THAT(world.out.spoiled[0].text, HasSubstr("broadcast from worker 1"));
}

TEST(Shelf, a_tensor_that_changes_at_one_worker_says_so) {
  ShelfWorld world(2);
  world.declare(0, kX);
  world.declare(0, declaration("x", kF32, 16));
  ASSERT_EQ(world.out.spoiled.size(), 1U);
  EXPECT_THAT(world.out.spoiled[0].text,
              HasSubstr("worker 0 had (float32, shape 2, 8 bytes, sum) and now has (float32, "
                        "shape 4, 16 bytes"));
}

TEST(Shelf, a_forgotten_key_begins_anew_when_all_have_forgotten_it) {
  ShelfWorld world(2);
  world.declare_all(kX);
  world.push(0, "x", 0, floats({1, 1}));
  world.push(1, "x", 0, floats({1, 1}));
  world.take();
  world.forget(0, "x");
  world.forget(0, "x");
  EXPECT_EQ(world.shelf.inventory().tensors().size(), 1U);
  world.push(1, "x", 0, floats({1, 1}));  // worker 1 has lost its answer
  EXPECT_EQ(world.take().answers.size(), 1U);
  world.forget(1, "x");
  EXPECT_EQ(world.shelf.inventory().tensors().size(), 0U);
  EXPECT_EQ(world.pool.lent_bytes(), 0U);
  world.forget(1, "x");  // a repeat
  world.declare_all(declaration("x", DType::kInt32, 4));
  world.push(0, "x", 0, elements(DType::kInt32, {1}));
  world.push(1, "x", 0, elements(DType::kInt32, {1}));
  EXPECT_EQ(bytes_of(world.take().answers.at(0).payload()), elements(DType::kInt32, {2}));
}

TEST(Shelf, a_name_promised_for_once_and_used_again_too_early_is_an_error_for_all) {
  ShelfWorld world(2);
  world.declare_all(kX);
  world.forget(0, "x");
  world.declare(0, kX);
  ASSERT_EQ(world.out.spoiled.size(), 1U);
  EXPECT_EQ(world.out.spoiled[0].code, Code::kInvalidArgument);
  EXPECT_THAT(world.out.spoiled[0].text, HasSubstr("worker 0 uses again"));
}

TEST(Shelf, a_new_epoch_forgets_everything) {
  ShelfWorld world(2);
  world.declare_all(kX);
  world.push(0, "x", 0, floats({1, 1}));
  world.facts.epoch = Epoch(8);
  world.facts.worker_count = 1;
  ASSERT_TRUE(world.shelf.begin_epoch(world.facts).is_ok());
  EXPECT_EQ(world.pool.lent_bytes(), 0U);
  EXPECT_EQ(world.shelf.next_deadline(), kNever);
  world.reconnect(0);
  world.declare(0, declaration("x", DType::kInt8, 3));
  world.push(0, "x", 0, filled(3, 1));
  EXPECT_EQ(world.take().answers.size(), 1U);
}

TEST(Shelf, refuses_a_roster_that_cannot_be_served) {
  BufferPool pool;
  Shelf shelf({}, pool);
  for (const ShelfEpoch& facts : {
           ShelfEpoch{Epoch(1), 0, placed(256, 64), nullptr, std::nullopt},
           ShelfEpoch{Epoch(1), kWorkersMax + 1, placed(256, 64), nullptr, std::nullopt},
           ShelfEpoch{Epoch(1), 1, placed(2 * kPayloadBytesMax, 2 * kPayloadBytesMax), nullptr,
                      std::nullopt},
           ShelfEpoch{Epoch(1), 1, placed(std::uint64_t{1} << 62, 64), nullptr, std::nullopt},
       }) {
    EXPECT_EQ(shelf.begin_epoch(facts).code(), Code::kInvalidArgument);
  }
  EXPECT_TRUE(
      shelf.begin_epoch({Epoch(1), kWorkersMax, placed(4'096'000, 32768), nullptr, std::nullopt})
          .is_ok());
}

// ---- groups: the workers of one machine contribute together

// Workers 0 and 1 on one machine, 2 and 3 on another, 4 alone.
struct Grouped : ShelfWorld {
  explicit Grouped(ShelfSettings settings = {})
      : ShelfWorld(5, 256, 64, settings, {7, 7, 8, 8, 0}) {}

  std::uint32_t leader(std::uint32_t machine, const std::string& name,
                       std::uint32_t part = 0) const {
    const Crew crew = facts.groups->crew_of(machine, {});
    return leader_of(crew, key_of(name), part, 1).value;
  }
  std::uint32_t other(std::uint32_t machine, const std::string& name,
                      std::uint32_t part = 0) const {
    return 4 * machine + 1 - leader(machine, name, part);
  }
  // What it brings from its machine: nothing where `numbers` are none.
  void bring(std::uint32_t machine, const std::string& name, const std::vector<float>& numbers,
             std::uint32_t round = 0) {
    push(leader(machine, name), name, round, floats(numbers), {},
         numbers.empty() ? wire::kNoPayload : 0);
  }
  // To whom the answers went that have a payload.
  static std::vector<std::uint32_t> sent(const Told& told) {
    std::vector<std::uint32_t> workers;
    for (const ShelfOutput::Answer& answer : told.answers) {
      if (answer.payload_bytes > 0) workers.push_back(answer.header.worker.value);
    }
    return workers;
  }
};

TEST(ShelfGroups, one_of_each_machine_contributes_and_is_answered_and_an_average_divides_by_ranks) {
  Grouped world;
  world.declare_all(declaration("x", kF32, 8, Operation::kAverage));
  world.bring(0, "x", {3, 30});
  world.bring(1, "x", {7, 70});
  EXPECT_TRUE(world.out.empty());
  world.bring(2, "x", {5, 50});
  const Told out = world.take();
  EXPECT_THAT(Grouped::sent(out),
              testing::UnorderedElementsAre(world.leader(0, "x"), world.leader(1, "x"), 4U));
  for (const ShelfOutput::Answer& answer : out.answers) {
    EXPECT_EQ(bytes_of(answer.payload()), floats({3, 30}));
  }
}

TEST(ShelfGroups, parts_have_leaders_in_turns) {
  Grouped world;
  world.declare_all(declaration("x", kF32, 4 * 256));
  std::vector<std::uint32_t> leaders;
  for (std::uint32_t part = 0; part < 4; ++part) leaders.push_back(world.leader(0, "x", part));
  EXPECT_NE(leaders[0], leaders[1]);
  for (std::uint32_t part = 0; part < 4; ++part) {
    for (std::uint32_t machine = 0; machine < 2; ++machine) {
      world.push(world.leader(machine, "x", part), "x", 0, filled(64, 0), {part, 0});
    }
    world.push(4, "x", 0, filled(64, 0), {part, 0});
    const Told out = world.take();
    ASSERT_EQ(out.answers.size(), 3U) << "part " << part;
    EXPECT_THAT(Grouped::sent(out), testing::Contains(leaders[part]));
  }
}

TEST(ShelfGroups, who_does_not_lead_a_part_breaks_the_protocol_by_pushing_it) {
  Grouped world;
  world.declare_all(kX);
  world.push(world.other(0, "x"), "x", 0, floats({1, 2}));
  const Told out = world.take();
  ASSERT_EQ(out.violations.size(), 1U);
  EXPECT_EQ(out.violations[0].worker.value, world.other(0, "x"));
  EXPECT_THAT(out.violations[0].text, HasSubstr("another worker of its machine leads this part"));
  EXPECT_EQ(world.shelf.inventory().incomplete_frame_count(), 0U);
}

TEST(ShelfGroups, a_broadcast_is_brought_from_the_roots_machine_by_its_leader) {
  Grouped world;
  const std::uint32_t root = world.other(1, "b");
  world.declare_all(declaration("b", kF32, 8, Operation::kBroadcast, root));
  world.bring(0, "b", {});
  world.bring(2, "b", {});
  EXPECT_TRUE(world.out.empty());
  world.bring(1, "b", {5, 6});
  const Told out = world.take();
  ASSERT_EQ(out.answers.size(), 3U);
  EXPECT_THAT(Grouped::sent(out), testing::UnorderedElementsAre(world.leader(0, "b"), 4U));
}

TEST(ShelfGroups, what_a_root_alone_gets_goes_to_its_machine) {
  Grouped world;
  wire::Declare tensor = declaration("r", kF32, 8);
  tensor.root_only = true;
  tensor.root = WorkerRank(world.other(0, "r"));
  world.declare_all(tensor);
  for (std::uint32_t machine = 0; machine < 3; ++machine) world.bring(machine, "r", {1, 2});
  const Told out = world.take();
  ASSERT_EQ(out.answers.size(), 3U);
  EXPECT_THAT(Grouped::sent(out), ElementsAre(world.leader(0, "r")));
}

TEST(ShelfGroups, of_some_members_only_their_machines_are_waited_for) {
  Grouped world;
  wire::Declare tensor = declaration("x", kF32, 8, Operation::kAverage);
  const std::vector<std::uint32_t> members = {1, 4};
  tensor.members = Members(members);
  world.declare(1, tensor);
  world.declare(4, tensor);
  world.push(1, "x", 0, floats({1, 2}));
  world.push(4, "x", 0, floats({3, 6}));
  const Told out = world.take();
  EXPECT_THAT(Grouped::sent(out), testing::UnorderedElementsAre(1U, 4U));
  EXPECT_EQ(bytes_of(out.answers.at(0).payload()), floats({2, 4}));
}

TEST(ShelfGroups, leaders_are_asked_and_told) {
  Grouped world;
  world.declare_all(kX);
  world.push(4, "x", 0, floats({1, 2}));
  world.tick(5 * kMillisecond);
  EXPECT_EQ(world.wanted_workers(),
            (std::vector<std::uint32_t>{world.leader(0, "x"), world.leader(1, "x")}));
  world.tick(3 * kSecond);
  const Told out = world.take();
  ASSERT_EQ(out.missing.size(), 1U);
  EXPECT_THAT(out.missing[0].to, ElementsAre(WorkerRank(4)));
  EXPECT_THAT(out.missing[0].ranks, ElementsAre(0, 1, 2, 3)) << "nobody knows who of them";
}

TEST(ShelfGroups, whom_a_leader_misses_is_named_in_its_place) {
  Grouped world;
  world.declare_all(kX);
  world.push(4, "x", 0, floats({1, 2}));
  world.say_missing(world.leader(0, "x"), "x", {1, 4});
  world.tick(3 * kSecond);
  Told out = world.take();
  ASSERT_EQ(out.missing.size(), 1U);
  EXPECT_THAT(out.missing[0].ranks, ElementsAre(1, 2, 3)) << "4 is of another machine";
  world.say_missing(world.leader(1, "x"), "x", {3});
  world.tick(9 * kSecond);
  out = world.take();
  ASSERT_EQ(out.missing.size(), 1U);
  EXPECT_THAT(out.missing[0].ranks, ElementsAre(1, 3));
}

TEST(ShelfGroups, what_a_machine_disagrees_about_ends_for_all_also_before_it_is_known) {
  Grouped world;
  world.declare_all(kX);
  world.say_mismatch(0, "x", "0 and 1 disagree");
  ASSERT_EQ(world.take().spoiled.size(), 1U);
  world.say_mismatch(0, "y", "0 and 1 disagree");
  const Told out = world.take();
  ASSERT_EQ(out.spoiled.size(), 1U);
  EXPECT_EQ(out.spoiled[0].worker, std::nullopt);
  EXPECT_EQ(out.spoiled[0].text, "0 and 1 disagree");
  world.declare(4, declaration("y", kF32, 8));
  const Told late = world.take();
  ASSERT_EQ(late.spoiled.size(), 1U);
  EXPECT_EQ(late.spoiled[0].worker, WorkerRank(4));
  world.say_mismatch(4, "z", "no memory at a relay");  // alone on its machine
  EXPECT_EQ(world.take().spoiled.size(), 1U);
  ShelfWorld flat(2);
  flat.say_mismatch(0, "x", "where there are no relays");
  EXPECT_EQ(flat.take().violations.size(), 1U);
}

TEST(ShelfGroups, deterministic_sums_are_added_in_the_order_of_machines) {
  ShelfSettings settings;
  settings.deterministic = true;
  std::vector<Bytes> sums;
  for (const std::vector<std::uint32_t>& order :
       std::vector<std::vector<std::uint32_t>>{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
    Grouped world(settings);
    world.declare_all(declaration("x", kF32, 4));
    for (const std::uint32_t machine : order) {
      world.bring(machine, "x", {machine == 0 ? 1e8F : machine == 1 ? -1e8F : 0.5F});
    }
    sums.push_back(bytes_of(world.take().answers.at(0).payload()));
  }
  EXPECT_EQ(sums[0], floats({0.5F}));
  EXPECT_EQ(sums[1], sums[0]);
  EXPECT_EQ(sums[2], sums[0]);
}

TEST(ShelfGroups, a_machine_whose_workers_have_no_more_inputs_is_not_waited_for) {
  Grouped world;
  world.declare_all(declaration("x", kF32, 8, Operation::kAverage));
  world.no_more_inputs(0);
  world.no_more_inputs(1);
  world.take();
  world.bring(2, "x", {4, 4});
  EXPECT_TRUE(world.out.empty());
  world.bring(1, "x", {6, 6});
  const Told out = world.take();
  EXPECT_THAT(Grouped::sent(out), testing::UnorderedElementsAre(world.leader(1, "x"), 4U));
  EXPECT_EQ(bytes_of(out.answers.at(0).payload()), floats({2, 2})) << "of five, two added nothing";
}

TEST(ShelfGroups, a_leader_without_inputs_leads_on_until_nobody_on_its_machine_has_any) {
  Grouped world;
  world.declare_all(declaration("x", kF32, 8));
  world.bring(1, "x", {6, 6});
  world.bring(2, "x", {4, 4});
  world.no_more_inputs(world.leader(0, "x"));
  EXPECT_TRUE(world.take().answers.empty());
  world.bring(0, "x", {1, 1});
  EXPECT_EQ(bytes_of(world.take().answers.at(0).payload()), floats({11, 11}));
  for (std::uint32_t machine = 1; machine < 3; ++machine) world.bring(machine, "x", {5, 5}, 1);
  world.no_more_inputs(world.other(0, "x"));
  EXPECT_EQ(bytes_of(world.take().answers.at(0).payload()), floats({10, 10}));
}

TEST(ShelfGroups, a_broadcast_without_inputs_at_the_roots_machine_is_refused) {
  Grouped world;
  world.declare_all(declaration("b", kF32, 8, Operation::kBroadcast, world.other(0, "b")));
  world.no_more_inputs(world.other(0, "b"));
  world.no_more_inputs(world.leader(0, "b"));
  world.take();
  world.bring(1, "b", {});
  world.bring(2, "b", {});
  const Told out = world.take();
  ASSERT_EQ(out.spoiled.size(), 1U);
  EXPECT_THAT(out.spoiled[0].text, HasSubstr("has said that it has no more inputs"));
}

TEST(ShelfGroups,
     a_name_is_forgotten_when_all_who_declared_it_have_said_so_and_one_of_each_machine) {
  Grouped world;
  const wire::Declare x = declaration("x", kF32, 2 * 256);
  for (std::uint32_t part = 0; part < 2; ++part) {
    for (const std::uint32_t worker :
         {world.leader(0, "x", part), world.leader(1, "x", part), 4U}) {
      world.declare(worker, x);
    }
  }
  for (const std::uint32_t worker : {0U, 1U, 2U, 3U}) world.forget(worker, "x");
  EXPECT_EQ(world.shelf.inventory().tensors().size(), 1U);
  world.forget(4, "x");
  EXPECT_EQ(world.shelf.inventory().tensors().size(), 0U);
}

TEST(Shelf, who_declares_a_name_with_other_members_does_not_keep_it) {
  ShelfWorld world(3);
  wire::Declare x = declaration("x", kF32, 4);
  const std::vector<std::uint32_t> members = {0, 1};
  x.members = Members(members);
  world.declare(0, x);
  world.declare(1, x);
  world.declare(2, declaration("x", kF32, 4));
  ASSERT_EQ(world.take().spoiled.size(), 1U);
  world.forget(0, "x");
  world.forget(1, "x");
  EXPECT_EQ(world.shelf.inventory().tensors().size(), 0U);
  // Found by fuzzing: what it had pushed before it heard that ended its connection.
  world.push(2, "x", 0, floats({1, 2, 3, 4}));
  EXPECT_TRUE(world.take().violations.empty());
  world.push(0, "x", 0, floats({1, 2, 3, 4}));
  EXPECT_EQ(world.take().violations.size(), 1U) << "a member knows that it has forgotten the name";
}

TEST(ShelfGroups, who_leads_no_part_here_need_not_forget) {
  Grouped world;
  for (const std::uint32_t worker : {world.leader(0, "x"), world.leader(1, "x"), 4U}) {
    world.declare(worker, kX);
  }
  world.forget(world.leader(0, "x"), "x");
  world.forget(4, "x");
  EXPECT_EQ(world.shelf.inventory().tensors().size(), 1U);
  world.forget(world.leader(1, "x"), "x");
  EXPECT_EQ(world.shelf.inventory().tensors().size(), 0U);
}

TEST(ShelfGroups, a_root_that_means_nothing_is_not_looked_at) {
  Grouped world;
  wire::Declare x = declaration("x", kF32, 4);
  x.root = WorkerRank(0xfffffff0);
  world.declare_all(x);
  world.no_more_inputs(0);
  world.no_more_inputs(1);
  world.take();
  world.bring(1, "x", {1});
  world.bring(2, "x", {2});
  EXPECT_EQ(bytes_of(world.take().answers.at(0).payload()), floats({3}));
}

// ---- wanted

TEST(Shelf, asks_those_who_miss_once_a_frame_is_incomplete_for_wanted_ns) {
  ShelfWorld world(3);
  world.declare_all(declaration("x", kF32, 600));
  EXPECT_EQ(world.shelf.next_deadline(), kNever);
  world.now = 100;
  world.push(1, "x", 0, filled(64, 0), {1, 64});
  EXPECT_EQ(world.shelf.next_deadline(), 100 + 5 * kMillisecond);
  world.tick(99 + 5 * kMillisecond);
  EXPECT_TRUE(world.out.empty());
  world.tick(100 + 5 * kMillisecond);
  const Told out = world.take();
  ASSERT_EQ(out.wanted.size(), 2U);
  EXPECT_EQ(out.wanted[0].worker, WorkerRank(0));
  EXPECT_EQ(out.wanted[1].worker, WorkerRank(2));
  EXPECT_EQ(out.wanted[0].key, key_of("x"));
  EXPECT_EQ(out.wanted[0].part, PartIndex(1));
  EXPECT_EQ(out.wanted[0].round, Round(0));
  EXPECT_EQ(out.wanted[0].end_bytes, 128U) << "as far as the part is begun";
}

TEST(Shelf, asks_for_frames_begun_after_it_has_asked_without_the_longer_wait_of_a_repeat) {
  ShelfWorld world(2);
  world.declare_all(declaration("x", kF32, 600));
  world.push(1, "x", 0, filled(64, 0), {1, 0});
  world.tick(5 * kMillisecond);
  ASSERT_EQ(world.take().wanted.at(0).end_bytes, 64U);
  EXPECT_EQ(world.shelf.next_deadline(), 15 * kMillisecond) << "a repeat";
  world.now = 6 * kMillisecond;
  world.push(1, "x", 0, filled(64, 0), {1, 64});
  EXPECT_EQ(world.shelf.next_deadline(), 11 * kMillisecond);
  world.tick(11 * kMillisecond);
  EXPECT_EQ(world.take().wanted.at(0).end_bytes, 128U);
}

TEST(Shelf, looks_only_at_parts_that_are_incomplete_still_in_the_order_in_which_they_were_begun) {
  ShelfWorld world(2);
  for (const char* name : {"a", "b", "c", "d"}) world.declare_all(declaration(name, kF32, 64));
  for (const char* name : {"a", "b", "c", "d"}) {
    world.now += kMillisecond;
    world.push(0, name, 0, filled(64, 0));
  }
  world.push(1, "a", 0, filled(64, 0));           // finished: the first of the row,
  world.declare(1, declaration("c", kF32, 128));  // spoiled: one in the middle
  world.take();
  EXPECT_EQ(world.shelf.next_deadline(), 7 * kMillisecond) << "that of b";
  world.tick(20 * kMillisecond);
  const Told out = world.take();
  ASSERT_EQ(out.wanted.size(), 2U);
  EXPECT_EQ(out.wanted[0].key, key_of("b"));
  EXPECT_EQ(out.wanted[1].key, key_of("d"));
  world.push(1, "d", 0, filled(64, 0));
  world.push(0, "d", 1, filled(64, 0));  // its alarm of the round before waits still
  EXPECT_EQ(world.shelf.next_deadline(), 25 * kMillisecond);
}

TEST(Shelf, tells_those_who_contributed_whom_they_wait_for_when_it_lasts) {
  ShelfWorld world(4);
  world.declare_all(declaration("x", kF32, 600));
  world.push(1, "x", 0, filled(64, 0), {1, 64});
  world.push(2, "x", 0, filled(64, 0), {1, 64});
  std::vector<std::string> told;
  const auto pass = [&](TimeNs until) {
    for (TimeNs at = world.now; at <= until; at += 100 * kMillisecond) {
      world.tick(at);
      for (const ShelfOutput::Missing& missing : world.take().missing) {
        EXPECT_EQ(missing.key, key_of("x"));
        EXPECT_EQ(missing.part, PartIndex(1));
        told.push_back(std::to_string(missing.to.size()) + " wait for " +
                       workers_text(missing.ranks));
      }
    }
  };
  pass(2400 * kMillisecond);
  EXPECT_THAT(told, IsEmpty());
  pass(9 * kSecond);
  EXPECT_THAT(told, ElementsAre("2 wait for workers 0 and 3")) << "once";
  world.push(3, "x", 0, filled(64, 0), {1, 64});
  pass(12 * kSecond);
  EXPECT_THAT(told, ElementsAre("2 wait for workers 0 and 3", "3 wait for worker 0"));
  pass(30 * kSecond);
  EXPECT_EQ(told.size(), 3U) << "and every 10 s";
}

TEST(Shelf, asks_again_at_doubling_intervals_up_to_a_limit) {
  ShelfWorld world(2);
  world.declare_all(kX);
  world.push(0, "x", 0, floats({1, 1}));
  std::vector<TimeNs> asked_at;
  for (TimeNs at = 0; at < 10 * kSecond; at += kMillisecond) {
    world.tick(at);
    if (!world.wanted_workers().empty()) asked_at.push_back(at / kMillisecond);
  }
  ASSERT_GE(asked_at.size(), 12U);
  asked_at.resize(12);
  EXPECT_THAT(asked_at, ElementsAre(5, 15, 35, 75, 155, 315, 635, 1275, 2555, 3835, 5115, 6395));
}

TEST(Shelf, does_not_ask_when_all_is_done_in_time) {
  ShelfWorld world(2);
  world.declare_all(declaration("x", kF32, 256));
  for (std::uint32_t round = 0; round < 100; ++round) {
    const TimeNs start = round * 8 * kMillisecond;
    world.now = start;
    for (const std::uint64_t offset : {0, 64, 128, 192}) {
      // Each frame is complete after 2 ms, the part after 8 ms.
      world.push(0, "x", round, filled(64, 0), {0, offset});
      world.tick(world.now + 2 * kMillisecond);
      world.push(1, "x", round, filled(64, 0), {0, offset});
    }
    EXPECT_THAT(world.take().wanted, IsEmpty());
  }
  world.tick(kSecond * 10);
  EXPECT_TRUE(world.out.empty());
  EXPECT_EQ(world.shelf.next_deadline(), kNever);
}

TEST(Shelf, a_long_wait_in_one_round_does_not_delay_the_question_in_the_next) {
  ShelfWorld world(2);
  world.declare_all(kX);
  world.push(0, "x", 0, floats({1, 1}));
  for (TimeNs at = 0; at <= 2 * kSecond; at += kMillisecond) world.tick(at);
  world.push(1, "x", 0, floats({1, 1}));
  world.take();
  world.push(1, "x", 1, floats({1, 1}));
  world.tick(world.now + 5 * kMillisecond);
  EXPECT_THAT(world.wanted_workers(), ElementsAre(0));
}

TEST(Shelf, each_worker_that_misses_in_any_overdue_frame_of_the_part_is_asked) {
  ShelfWorld world(4);
  world.declare_all(declaration("x", kF32, 256));
  for (const std::uint32_t worker : {0, 1, 2}) world.push(worker, "x", 0, filled(64, 0), {0, 0});
  for (const std::uint32_t worker : {0, 1, 3}) world.push(worker, "x", 0, filled(64, 0), {0, 64});
  world.now = 4 * kMillisecond;
  world.push(0, "x", 0, filled(64, 0), {0, 128});  // too young to ask worker 1 for
  world.tick(5 * kMillisecond);
  EXPECT_THAT(world.wanted_workers(), ElementsAre(2, 3));
}

TEST(Shelf, a_forgotten_part_asks_for_nothing) {
  ShelfWorld world(2);
  world.declare_all(kX);
  world.push(0, "x", 0, floats({1, 1}));
  world.forget(0, "x");
  world.forget(1, "x");
  world.tick(kSecond);
  EXPECT_TRUE(world.out.empty());
  EXPECT_EQ(world.shelf.next_deadline(), kNever);
}

// ---- deterministic sums

TEST(Shelf, deterministic_float_sums_are_the_same_bits_in_any_order_of_arrival) {
  constexpr std::uint32_t kWorkers = 5;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
    Bytes first_sum;
    Prng prng(42);
    std::vector<Bytes> contributions(kWorkers);
    for (Bytes& contribution : contributions) {
      for (int i = 0; i < 8; ++i) {
        append_number(contribution, dtype,
                      (static_cast<double>(prng.below(2'000'001)) - 1e6) / 30'011);
      }
    }
    std::vector<std::uint32_t> order = {0, 1, 2, 3, 4};
    do {
      ShelfSettings settings;
      settings.deterministic = true;
      ShelfWorld world(kWorkers, 256, 64, settings);
      world.declare_all(declaration("d", dtype, contributions[0].size(), Operation::kAverage));
      for (std::uint32_t round = 0; round < 2; ++round) {
        for (const std::uint32_t worker : order) {
          world.push(worker, "d", round, contributions[worker]);
          world.push(worker, "d", round, filled(contributions[worker].size(), 1));  // a repeat
        }
        const Told out = world.take();
        ASSERT_GE(out.answers.size(), kWorkers);
        if (first_sum.empty()) first_sum = bytes_of(out.answers[0].payload());
        ASSERT_EQ(bytes_of(out.answers[0].payload()), first_sum);
      }
      ASSERT_EQ(world.pool.lent_bytes(), 64U) << "what was held back is given back";
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

// ---- hostile bytes: each ends the connection, none does anything else

class HostileShelf : public testing::Test {
 protected:
  HostileShelf() : world_(2) {
    world_.declare_all(declaration("x", kF32, 300));
    world_.declare_all(declaration("b", kF32, 64, Operation::kBroadcast, 1));
    header_ = world_.about(0, "x");
    header_.kind = wire::Kind::kPush;
  }
  void expect_violation(const Bytes& payload, const char* what) {
    world_.step(0, header_, payload);
    EXPECT_EQ(world_.out.violations.size(), 1U) << what;
    EXPECT_EQ(world_.out.answers.size() + world_.out.spoiled.size(), 0U) << what;
    EXPECT_EQ(world_.pool.lent_bytes(), 0U) << what;
    world_.take();
  }
  void expect_bad_declaration(const wire::Declare& declared, const char* what) {
    header_ = world_.about(0, declared.name);
    header_.kind = wire::Kind::kDeclare;
    expect_violation(wire::encode(declared), what);
    EXPECT_EQ(world_.shelf.inventory().tensors().size(), 2U) << what;
  }
  ShelfWorld world_;
  wire::Header header_;
};

TEST_F(HostileShelf, another_workers_rank) {
  header_.worker = WorkerRank(1);
  expect_violation(filled(64, 0), "rank 1 from worker 0");
  header_.worker = WorkerRank(0xffffffff);
  expect_violation(filled(64, 0), "rank of nobody");
}

TEST_F(HostileShelf, an_undeclared_key) {
  header_.key = Key(1);
  expect_violation(filled(64, 0), "key 1");
}

TEST_F(HostileShelf, a_key_declared_on_an_earlier_connection_only) {
  world_.push(1, "x", 0, filled(64, 0));
  const std::size_t lent_bytes = world_.pool.lent_bytes();
  world_.reconnect(0);
  world_.push(0, "x", 0, filled(64, 0));          // the part has a record
  world_.push(0, "x", 0, filled(44, 0), {1, 0});  // and has none
  EXPECT_EQ(world_.out.violations.size(), 2U);
  EXPECT_EQ(world_.pool.lent_bytes(), lent_bytes);
}

TEST_F(HostileShelf, parts_and_offsets_outside_the_tensor) {
  header_.part = PartIndex(2);
  expect_violation(filled(64, 0), "part 2 of 2");
  header_.part = PartIndex(0xffffffff);
  expect_violation(filled(64, 0), "last part number");
  header_.part = PartIndex(0);
  for (const std::uint64_t offset :
       {std::uint64_t{1}, std::uint64_t{63}, std::uint64_t{256}, std::uint64_t{1} << 38,
        ~std::uint64_t{0} - 63, ~std::uint64_t{0}}) {
    header_.offset_bytes = offset;
    expect_violation(filled(64, 0), "offset");
  }
  header_.part = PartIndex(1);
  header_.offset_bytes = 64;
  expect_violation({}, "behind the last frame, empty");
}

TEST_F(HostileShelf, payloads_of_another_length) {
  for (const std::size_t bytes : {0, 1, 60, 63, 65, 128}) {
    expect_violation(filled(bytes, 0), "payload");
  }
  header_.part = PartIndex(1);
  expect_violation(filled(64, 0), "the last frame has 44 bytes");
}

TEST_F(HostileShelf, flags_that_do_not_fit) {
  header_.flags = wire::kNoPayload;
  expect_violation({}, "a sum without payload");
  header_.flags = 2;
  expect_violation(filled(64, 0), "unknown flag");
  header_.key = key_of("b");
  header_.flags = 0;
  expect_violation(filled(64, 0), "a broadcast's payload from another than the root");
  expect_violation({}, "without flag");
  header_.flags = wire::kNoPayload;
  expect_violation(filled(64, 0), "flag and payload");
}

TEST_F(HostileShelf, the_root_must_have_a_payload) {
  world_.push(1, "b", 0, {}, {}, wire::kNoPayload);
  EXPECT_EQ(world_.out.violations.size(), 1U);
}

TEST_F(HostileShelf, epochs_that_have_not_begun) {
  header_.epoch = Epoch(8);
  expect_violation(filled(64, 0), "next epoch");
}

TEST_F(HostileShelf, a_message_of_a_former_epoch_is_only_late) {
  header_.epoch = Epoch(6);
  world_.step(0, header_, filled(64, 0));
  EXPECT_TRUE(world_.out.empty());
  EXPECT_EQ(world_.pool.lent_bytes(), 0U);
}

TEST_F(HostileShelf, kinds_that_workers_do_not_send_to_shards) {
  for (const wire::Kind kind : {wire::Kind::kAnswer, wire::Kind::kWanted, wire::Kind::kMismatch,
                                wire::Kind::kJoin, wire::Kind::kRoster, wire::Kind::kFail}) {
    header_.kind = kind;
    expect_violation(filled(64, 0), "kind");
  }
}

TEST_F(HostileShelf, declarations_that_make_no_sense) {
  expect_bad_declaration(declaration("", kF32, 4), "no name");
  expect_bad_declaration(declaration(std::string(1025, 'n'), kF32, 4), "long name");
  expect_bad_declaration(declaration("a", kF32, 5), "half an element");
  expect_bad_declaration(declaration("a", DType::kUint8, ~std::uint64_t{0}), "too many parts");
  expect_bad_declaration(declaration("a", kF32, 4, Operation::kBroadcast, 2), "root 2 of 2");
  expect_bad_declaration(declaration("a", DType::kBool, 4, Operation::kAverage), "average of bool");
  wire::Declare wrong = declaration("a", DType::kBool, 4);
  wire::Declare shaped = declaration("a", kF32, 16);
  for (const std::array<std::uint64_t, 2> other :
       {std::array<std::uint64_t, 2>{2, 3}, {0, 4}, {8, 2}, {~std::uint64_t{0}, 4}}) {
    shaped.shape = Shape(other);
    expect_bad_declaration(shaped, "a shape of another size");
  }
  wrong.scale = 2;
  expect_bad_declaration(wrong, "scale of bool");
  wrong = declaration("a", kF32, 4, Operation::kMin);
  wrong.scale = 2;
  expect_bad_declaration(wrong, "scale of a minimum");
  wrong = declaration("a", kF32, 4);
  wrong.scale = 1e300;
  expect_bad_declaration(wrong, "scale beyond float32");
  for (const std::vector<std::uint32_t>& members :
       {std::vector<std::uint32_t>{1}, {0, 1}, {0, 2}, {0, 65535}}) {
    expect_bad_declaration(of_members(declaration("a", kF32, 4), members), "members");
  }
  wrong = of_members(declaration("a", kF32, 4, Operation::kBroadcast, 1), {0});
  expect_bad_declaration(wrong, "a root that is no member");
  wrong = declaration("a", kF32, 4, Operation::kSum, 2);
  wrong.root_only = true;
  expect_bad_declaration(wrong, "for root 2 of 2 alone");
  wrong = declaration("a", kF32, 4, Operation::kBroadcast, 1);
  wrong.root_only = true;
  expect_bad_declaration(wrong, "a broadcast for the root alone");
  header_ = world_.about(0, "some other name");
  header_.kind = wire::Kind::kDeclare;
  expect_violation(wire::encode(declaration("a", kF32, 4)), "key of another name");
  expect_violation(filled(13, 255), "garbage");
}

TEST_F(HostileShelf, random_messages_never_crash_it) {
  Prng prng(1);
  for (int i = 0; i < 100'000; ++i) {
    wire::Header header =
        world_.about(static_cast<std::uint32_t>(prng.below(2)), prng.chance(0.5) ? "x" : "b");
    header.kind = static_cast<wire::Kind>(1 + prng.below(6));
    header.flags = static_cast<std::uint8_t>(prng.below(3));
    header.part = PartIndex(static_cast<std::uint32_t>(prng.below(3)));
    header.round = Round(static_cast<std::uint32_t>(prng.below(4)));
    header.offset_bytes = prng.chance(0.8) ? prng.below(6) * 64 : prng.next();
    header.tag = static_cast<std::uint32_t>(prng.next());
    Bytes payload = filled(prng.chance(0.5) ? 64 : prng.below(70), 1);
    world_.now = i * kMicrosecond;
    world_.step(header.worker.value, header, payload);
    world_.tick(world_.now);
    world_.out.clear();
  }
  EXPECT_LE(world_.pool.lent_bytes(), 2U * (5 * 64 + 64));
}

}  // namespace
}  // namespace byteps
