// Blocks, walls and processes that stand still: who is in whose way, and until when.
#include "sim/obstacles.h"

#include <gtest/gtest.h>

namespace byteps::sim {
namespace {

using Passage = Obstacles::Passage;

TEST(Obstacles, a_block_is_in_the_way_of_both_until_its_time_and_of_nobody_else) {
  Obstacles obstacles;
  obstacles.block({1, 2}, 10, false, 0);
  obstacles.block({3, 2}, 20, true, 0);
  EXPECT_EQ(obstacles.passage(1, 2, 9), Passage::kRefused);
  EXPECT_EQ(obstacles.passage(2, 1, 9), Passage::kRefused);
  EXPECT_EQ(obstacles.passage(2, 3, 9), Passage::kSilent);
  EXPECT_EQ(obstacles.passage(1, 3, 9), Passage::kFree);
  EXPECT_EQ(obstacles.passage(1, 2, 10), Passage::kFree);
}

TEST(Obstacles, a_wall_is_in_the_way_of_messages_one_way_and_of_connections_both_ways) {
  Obstacles obstacles;
  const std::uint64_t wall =
      obstacles.put_up({.from = {1}, .to = {2, 3}, .both = false, .until = 10}, 0);
  EXPECT_EQ(obstacles.wall_until(1, 3, 9), 10);
  EXPECT_EQ(obstacles.wall_until(3, 1, 9), 0);
  EXPECT_EQ(obstacles.wall_until(2, 3, 9), 0);
  EXPECT_TRUE(obstacles.is_walled(3, 1, 9));
  EXPECT_TRUE(obstacles.stands(wall, 9));
  EXPECT_FALSE(obstacles.stands(wall, 10));
  EXPECT_FALSE(obstacles.is_walled(3, 1, 10));
}

TEST(Obstacles, of_two_walls_the_one_that_stands_longer_counts) {
  Obstacles obstacles;
  obstacles.put_up({.from = {1}, .to = {2}, .both = true, .until = 10}, 0);
  obstacles.put_up({.from = {2}, .to = {1}, .both = true, .until = kNever}, 0);
  EXPECT_EQ(obstacles.wall_until(1, 2, 5), kNever);
  EXPECT_EQ(obstacles.wall_until(1, 2, 50), kNever);
}

TEST(Obstacles, a_process_that_is_frozen_twice_stands_still_until_the_later_time) {
  Obstacles obstacles;
  EXPECT_EQ(obstacles.frozen_until(7), 0);
  obstacles.freeze(7, 20);
  obstacles.freeze(7, 10);
  EXPECT_EQ(obstacles.frozen_until(7), 20);
  EXPECT_EQ(obstacles.frozen_until(8), 0);
}

}  // namespace
}  // namespace byteps::sim
