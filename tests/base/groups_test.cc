#include "base/groups.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/placement.h"

namespace byteps {
namespace {

Crew crew_of(std::initializer_list<std::uint32_t> ranks) {
  Crew crew;
  for (const std::uint32_t rank : ranks) crew.push_back(WorkerRank(rank));
  return crew;
}

Crew crew_of_size(std::uint32_t size) {
  Crew crew;
  for (std::uint32_t i = 0; i < size; ++i) crew.push_back(WorkerRank(3 * i + 5));
  return crew;
}

TEST(Groups, are_the_workers_of_a_machine_numbered_by_their_lowest_ranks) {
  const Groups groups(std::vector<std::uint64_t>{70, 9, 70, 5, 9});
  ASSERT_EQ(groups.count(), 3u);
  EXPECT_EQ(groups.worker_count(), 5u);
  EXPECT_EQ(groups.most_ranks(), 2u);
  EXPECT_EQ(groups.crew_of(0, {}), crew_of({0, 2}));
  EXPECT_EQ(groups.crew_of(1, {}), crew_of({1, 4}));
  EXPECT_EQ(groups.crew_of(2, {}), crew_of({3}));
  EXPECT_EQ(groups.group_of(WorkerRank(4)), 1u);
}

TEST(Groups, who_does_not_say_where_it_is_is_alone) {
  const Groups groups(std::vector<std::uint64_t>{0, 8, 0, 8});
  ASSERT_EQ(groups.count(), 3u);
  EXPECT_EQ(groups.crew_of(0, {}), crew_of({0}));
  EXPECT_EQ(groups.crew_of(1, {}), crew_of({1, 3}));
  EXPECT_EQ(groups.crew_of(2, {}), crew_of({2}));
  EXPECT_EQ(Groups::apart(3).count(), 3u);
  EXPECT_EQ(Groups::apart(3).most_ranks(), 1u);
  EXPECT_EQ(Groups().most_ranks(), 0u);
}

TEST(Groups, crews_are_those_of_the_members_and_none_is_empty) {
  const Groups groups(std::vector<std::uint64_t>{1, 1, 2, 2, 3, 3});
  const std::vector<std::uint32_t> some = {1, 2, 3};
  const std::vector<Crew> crews = groups.crews_of(Members(some));
  ASSERT_EQ(crews.size(), 2u);
  EXPECT_EQ(crews[0], crew_of({1}));
  EXPECT_EQ(crews[1], crew_of({2, 3}));
  EXPECT_TRUE(groups.crew_of(2, Members(some)).empty());
}

TEST(Groups, the_headroom_is_the_power_of_two_that_is_no_less_than_the_largest_crew) {
  const std::vector<int> expected = {0, 1, 2, 2, 3, 3, 3, 3, 4};
  for (std::uint32_t size = 1; size <= 9; ++size) {
    EXPECT_EQ(headroom_of({crew_of_size(1), crew_of_size(size)}), expected[size - 1]) << size;
  }
  EXPECT_EQ(headroom_of({}), 0);
}

TEST(LeaderOf, who_is_alone_leads_all) {
  for (std::uint64_t part = 0; part < 100; ++part) {
    EXPECT_EQ(leader_of(crew_of({7}), Key(part), part, 3), WorkerRank(7));
  }
}

TEST(LeaderOf, of_any_number_of_parts_all_lead_as_many_but_for_one) {
  for (std::uint32_t size = 1; size <= 9; ++size) {
    const Crew crew = crew_of_size(size);
    for (std::uint32_t shard_count = 1; shard_count <= 12; ++shard_count) {
      const Key key = key_of("tensor " + std::to_string(size * 100 + shard_count));
      std::map<WorkerRank, std::uint64_t> led;
      for (const WorkerRank rank : crew) led[rank] = 0;
      for (std::uint64_t part = 0; part < 300; ++part) {
        const WorkerRank leader = leader_of(crew, key, part, shard_count);
        ASSERT_TRUE(led.contains(leader));
        ++led[leader];
        const auto [least, most] =
            std::minmax_element(led.begin(), led.end(),
                                [](const auto& a, const auto& b) { return a.second < b.second; });
        ASSERT_LE(most->second - least->second, 1u)
            << size << " leaders, " << shard_count << " shards, " << part + 1 << " parts";
      }
    }
  }
}

TEST(LeaderOf, each_leader_meets_each_shard_in_a_long_tensor) {
  for (std::uint32_t size = 1; size <= 8; ++size) {
    for (std::uint32_t shard_count = 1; shard_count <= 8; ++shard_count) {
      std::map<std::pair<WorkerRank, std::uint32_t>, std::uint64_t> met;
      const std::uint64_t parts = std::uint64_t{size} * size * shard_count * shard_count;
      for (std::uint64_t part = 0; part < parts; ++part) {
        const std::uint32_t shard = static_cast<std::uint32_t>(part % shard_count);
        ++met[{leader_of(crew_of_size(size), key_of("t"), part, shard_count), shard}];
      }
      ASSERT_EQ(met.size(), std::size_t{size} * shard_count);
      for (const auto& [pair, count] : met) {
        EXPECT_EQ(count, parts / (std::uint64_t{size} * shard_count))
            << size << " leaders, " << shard_count << " shards";
      }
    }
  }
}

TEST(LeaderOf, tensors_of_one_part_take_turns_and_their_shards_do_not_say_whose_it_is) {
  constexpr std::uint32_t kSize = 4;
  constexpr std::uint32_t kShards = 4;
  constexpr int kTensors = 16000;
  const Placement placement(4 << 20, 60 << 10, std::vector<std::uint32_t>(kShards, 1));
  std::map<std::pair<WorkerRank, std::uint32_t>, int> met;
  for (int i = 0; i < kTensors; ++i) {
    const Key key = key_of("layer." + std::to_string(i) + ".bias");
    ++met[{leader_of(crew_of_size(kSize), key, 0, kShards), placement.first_shard(key).value}];
  }
  ASSERT_EQ(met.size(), std::size_t{kSize} * kShards);
  for (const auto& [pair, count] : met) EXPECT_NEAR(count, kTensors / 16, 200);
}

TEST(LeaderOf, unequal_shards_give_leaders_equal_bytes_in_a_long_tensor) {
  const Crew crew = crew_of_size(4);
  const Placement placement(1 << 20, 60 << 10, {3, 1, 3, 1});
  const std::uint64_t bytes = std::uint64_t{256} << 20;
  std::map<WorkerRank, std::uint64_t> led;
  for (std::uint64_t part = 0; part < placement.part_count(bytes); ++part) {
    led[leader_of(crew, key_of("weight"), part, placement.shard_count())] +=
        placement.part(key_of("weight"), bytes, part).bytes;
  }
  const auto [least, most] = std::minmax_element(
      led.begin(), led.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  EXPECT_LE(most->second - least->second, 4u << 20);
}

}  // namespace
}  // namespace byteps
