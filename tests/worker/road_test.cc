#include "worker/road.h"

#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace byteps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Remembers which parts are here, and lets go those that it is told to.
class Hall final : public Stage {
 public:
  void enter(PartRef part, Tensor& /*tensor*/, TimeNs /*now*/) override {
    here.push_back(part.part);
  }
  void abandon(PartRef part, Tensor& /*tensor*/) override { std::erase(here, part.part); }
  void tick(TimeNs now, StageOutput& out) override {
    if (now >= opens_ns) out.leaving.push_back({0, here.front()});
  }
  TimeNs next_deadline() const override { return opens_ns; }
  std::vector<std::uint32_t> here;
  TimeNs opens_ns = kNever;
};

class RoadTest : public ::testing::Test {
 protected:
  RoadTest() {
    tensor_.parts.resize(3);
    for (std::uint32_t part = 0; part < 3; ++part) road_.begin({0, part}, tensor_, 0);
  }
  bool leave(std::uint32_t part, Hall& hall) {
    std::erase(hall.here, part);
    return road_.leave({0, part}, tensor_, 0);
  }
  Hall first_;
  Hall second_;
  Hall third_;
  Road road_{{{"first", "a", &first_}, {"second", "b", &second_}, {"third", "c", &third_}}};
  Tensor tensor_;
};

TEST_F(RoadTest, parts_pass_all_stages_each_at_its_own_pace) {
  EXPECT_THAT(first_.here, ElementsAre(0, 1, 2));
  EXPECT_FALSE(leave(2, first_));
  EXPECT_FALSE(leave(2, second_));
  EXPECT_FALSE(leave(0, first_));
  EXPECT_THAT(first_.here, ElementsAre(1));
  EXPECT_THAT(second_.here, ElementsAre(0));
  EXPECT_TRUE(road_.is_at(tensor_.parts[2], third_) && road_.is_at(tensor_.parts[0], second_));
  EXPECT_TRUE(leave(2, third_)) << "the end of the road";
  EXPECT_FALSE(road_.is_at(tensor_.parts[2], third_));
  road_.begin({0, 2}, tensor_, 0);
  EXPECT_THAT(first_.here, ElementsAre(1, 2));
}

TEST_F(RoadTest, a_part_can_come_back_to_a_stage_that_it_has_left) {
  leave(1, first_);
  leave(1, second_);
  third_.here.clear();
  road_.come_back({0, 1}, tensor_, first_, 0);
  EXPECT_TRUE(road_.is_at(tensor_.parts[1], first_));
  EXPECT_FALSE(leave(1, first_));
  EXPECT_TRUE(road_.is_at(tensor_.parts[1], second_));
}

TEST_F(RoadTest, who_abandons_the_road_is_in_no_stage) {
  leave(0, first_);
  leave(1, first_);
  leave(1, second_);
  leave(1, third_);
  road_.abandon(0, tensor_);
  EXPECT_THAT(first_.here, IsEmpty());
  EXPECT_THAT(second_.here, IsEmpty());
  for (const PartState& part : tensor_.parts) EXPECT_EQ(part.stage, PartState::kOffRoad);
}

TEST_F(RoadTest, stages_that_need_time_get_it_and_say_when) {
  leave(0, first_);
  first_.opens_ns = 20;
  second_.opens_ns = 10;
  EXPECT_EQ(road_.next_deadline(), 10);
  StageOutput out;
  road_.tick(10, out);
  ASSERT_EQ(out.leaving.size(), 1U);
  EXPECT_EQ(out.leaving[0].part, 0U);
  road_.tick(20, out);
  EXPECT_EQ(out.leaving.size(), 3U);
}

}  // namespace
}  // namespace byteps
