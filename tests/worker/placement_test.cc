#include "worker/placement.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace byteps {
namespace {

wire::Roster roster_of(const std::vector<std::uint32_t>& shards_of_server) {
  wire::Roster roster;
  roster.members.push_back({.role = Role::kWorker, .rank = 0, .host = "w", .endpoints = {}});
  for (std::uint32_t server = 0; server < shards_of_server.size(); ++server) {
    wire::RosterMember member{.role = Role::kServer, .rank = server, .host = "s", .endpoints = {}};
    for (std::uint32_t shard = 0; shard < shards_of_server[server]; ++shard) {
      member.endpoints.push_back(
          {"10.0.0." + std::to_string(server), static_cast<std::uint16_t>(9000 + shard)});
    }
    roster.members.push_back(member);
  }
  return roster;
}

TEST(Placement, shards_are_numbered_across_servers_first) {
  const std::vector<ShardPlace> places = shards_of(roster_of({2, 1, 3}));
  std::vector<std::pair<std::uint32_t, std::uint32_t>> order;
  for (const ShardPlace& place : places) {
    order.push_back({place.server.value, place.shard_of_server});
    EXPECT_EQ(place.endpoint.host, "10.0.0." + std::to_string(place.server.value));
    EXPECT_EQ(place.endpoint.port, 9000 + place.shard_of_server);
  }
  const std::vector<std::pair<std::uint32_t, std::uint32_t>> expected = {{0, 0}, {1, 0}, {2, 0},
                                                                         {0, 1}, {2, 1}, {2, 2}};
  EXPECT_EQ(order, expected);
}

TEST(Placement, consecutive_parts_go_to_different_servers) {
  const std::vector<ShardPlace> places = shards_of(roster_of({4, 4, 4}));
  const std::uint32_t count = static_cast<std::uint32_t>(places.size());
  for (std::uint32_t part = 0; part < 100; ++part) {
    const ShardIndex here = shard_of(count, key_of("w"), PartIndex(part));
    const ShardIndex next = shard_of(count, key_of("w"), PartIndex(part + 1));
    EXPECT_NE(places[here.value].server, places[next.value].server);
  }
}

TEST(Placement, parts_of_one_tensor_load_all_shards_alike) {
  constexpr std::uint32_t kShards = 12;
  std::vector<int> load(kShards, 0);
  for (std::uint32_t part = 0; part < 10 * kShards; ++part) {
    ++load[shard_of(kShards, key_of("embedding"), PartIndex(part)).value];
  }
  EXPECT_EQ(load, std::vector<int>(kShards, 10));
}

TEST(Placement, small_tensors_are_spread_within_ten_percent_of_even) {
  constexpr std::uint32_t kShards = 8;
  constexpr int kTensors = 40'000;
  std::vector<int> load(kShards, 0);
  for (int tensor = 0; tensor < kTensors; ++tensor) {
    const Key key = key_of("layer." + std::to_string(tensor) + ".weight");
    ++load[shard_of(kShards, key, PartIndex(0)).value];
  }
  for (const int each : load) EXPECT_NEAR(each, kTensors / kShards, kTensors / kShards / 10);
}

TEST(Placement, is_part_of_the_protocol_and_does_not_change) {
  EXPECT_EQ(shard_of(7, key_of("byteps"), PartIndex(0)).value,
            stable_mix(key_of("byteps").value) % 7);
  EXPECT_EQ(key_of("byteps").value, stable_hash("byteps"));
  EXPECT_EQ(shard_of(1, Key(0xffffffffffffffffULL), PartIndex(0xffffffff)), ShardIndex(0));
}

}  // namespace
}  // namespace byteps
