// Routes are compared with what base/placement.h and base/groups.h say about each part.
#include "worker/route.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace byteps {
namespace {

using testing::ElementsAre;

constexpr std::uint64_t kBytes = 100 * 256;

Placement placement_of_weights(std::vector<std::uint32_t> weights) {
  return {256, 64, std::move(weights)};
}

std::shared_ptr<const Groups> groups_of(const std::vector<std::uint64_t>& machines) {
  return std::make_shared<const Groups>(machines);
}

Members members(const std::vector<std::uint32_t>& ranks) {
  return Members(ranks);
}

Key key_number(int number) {
  return key_of("t" + std::to_string(number));
}

ShardIndex way_of(const Route& route, Key key, const Members& whose, std::uint32_t part) {
  return Route::OfTensor(route, key, whose).way_of(part, route.placement().part(key, kBytes, part));
}

TEST(Route, without_relays_a_part_goes_to_the_shard_that_owns_it) {
  const Route route(placement_of_weights({1, 2, 3}));
  EXPECT_EQ(route.way_count(), 3U);
  EXPECT_THAT(route.weights(), ElementsAre(1, 2, 3));
  for (int tensor = 0; tensor < 20; ++tensor) {
    const Key key = key_number(tensor);
    for (std::uint32_t part = 0; part < 100; ++part) {
      ASSERT_EQ(way_of(route, key, {}, part), route.placement().part(key, kBytes, part).shard);
    }
    EXPECT_FALSE(Route::OfTensor(route, key, members({0, 2})).meeting());
  }
}

TEST(Route, behind_relays_a_part_goes_to_the_one_of_this_machines_members_that_leads_it) {
  const auto groups = groups_of({1, 2, 1, 1, 2, 0});
  const std::vector<WorkerRank> machine = {WorkerRank(0), WorkerRank(2), WorkerRank(3)};
  const Route route(placement_of_weights({1, 1}), groups, WorkerRank(2));
  EXPECT_EQ(route.way_count(), 3U);
  EXPECT_THAT(route.weights(), ElementsAre(1, 1, 1)) << "a relay's share is not a shard's";
  for (const Members& whose :
       {Members(), members({0, 2, 5}), members({2}), members({1, 2, 3, 4}), members({2, 3, 5})}) {
    const Crew crew = groups->crew_of(0, whose);
    for (int tensor = 0; tensor < 20; ++tensor) {
      const Key key = key_number(tensor);
      for (std::uint32_t part = 0; part < 100; ++part) {
        const ShardIndex way = way_of(route, key, whose, part);
        ASSERT_LT(way.value, machine.size());
        ASSERT_EQ(machine[way.value], leader_of(crew, key, part, 2));
      }
    }
  }
}

TEST(Route, all_workers_of_a_machine_take_a_part_to_the_same_relay) {
  const auto groups = groups_of({1, 2, 1, 1, 2, 0});
  const Route one(placement_of_weights({1, 1}), groups, WorkerRank(0));
  const Route other(placement_of_weights({1, 1}), groups, WorkerRank(3));
  for (std::uint32_t part = 0; part < 100; ++part) {
    EXPECT_EQ(way_of(one, key_number(1), {}, part), way_of(other, key_number(1), {}, part));
  }
}

TEST(Route, relays_of_a_machine_have_the_same_number_of_parts_within_one) {
  for (const std::uint32_t shard_count : {1U, 2U, 3U, 4U, 6U}) {
    const Route route(placement_of_weights(std::vector<std::uint32_t>(shard_count, 1)),
                      groups_of({1, 1, 1, 1}), WorkerRank(0));
    for (int tensor = 0; tensor < 20; ++tensor) {
      std::vector<int> parts_of_way(4);
      for (std::uint32_t part = 0; part < 100; ++part) {
        ++parts_of_way[way_of(route, key_number(tensor), {}, part).value];
        const auto [least, most] = std::minmax_element(parts_of_way.begin(), parts_of_way.end());
        ASSERT_LE(*most - *least, 1) << "after part " << part << ", " << shard_count << " shards";
      }
    }
  }
}

TEST(Route, workers_that_disagree_about_the_members_meet_at_one_relay_all_the_same) {
  const Route route(placement_of_weights({1, 1}), groups_of({1, 2, 1, 1}), WorkerRank(0));
  int elsewhere = 0;
  for (int tensor = 0; tensor < 50; ++tensor) {
    const Key key = key_number(tensor);
    const ShardIndex there = way_of(route, key, {}, 0);
    for (const Members& whose : {members({0, 1}), members({0, 2}), members({0, 2, 3})}) {
      const auto meeting = Route::OfTensor(route, key, whose).meeting();
      const ShardIndex first = way_of(route, key, whose, 0);
      EXPECT_EQ(meeting.value_or(first), there);
      EXPECT_NE(meeting, first) << "a way that its first part goes is no further one";
      elsewhere += meeting ? 1 : 0;
    }
    EXPECT_FALSE(Route::OfTensor(route, key, {}).meeting()) << "all take part";
    EXPECT_FALSE(Route::OfTensor(route, key, members({0, 2, 3})).meeting()) << "all here do";
  }
  EXPECT_GT(elsewhere, 10);
}

}  // namespace
}  // namespace byteps
