#include "base/spec.h"

#include <array>
#include <functional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace byteps {
namespace {

using ::testing::HasSubstr;

// Of rank 1 in a job of 4.
Result<Spec> made(const std::function<void(RawSpec&)>& change) {
  RawSpec raw;
  raw.element_count = 6;
  change(raw);
  return spec_of(raw, WorkerRank(1), 4);
}

TEST(Spec, says_everything_that_ranks_must_agree_about) {
  const std::array<std::uint64_t, 2> shape{2, 3};
  const std::array<std::uint32_t, 3> members{0, 1, 2};
  const Result<Spec> spec = made([&](RawSpec& raw) {
    raw.operation = static_cast<std::uint32_t>(Operation::kAverage);
    raw.dtype = static_cast<std::uint32_t>(DType::kBfloat16);
    raw.shape = shape;
    raw.root = 2;
    raw.root_only = true;
    raw.scale = 0.5;
    raw.members = members.data();
    raw.member_count = 3;
  });
  EXPECT_EQ(spec.value().text(),
            "bfloat16, shape 2x3, 12 bytes, average for worker 2 alone times 0.5, of workers 0-2");
  EXPECT_TRUE(spec.value().gets(WorkerRank(2)) && !spec.value().gets(WorkerRank(1)));
}

TEST(Spec, a_format_is_of_float32_sums_and_averages_and_ranks_agree_about_it) {
  const Result<Spec> coded = made([](RawSpec& raw) { raw.format = 3; });
  ASSERT_TRUE(coded.is_ok()) << coded.status().text();
  EXPECT_NE(coded.value().text().find(", coded as int8"), std::string::npos);
  EXPECT_NE(coded.value(), made([](RawSpec&) {}).value());
  EXPECT_FALSE(made([](RawSpec& raw) { raw.format = kFormatCount; }).is_ok());
  EXPECT_FALSE(made([](RawSpec& raw) {
                 raw.format = 3;
                 raw.dtype = static_cast<std::uint32_t>(DType::kInt32);
               }).is_ok());
  EXPECT_FALSE(made([](RawSpec& raw) {
                 raw.format = 4;
                 raw.operation = static_cast<std::uint32_t>(Operation::kMax);
               }).is_ok());
}

TEST(Spec, a_codec_is_said_in_words_and_ranks_agree_about_all_of_it) {
  const auto coded = [](const Codec& codec) {
    return made([&](RawSpec& raw) {
      raw.format = static_cast<std::uint32_t>(Format::kTopk);
      raw.codec = codec;
    });
  };
  const Result<Spec> spec = coded({.k = 0.01, .error_feedback = true, .momentum = 0.9});
  ASSERT_TRUE(spec.is_ok()) << spec.status().text();
  EXPECT_NE(
      spec.value().text().find(", coded as topk with k = 0.01, error feedback and momentum 0.9"),
      std::string::npos)
      << spec.value().text();
  for (const Codec& other : {Codec{.k = 0.02, .error_feedback = true, .momentum = 0.9},
                             Codec{.k = 0.01, .momentum = 0.9},
                             Codec{.k = 0.01, .error_feedback = true, .momentum = 0.8},
                             Codec{.k = 0.01, .error_feedback = true}}) {
    EXPECT_NE(spec.value(), coded(other).value());
  }
  EXPECT_FALSE(coded({}).is_ok()) << "k is missing";
}

TEST(Spec, a_root_counts_only_where_there_is_one) {
  Spec sum;
  Spec other = sum;
  other.root = WorkerRank(3);
  EXPECT_EQ(sum, other);
  sum.operation = other.operation = Operation::kBroadcast;
  EXPECT_NE(sum, other);
}

TEST(Spec, the_root_of_a_broadcast_has_its_output_and_is_sent_nothing) {
  Spec spec;
  spec.operation = Operation::kBroadcast;
  spec.root = WorkerRank(1);
  EXPECT_TRUE(spec.gives(WorkerRank(1)) && spec.gets(WorkerRank(1)));
  EXPECT_FALSE(spec.is_sent_to(WorkerRank(1)) || spec.gives(WorkerRank(0)));
  EXPECT_TRUE(spec.is_sent_to(WorkerRank(0)));
  spec.operation = Operation::kSum;
  spec.root_only = true;
  EXPECT_TRUE(spec.is_sent_to(WorkerRank(1)) && spec.gives(WorkerRank(0)));
  EXPECT_FALSE(spec.is_sent_to(WorkerRank(0)));
}

TEST(Spec, all_ranks_one_by_one_are_no_different_from_all) {
  const std::array<std::uint32_t, 4> all{0, 1, 2, 3};
  const auto one_by_one = made([&](RawSpec& raw) {
    raw.members = all.data();
    raw.member_count = 4;
  });
  EXPECT_EQ(one_by_one.value(), made([](RawSpec&) {}).value());
}

TEST(Spec, what_cannot_be_exchanged_is_refused_with_its_flaw) {
  const std::array<std::uint64_t, 2> shape{2, 4};
  const std::vector<std::uint64_t> deep(65, 1);
  const std::array<std::uint32_t, 2> others{0, 2};
  const auto flaw = [](const std::function<void(RawSpec&)>& change) {
    return made(change).status().message();
  };
  EXPECT_THAT(flaw([](RawSpec& raw) { raw.dtype = 77; }), HasSubstr("no dtype has the number 77"));
  EXPECT_THAT(flaw([](RawSpec& raw) { raw.operation = 9; }), HasSubstr("no operation"));
  EXPECT_THAT(flaw([](RawSpec& raw) { raw.element_count = ~0ULL; }), HasSubstr("memory"));
  EXPECT_THAT(flaw([&](RawSpec& raw) { raw.shape = shape; }), HasSubstr("2x4 has 8 elements"));
  EXPECT_THAT(flaw([&](RawSpec& raw) { raw.shape = deep; }), HasSubstr("65 dimensions"));
  EXPECT_THAT(flaw([](RawSpec& raw) { raw.member_count = 1; }), HasSubstr("NULL"));
  EXPECT_THAT(flaw([&](RawSpec& raw) {
                raw.members = others.data();
                raw.member_count = 2;
              }),
              HasSubstr("only members may"));
  EXPECT_THAT(flaw([](RawSpec& raw) {
                raw.operation = static_cast<std::uint32_t>(Operation::kBroadcast);
                raw.root = 4;
              }),
              HasSubstr("root 4 is not a rank of a job of 4"));
}

}  // namespace
}  // namespace byteps
