#include "base/members.h"

#include <array>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace byteps {
namespace {

using ::testing::HasSubstr;
using Ranks = std::vector<std::uint32_t>;

std::vector<std::byte> bytes(const std::vector<int>& values) {
  std::vector<std::byte> result;
  for (const int value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}

TEST(Members, all_are_as_many_as_the_job_has_and_have_no_bytes) {
  const Members all;
  EXPECT_TRUE(all.is_all());
  EXPECT_EQ(all.count(7), 7U);
  EXPECT_TRUE(all.has(WorkerRank(6)));
  EXPECT_EQ(all.at(5), WorkerRank(5));
  EXPECT_EQ(all.place_of(WorkerRank(5)), 5U);
  EXPECT_TRUE(all.bitmap().empty());
}

TEST(Members, some_have_places_and_a_bit_each) {
  const Members some(Ranks{1, 3, 8, 17});
  EXPECT_EQ(some.count(100), 4U);
  EXPECT_TRUE(some.has(WorkerRank(8)));
  EXPECT_FALSE(some.has(WorkerRank(9)));
  for (std::uint32_t place = 0; place < 4; ++place) {
    EXPECT_EQ(some.place_of(some.at(place)), place);
  }
  EXPECT_EQ(some.bitmap(), bytes({0b1010, 1, 0b10}));
  EXPECT_EQ(Members::of_bitmap(some.bitmap()), some);
  const Members last(Ranks{kWorkersMax - 1});
  EXPECT_EQ(last.bitmap().size(), kBitmapBytesMax);
  EXPECT_EQ(Members::of_bitmap(last.bitmap()), last);
}

TEST(Members, bytes_that_no_set_has_are_refused) {
  EXPECT_EQ(Members::of_bitmap({}), std::nullopt);
  EXPECT_EQ(Members::of_bitmap(bytes({1, 0})), std::nullopt) << "two forms of one set";
  EXPECT_EQ(Members::of_bitmap(std::vector<std::byte>(kBitmapBytesMax + 1, std::byte{1})),
            std::nullopt);
}

TEST(Members, a_list_must_ascend_within_the_job_and_have_the_caller) {
  const auto flaw = [](const Ranks& ranks) { return flaw_of_members(ranks, WorkerRank(2), 5); };
  EXPECT_EQ(flaw({2}), "");
  EXPECT_EQ(flaw({0, 2, 4}), "");
  EXPECT_THAT(flaw({}), HasSubstr("empty"));
  EXPECT_THAT(flaw({2, 5}), HasSubstr("member 5 is not a rank of a job of 5"));
  EXPECT_THAT(flaw({2, 1}), HasSubstr("not in ascending order: 1 comes after 2"));
  EXPECT_THAT(flaw({2, 2}), HasSubstr("2 comes after 2"));
  EXPECT_THAT(flaw({0, 1}), HasSubstr("rank 2 submits it and is not among its members"));
}

}  // namespace
}  // namespace byteps
