// Who sums, and what follows from it, of small rosters.
#include "member/summing.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using wire::Summing;

// Workers on these machines, by rank, each with a relay; and so many servers elsewhere.
wire::Roster roster_of(const std::vector<std::uint64_t>& machines, std::uint32_t servers = 1,
                       Summing summing = Summing::kServers) {
  wire::Roster roster;
  roster.partition_bytes = 1 << 20;
  roster.frame_bytes = 4096;
  roster.summing = summing;
  for (std::uint32_t rank = 0; rank < machines.size(); ++rank) {
    roster.members.push_back({.role = Role::kWorker,
                              .rank = rank,
                              .host = "w" + std::to_string(rank),
                              .endpoints = {},
                              .machine = machines[rank],
                              .relay_port = static_cast<std::uint16_t>(7000 + rank)});
  }
  for (std::uint32_t rank = 0; rank < servers; ++rank) {
    roster.members.push_back({.role = Role::kServer,
                              .rank = rank,
                              .host = "s",
                              .endpoints = {{"10.0.0.1", static_cast<std::uint16_t>(9000 + rank)}},
                              .machine = 100 + rank});
  }
  roster.slots = slots_of(roster);
  return roster;
}

Summing summing(const std::vector<std::uint64_t>& machines, bool needs_servers = false) {
  return summing_of(roster_of(machines), true, needs_servers);
}

TEST(Summing, is_the_relays_where_a_machine_has_several_workers) {
  EXPECT_EQ(summing({1, 1, 2, 2}), Summing::kRelays);
  EXPECT_EQ(summing({1, 2, 3, 2}), Summing::kRelays);
  EXPECT_EQ(summing({1, 2, 3}), Summing::kServers);
  EXPECT_EQ(summing({1}), Summing::kServers) << "one rank has nobody to sum with";
}

TEST(Summing, is_alone_on_one_machine_unless_servers_are_asked_for) {
  EXPECT_EQ(summing({1, 1, 1}), Summing::kAlone);
  EXPECT_EQ(summing({1, 1, 1}, true), Summing::kRelays);
  EXPECT_EQ(summing({1, 1, 2}, true), Summing::kRelays);
  EXPECT_EQ(summing_of(roster_of({1, 1}, 0), true, false), Summing::kAlone);
}

TEST(Summing, machine_0_is_nobodys_but_the_workers_own) {
  EXPECT_EQ(summing({0, 0, 0}), Summing::kServers);
  EXPECT_EQ(summing({0, 1, 1}), Summing::kRelays) << "there is more than one machine";
}

TEST(Summing, is_the_servers_where_rank_0_says_so_or_a_worker_has_no_relay) {
  EXPECT_EQ(summing_of(roster_of({1, 1, 2}), false, false), Summing::kServers);
  EXPECT_EQ(summing_of(roster_of({1, 1}), false, false), Summing::kServers);
  wire::Roster roster = roster_of({1, 1, 2});
  roster.members[2].relay_port = 0;  // that nobody else is on its machine makes no difference
  EXPECT_EQ(summing_of(roster, true, false), Summing::kServers);
}

TEST(Summing, is_the_servers_where_a_relay_could_not_say_who_of_its_crew_is_lost) {
  std::vector<std::uint64_t> machines(wire::kLostPlacesMax, 1);
  machines.push_back(2);
  wire::Roster roster = roster_of(machines);
  roster.continues = true;
  EXPECT_EQ(summing_of(roster, true, false), Summing::kRelays);
  machines.push_back(1);
  roster = roster_of(machines);
  EXPECT_EQ(summing_of(roster, true, false), Summing::kRelays);
  roster.continues = true;
  EXPECT_EQ(summing_of(roster, true, false), Summing::kServers);
  roster = roster_of(std::vector<std::uint64_t>(wire::kLostPlacesMax + 1, 1));
  roster.continues = true;
  EXPECT_EQ(summing_of(roster, true, false), Summing::kAlone) << "relays say it to nobody";
}

TEST(PartitionBytes, are_divided_among_the_leaders_of_the_largest_machine) {
  const wire::Roster roster = roster_of({1, 1, 1, 2, 2}, 1, Summing::kRelays);
  EXPECT_EQ(partition_bytes_of(roster, 3 << 20, 4096), 1U << 20);
  const std::uint64_t third = (1 << 20) / 3;
  ASSERT_NE(third % 64, 0U);
  EXPECT_EQ(partition_bytes_of(roster, 1 << 20, 4096), third / 64 * 64) << "whole elements";
}

TEST(PartitionBytes, leave_eight_frames_to_a_part_but_no_more_than_there_were) {
  const wire::Roster roster = roster_of({1, 1, 1, 1}, 1, Summing::kRelays);
  EXPECT_EQ(partition_bytes_of(roster, 64 << 10, 4096), 32U << 10);
  EXPECT_EQ(partition_bytes_of(roster, 16 << 10, 4096), 16U << 10);
}

TEST(PartitionBytes, stay_as_they_are_where_relays_take_nothing_to_servers) {
  for (const Summing which : {Summing::kServers, Summing::kAlone}) {
    EXPECT_EQ(partition_bytes_of(roster_of({1, 1}, 1, which), 1 << 20, 4096), 1U << 20);
  }
}

TEST(GroupsOfRoster, are_the_machines_only_where_workers_sum_there) {
  for (const Summing which : {Summing::kRelays, Summing::kAlone}) {
    const Groups groups = groups_of(roster_of({5, 6, 5, 0}, 2, which));
    EXPECT_EQ(groups.worker_count(), 4U) << "servers are none of them";
    EXPECT_EQ(groups.count(), 3U);
    EXPECT_EQ(groups.group_of(WorkerRank(0)), groups.group_of(WorkerRank(2)));
  }
  EXPECT_EQ(groups_of(roster_of({5, 6, 5, 0})).count(), 4U);
}

TEST(PlacementOfRoster, is_that_of_the_servers_shards_and_alone_as_if_each_worker_had_one) {
  for (const Summing which : {Summing::kServers, Summing::kRelays}) {
    const wire::Roster roster = roster_of({1, 1, 1}, 2, which);
    EXPECT_EQ(shard_weights_of(roster), weights_of(shards_of(roster)));
    EXPECT_EQ(placement_of(roster).shard_count(), 2U);
  }
  EXPECT_THAT(shard_weights_of(roster_of({1, 2}, 0)), IsEmpty());
  const wire::Roster alone = roster_of({1, 1, 1}, 2, Summing::kAlone);
  EXPECT_THAT(shard_weights_of(alone), ElementsAre(1, 1, 1));
  const Placement placement = placement_of(alone);
  EXPECT_EQ(placement.shard_count(), 3U);
  EXPECT_EQ(placement.frame_bytes(), 4096U);
  EXPECT_EQ(placement.part_count(3 << 20), 3U);
}

TEST(RelaysOfRoster, are_those_of_ones_own_machine_by_rank_at_loopback) {
  const wire::Roster roster = roster_of({1, 2, 1, 0}, 1, Summing::kRelays);
  const std::vector<ShardPlace> places = relays_of(roster, groups_of(roster), WorkerRank(2));
  ASSERT_EQ(places.size(), 2U);
  EXPECT_EQ(places[0].relay, WorkerRank(0));
  EXPECT_EQ(places[0].endpoint.text(), "127.0.0.1:7000");
  EXPECT_EQ(places[0].host, "w0");
  EXPECT_EQ(places[0].weight, 1U);
  EXPECT_EQ(places[1].relay, WorkerRank(2)) << "its own is one of them";
  EXPECT_EQ(places[1].endpoint.text(), "127.0.0.1:7002");
  EXPECT_EQ(relays_of(roster, groups_of(roster), WorkerRank(3)).size(), 1U);
}

// ---- where relays are when their workers are lost

TEST(PlaceOfRelay, is_beside_its_worker_as_long_as_that_lives) {
  const wire::Roster roster = roster_of({1, 1, 1}, 1, Summing::kAlone);
  const auto place = relay_place_of(roster, groups_of(roster), WorkerRank(1));
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->host, WorkerRank(1));
  EXPECT_EQ(place->since, 0U);
  EXPECT_TRUE(stand_ins_of(roster, groups_of(roster)).empty());
}

TEST(PlaceOfRelay, is_in_the_process_of_the_next_worker_of_the_machine_that_is_not_lost) {
  wire::Roster roster = roster_of({1, 2, 1, 1}, 1, Summing::kAlone);
  roster.members[2].vacant_since = 4;
  const Groups groups = groups_of(roster);
  EXPECT_EQ(relay_place_of(roster, groups, WorkerRank(2))->host, WorkerRank(3));
  EXPECT_EQ(relay_place_of(roster, groups, WorkerRank(2))->since, 4U);
  roster.members[3].vacant_since = 7;
  for (const WorkerRank lost : {WorkerRank(2), WorkerRank(3)}) {
    EXPECT_EQ(relay_place_of(roster, groups, lost)->host, WorkerRank(0)) << "ranks go round";
    EXPECT_EQ(relay_place_of(roster, groups, lost)->since, 7U)
        << "it came there when the last one before was lost";
  }
  EXPECT_EQ(relay_place_of(roster, groups, WorkerRank(0))->since, 0U);
  const StandIns expected = {{WorkerRank(2), 7}, {WorkerRank(3), 7}};
  EXPECT_EQ(stand_ins_of(roster, groups), expected);
}

TEST(PlaceOfRelay, is_not_in_the_process_of_one_that_has_left_but_its_own) {
  wire::Roster roster = roster_of({1, 1, 1}, 1, Summing::kAlone);
  roster.members[0].vacant_since = 2;
  roster.members[1].serves_none_since = 5;
  const Groups groups = groups_of(roster);
  EXPECT_EQ(relay_place_of(roster, groups, WorkerRank(0))->host, WorkerRank(2));
  EXPECT_EQ(relay_place_of(roster, groups, WorkerRank(0))->since, 5U);
  EXPECT_EQ(relay_place_of(roster, groups, WorkerRank(1))->host, WorkerRank(1))
      << "what it leads ends with its name";
  EXPECT_EQ(relay_place_of(roster, groups, WorkerRank(1))->since, 0U);
}

TEST(PlaceOfRelay, is_nowhere_when_all_of_its_machine_are_lost) {
  wire::Roster roster = roster_of({1, 2, 1}, 1, Summing::kAlone);
  roster.members[1].vacant_since = 2;
  EXPECT_FALSE(relay_place_of(roster, groups_of(roster), WorkerRank(1)).has_value());
  EXPECT_TRUE(relay_place_of(roster, groups_of(roster), WorkerRank(0)).has_value());
}

TEST(PlaceOfRelay, is_where_the_others_of_the_machine_look_for_it) {
  wire::Roster roster = roster_of({1, 1, 1}, 1, Summing::kAlone);
  roster.members[1].vacant_since = 3;
  const std::vector<ShardPlace> places = relays_of(roster, groups_of(roster), WorkerRank(0));
  ASSERT_EQ(places.size(), 3U);
  EXPECT_EQ(places[1].relay, WorkerRank(1)) << "who leads which part does not change";
  EXPECT_EQ(places[1].relay_host, WorkerRank(2));
  EXPECT_EQ(places[1].endpoint, places[2].endpoint);
  EXPECT_EQ(places[1].since, 3U);
  EXPECT_EQ(places[2].since, 0U);
}

}  // namespace
}  // namespace byteps
