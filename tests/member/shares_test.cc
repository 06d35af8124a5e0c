#include "member/shares.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace byteps {
namespace {

// Time of the slowest card with these shares, for one unit of bytes and cards of rate 1.
double slowest(const std::vector<MachineLoad>& machines, const std::vector<std::int64_t>& shares,
               double fastest_mbps = 0) {
  double workers = 0;
  for (const MachineLoad& machine : machines) workers += machine.worker_count;
  double time = 0;
  for (std::size_t i = 0; i < machines.size(); ++i) {
    const double x = static_cast<double>(shares[i]) / static_cast<double>(kShareUnit);
    const double own = machines[i].worker_count;
    const double rate = fastest_mbps == 0 ? 1 : machines[i].rate_mbps / fastest_mbps;
    time = std::max(time, (own * (1 - x) + (workers - own) * x) / rate);
  }
  return time;
}

double part_of_unit(std::int64_t share) {
  return static_cast<double>(share) / static_cast<double>(kShareUnit);
}

TEST(Shares, are_the_papers_for_one_worker_and_server_a_machine_and_k_more_machines) {
  for (int n = 2; n <= 16; ++n) {
    for (int k = 0; k <= n; ++k) {
      std::vector<MachineLoad> machines(n, {.worker_count = 1, .server_count = 1});
      machines.resize(n + k, {.worker_count = 0, .server_count = 1});
      const std::vector<std::int64_t> shares = shares_of(machines);
      const double denominator = n * n + k * n - 2 * k;
      for (int i = 0; i < n + k; ++i) {
        const double expected = (i < n ? n - k : 2 * (n - 1)) / denominator;
        ASSERT_NEAR(part_of_unit(shares[i]), expected, 0.002) << n << " workers, " << k << " more";
      }
      ASSERT_NEAR(slowest(machines, shares), 2.0 * n * (n - 1) / denominator, 0.002);
    }
  }
}

TEST(Shares, more_machines_than_workers_leave_nothing_to_the_workers_machines) {
  std::vector<MachineLoad> machines(2, {.worker_count = 1, .server_count = 1});
  machines.resize(7, {.worker_count = 0, .server_count = 1});
  const std::vector<std::int64_t> shares = shares_of(machines);
  EXPECT_NEAR(slowest(machines, shares), 1.0, 0.002);
  for (int i = 2; i < 7; ++i) EXPECT_NEAR(part_of_unit(shares[i]), 0.2, 0.03);
}

TEST(Shares, a_slow_card_gets_less_so_that_all_finish_together) {
  std::vector<MachineLoad> machines(4, {.worker_count = 1, .server_count = 0, .rate_mbps = 1000});
  machines.resize(8, {.worker_count = 0, .server_count = 1, .rate_mbps = 1000});
  machines[7].rate_mbps = 500;
  const std::vector<std::int64_t> shares = shares_of(machines);
  for (int i = 4; i < 7; ++i) EXPECT_NEAR(part_of_unit(shares[i]), 2.0 / 7, 0.002);
  EXPECT_NEAR(part_of_unit(shares[7]), 1.0 / 7, 0.002);
  EXPECT_NEAR(slowest(machines, shares, 1000), 8.0 / 7, 0.01);
}

TEST(Shares, an_unknown_card_counts_as_the_fastest_that_is_known) {
  std::vector<MachineLoad> machines = {{.worker_count = 2, .server_count = 0, .rate_mbps = 0},
                                       {.worker_count = 0, .server_count = 1, .rate_mbps = 100},
                                       {.worker_count = 0, .server_count = 1, .rate_mbps = 0}};
  const std::vector<std::int64_t> shares = shares_of(machines);
  EXPECT_EQ(shares[1], shares[2]);
}

TEST(Shares, machines_without_servers_get_nothing) {
  const std::vector<MachineLoad> machines = {{.worker_count = 1, .server_count = 0},
                                             {.worker_count = 1, .server_count = 1},
                                             {.worker_count = 0, .server_count = 2}};
  const std::vector<std::int64_t> shares = shares_of(machines);
  EXPECT_EQ(shares[0], 0);
  EXPECT_NEAR(part_of_unit(shares[1] + shares[2]), 1, 0.001);
  EXPECT_LE(slowest(machines, shares), 1.35);
  EXPECT_EQ(shares_of({{.worker_count = 3, .server_count = 0}}), std::vector<std::int64_t>{0});
}

TEST(Shares, a_machine_with_most_of_the_workers_keeps_the_bytes_to_itself) {
  const std::vector<MachineLoad> machines = {{.worker_count = 3, .server_count = 1},
                                             {.worker_count = 1, .server_count = 1}};
  const std::vector<std::int64_t> shares = shares_of(machines);
  EXPECT_NEAR(slowest(machines, shares), 1.0, 0.01);
}

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

// Of an epoch that begins with these members.
std::vector<ShardPlace> shards_at_first(wire::Roster roster) {
  roster.slots = slots_of(roster);
  return shards_of(roster);
}

TEST(Shards, are_numbered_across_servers_first) {
  const std::vector<ShardPlace> places = shards_at_first(roster_of({2, 1, 3}));
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

TEST(Shards, of_servers_that_do_not_say_where_they_are_weigh_alike) {
  for (const ShardPlace& place : shards_at_first(roster_of({1, 1, 1, 1, 1})))
    EXPECT_EQ(place.weight, 256u);
}

TEST(Shards, of_one_machine_divide_its_share) {
  wire::Roster roster = roster_of({1, 1, 2});
  roster.members.push_back({.role = Role::kWorker, .rank = 1, .host = "v", .endpoints = {}});
  roster.members[1].machine = roster.members[2].machine = 5;  // two servers, one card
  const std::vector<ShardPlace> places = shards_at_first(roster);
  ASSERT_EQ(places.size(), 4u);
  for (const ShardPlace& place : places) EXPECT_EQ(place.weight, 256u);
}

// One worker alone, and four servers on two machines: those of the first use two cards, those of the second share one.
wire::Roster roster_of_cards(std::uint64_t second_card) {
  wire::Roster roster = roster_of({1, 1, 1, 1});
  roster.members[0].machine = 9;
  roster.members[0].card = 90;
  roster.members[0].rate_mbps = 40'000;
  for (std::uint32_t server = 0; server < 4; ++server) {
    wire::RosterMember& member = roster.members[1 + server];
    member.machine = 1 + server / 2;
    member.card = server == 1 ? second_card : 10 * member.machine;
    member.rate_mbps = 10'000;
  }
  return roster;
}

TEST(Shards, of_a_machine_with_two_cards_weigh_twice_those_of_one_with_one) {
  const std::vector<ShardPlace> places = shards_at_first(roster_of_cards(11));
  ASSERT_EQ(places.size(), 4u);
  EXPECT_NEAR(static_cast<double>(places[0].weight) / places[2].weight, 2, 0.02);
  EXPECT_EQ(places[0].weight, places[1].weight);
  EXPECT_EQ(places[2].weight, places[3].weight);
}

TEST(Shards, of_a_server_that_uses_two_cards_itself_weigh_alike) {
  wire::Roster roster = roster_of_cards(10);
  roster.members[1].more_cards = {{.number = 11, .rate_mbps = 10'000}};
  const std::vector<ShardPlace> places = shards_at_first(roster);
  EXPECT_NEAR(static_cast<double>(places[0].weight) / places[2].weight, 2, 0.02)
      << "the machine has the rates of both";
  EXPECT_EQ(places[0].weight, places[1].weight);
  roster.members[2].more_cards = roster.members[1].more_cards;
  EXPECT_EQ(shards_at_first(roster)[0].weight, places[0].weight) << "once, whoever uses them";
}

TEST(Shards, of_a_server_that_does_not_name_its_card_add_no_rate) {
  for (const std::uint64_t second_card : {std::uint64_t{10}, std::uint64_t{0}}) {
    for (const ShardPlace& place : shards_at_first(roster_of_cards(second_card))) {
      EXPECT_EQ(place.weight, 256u) << second_card;
    }
  }
}

TEST(Shards, of_a_server_whose_share_is_nothing_are_left_out) {
  wire::Roster roster;
  for (std::uint32_t i = 0; i < 2; ++i) {
    roster.members.push_back(
        {.role = Role::kWorker, .rank = i, .host = "w", .endpoints = {}, .machine = i + 1});
  }
  for (std::uint32_t i = 0; i < 4; ++i) {  // two beside the workers, two on machines of their own
    roster.members.push_back({.role = Role::kServer,
                              .rank = i,
                              .host = "s",
                              .endpoints = {{"10.0.0.1", static_cast<std::uint16_t>(9000 + i)}},
                              .machine = i + 1});
  }
  const std::vector<ShardPlace> places = shards_at_first(roster);
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0].server, ServerRank(2));
  EXPECT_EQ(places[1].server, ServerRank(3));
}

TEST(Shards, keep_their_weights_whoever_serves_them) {
  wire::Roster roster = roster_of({1, 2});
  roster.slots = {{.server = 1, .shard = 1, .weight = 300}, {.server = 1, .shard = 0, .weight = 7}};
  roster.members[1].machine = roster.members[2].machine = 5;
  roster.members[2].host = "another";
  const std::vector<ShardPlace> places = shards_of(roster);
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0].endpoint.text(), "10.0.0.1:9001");
  EXPECT_EQ(places[0].host, "another");
  EXPECT_EQ(places[0].shard_of_server, 1u);
  EXPECT_EQ(weights_of(places), (std::vector<std::uint32_t>{300, 7}));
}

// Four workers and a server on one machine, one and a server on another.
wire::Roster roster_of_uneven_machines(wire::Summing summing) {
  wire::Roster roster;
  roster.summing = summing;
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    roster.members.push_back({.role = Role::kWorker,
                              .rank = rank,
                              .host = "w",
                              .endpoints = {},
                              .machine = rank < 4 ? 1U : 2U});
  }
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    roster.members.push_back({.role = Role::kServer,
                              .rank = rank,
                              .host = "s",
                              .endpoints = {{"10.0.0.1", static_cast<std::uint16_t>(9000 + rank)}},
                              .machine = rank + 1});
  }
  return roster;
}

TEST(Shards, of_machines_that_sum_first_weigh_as_if_each_had_one_worker) {
  const std::vector<ShardPlace> relays =
      shards_at_first(roster_of_uneven_machines(wire::Summing::kRelays));
  ASSERT_EQ(relays.size(), 2u);
  EXPECT_EQ(relays[0].weight, relays[1].weight);
  const std::vector<ShardPlace> servers =
      shards_at_first(roster_of_uneven_machines(wire::Summing::kServers));
  ASSERT_EQ(servers.size(), 1u) << "otherwise the bytes stay with most of the workers";
  EXPECT_EQ(servers[0].server, ServerRank(0));
}

}  // namespace
}  // namespace byteps
