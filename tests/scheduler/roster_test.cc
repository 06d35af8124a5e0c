// RosterKeeper with plain messages: each rule of docs/protocol.md, Joining, from the scheduler's side.
#include "scheduler/roster.h"

#include <algorithm>
#include <array>

#include "base/placement.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/scheduler/table.h"

namespace byteps {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Phase = RosterKeeper::Phase;
using Kind = wire::Kind;

// ---- joining ----

TEST(Roster, is_the_same_for_all_whatever_the_order_of_joining) {
  const std::array<wire::Join, 3> joins = {worker_join(0, "alpha:10"), worker_join(1, "beta:11"),
                                           server_join("gamma:12", 4000)};
  std::array<int, 3> order = {0, 1, 2};
  do {
    Table table;
    std::array<PeerId, 3> peers;
    for (const int who : order) peers[who] = table.join(joins[who]);
    EXPECT_EQ(table.keeper().phase(), Phase::kConfirming);
    table.heartbeat(peers[2], 1);
    EXPECT_EQ(table.keeper().phase(), Phase::kRunning);
    for (int who = 0; who < 3; ++who) {
      const wire::Roster roster = table.roster_to(peers[who]);
      EXPECT_EQ(roster.epoch, Epoch(1));
      EXPECT_EQ(roster.your_rank, who < 2 ? static_cast<std::uint32_t>(who) : 0U);
      ASSERT_EQ(roster.members.size(), 3U);
      EXPECT_EQ(roster.members[1].host, "beta:11");
      EXPECT_EQ(roster.members[2].endpoints[0].port, 4000);
      EXPECT_THAT(roster.slots, ElementsAre(wire::Slot{.server = 0, .shard = 0, .weight = 256}));
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Roster, reaches_workers_only_when_every_server_works_in_the_new_epoch) {
  Table table(small_job(1, 2));
  const PeerId worker = table.join(worker_join(0, "alpha:10", 1, 2));
  const PeerId first = table.join(server_join("gamma:12", 4000));
  const PeerId second = table.join(server_join("delta:13", 4000 + 1));
  EXPECT_EQ(table.roster_to(first).epoch, Epoch(1));
  EXPECT_EQ(table.roster_to(second).epoch, Epoch(1));
  table.heartbeat(first, 1);
  table.heartbeat(second, 0);  // still busy
  EXPECT_TRUE(table.sent(worker, Kind::kRoster).empty());
  table.heartbeat(second, 1);
  EXPECT_EQ(table.roster_to(worker).epoch, Epoch(1));
}

TEST(Roster, goes_on_with_who_joined_before_the_first_look_at_the_clock) {
  Table table(small_job(1, 1), /*has_ticked=*/false);
  const PeerId worker = table.join(worker_join(0, "alpha:1", 1));
  const PeerId server = table.join(server_join("beta:2", 9001));
  table.tick();
  table.heartbeat(server, 1);
  EXPECT_EQ(table.roster_to(worker).members.size(), 2U);
}

TEST(Roster, gives_servers_the_rank_they_wish_and_the_others_the_gaps_in_order_of_arrival) {
  Table table(small_job(1, 3));
  const PeerId any = table.join(server_join("a:1", 4001));
  const PeerId wants_zero = table.join(server_join("b:2", 4002, 0));
  const PeerId wants_zero_too = table.join(server_join("c:3", 4003, 0));
  table.join(worker_join(0, "alpha:10", 1, 3));
  EXPECT_EQ(table.roster_to(wants_zero).your_rank, 0U);
  EXPECT_EQ(table.roster_to(any).your_rank, 1U);
  EXPECT_EQ(table.roster_to(wants_zero_too).your_rank, 2U);
}

TEST(Roster, carries_the_partition_and_frame_size_of_rank_0) {
  Table table;
  wire::Join zero = worker_join(0, "alpha:10");
  zero.partition_bytes = 6400;
  zero.frame_bytes = 640;
  table.join(worker_join(1, "beta:11"));
  table.join(zero);
  const PeerId server = table.join(server_join("gamma:12", 4000));
  EXPECT_EQ(table.roster_to(server).partition_bytes, 6400U);
  EXPECT_EQ(table.roster_to(server).frame_bytes, 640U);
}

// Of a device at this bus.
topology::Place place_at(std::uint8_t bus) {
  topology::Place place;
  place.device = {{{.domain = 0, .bus = bus, .slot = 0}, 126'030}};
  return place;
}

TEST(Roster, hands_the_places_of_workers_to_all) {
  Table table(small_job(3, 1));
  std::vector<PeerId> peers;
  for (const std::uint32_t rank : {2U, 0U, 1U}) {  // in whatever order they come
    wire::Join join = worker_join(rank, "alpha:" + std::to_string(rank), 3, 1);
    if (rank != 1) join.place = place_at(7);
    peers.push_back(table.join(join));
  }
  wire::Join strange = server_join("gamma:12", 4000);
  strange.place = place_at(8);  // of servers none is handed out
  peers.push_back(table.join(strange));
  table.heartbeat(peers.back(), 1);
  for (const PeerId peer : peers) {
    const wire::Roster roster = table.roster_to(peer);
    EXPECT_THAT(roster.places, ElementsAre(place_at(7)));
    ASSERT_EQ(roster.members.size(), 4U);
    EXPECT_EQ(roster.members[0].place, 1U);
    EXPECT_EQ(roster.members[1].place, 0U);
    EXPECT_EQ(roster.members[2].place, 1U);
    EXPECT_EQ(roster.members[3].place, 0U);
  }
}

TEST(Roster, finds_the_frame_size_by_the_number_of_shards_when_rank_0_does_not_say_it) {
  for (const std::uint32_t shard_count : {1, 9}) {
    Table table;
    wire::Join zero = worker_join(0, "alpha:10");
    zero.frame_bytes = 0;
    table.join(zero);
    table.join(worker_join(1, "beta:11"));
    wire::Join server = server_join("gamma:12", 4000);
    server.endpoints.clear();
    for (std::uint32_t i = 0; i < shard_count; ++i) {
      server.endpoints.push_back({"10.0.0.1", static_cast<std::uint16_t>(4000 + i)});
    }
    const PeerId peer = table.join(server);
    EXPECT_EQ(table.roster_to(peer).frame_bytes,
              Placement::usual_frame_bytes(std::vector<std::uint32_t>(shard_count, 1)));
  }
}

TEST(Roster, has_short_frames_where_all_cards_of_workers_or_of_servers_are_slow) {
  const auto frame_bytes = [](std::uint32_t one, std::uint32_t other, std::uint32_t servers) {
    Table table;
    for (const std::uint32_t rank : {0U, 1U}) {
      wire::Join join = worker_join(rank, "alpha:" + std::to_string(10 + rank));
      join.frame_bytes = 0;
      join.rate_mbps = rank == 0 ? one : other;
      table.join(join);
    }
    wire::Join server = server_join("gamma:12", 4000);
    server.rate_mbps = servers;
    return table.roster_to(table.join(server)).frame_bytes;
  };
  EXPECT_EQ(frame_bytes(0, 0, 0), 60U << 10);
  EXPECT_EQ(frame_bytes(100, 100, 0), 15U << 10);
  EXPECT_EQ(frame_bytes(100, 100, 10000), 15U << 10);
  EXPECT_EQ(frame_bytes(10000, 10000, 100), 15U << 10);
  EXPECT_EQ(frame_bytes(100, 10000, 10000), 60U << 10) << "one among fast ones";
  EXPECT_EQ(frame_bytes(100, 0, 10000), 60U << 10) << "one among unknown ones";
  EXPECT_EQ(frame_bytes(100, 0, 100), 15U << 10) << "all of servers";
}

TEST(Roster, believes_workers_rather_than_its_own_settings_about_the_size_of_the_job) {
  Table table(small_job(7, 7));
  table.join(worker_join(0, "alpha:10", 1, 1));
  table.join(server_join("gamma:12", 4000));
  EXPECT_EQ(table.keeper().phase(), Phase::kConfirming);
}

TEST(Roster, uses_its_own_settings_when_workers_do_not_say_how_large_the_job_is) {
  Table table(small_job(2, 1));
  table.join(worker_join(0, "alpha:10", 0, 0));
  table.join(server_join("gamma:12", 4000));
  EXPECT_EQ(table.keeper().phase(), Phase::kGathering);
  table.join(worker_join(1, "beta:11", 0, 0));
  EXPECT_EQ(table.keeper().phase(), Phase::kConfirming);
}

TEST(Roster, keeps_a_server_too_many_as_a_spare_outside_the_roster) {
  Table table;
  const PeerId first = table.join(server_join("a:1", 4001));
  const PeerId spare = table.join(server_join("b:2", 4002));
  table.join(worker_join(0, "alpha:10"));
  table.join(worker_join(1, "beta:11"));
  EXPECT_EQ(table.roster_to(first).members.size(), 3U);
  EXPECT_TRUE(table.sent(spare, Kind::kRoster).empty());
  EXPECT_FALSE(table.closed(spare));
}

// ---- what cannot be let in ----

TEST(Roster, refuses_a_second_process_with_the_same_rank_naming_both_hosts) {
  Table table;
  const PeerId first = table.join(worker_join(1, "alpha:10"));
  const PeerId second = table.join(worker_join(1, "beta:11"));
  EXPECT_THAT(table.text_to(second, Kind::kFail),
              AllOf(HasSubstr("worker 1"), HasSubstr("alpha:10"), HasSubstr("beta:11"),
                    HasSubstr("DMLC_WORKER_ID")));
  EXPECT_TRUE(table.sent(first, Kind::kFail).empty());
  table.pass(3 * kSecond, {first});
  EXPECT_TRUE(table.closed(second)) << "it was given time to read why";
  EXPECT_FALSE(table.closed(first));
}

TEST(Roster, refuses_a_duplicate_rank_also_while_the_job_runs_and_runs_on) {
  RunningJob job;
  const PeerId stranger = job.table.join(worker_join(1, "epsilon:77"));
  EXPECT_THAT(job.table.text_to(stranger, Kind::kFail), HasSubstr("beta:11"));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
}

TEST(Roster,
     lets_a_restarted_worker_take_the_rank_of_one_whose_connection_is_gone_before_the_start) {
  Table table;
  const PeerId crashed = table.join(worker_join(1, "beta:11"));
  table.down(crashed);
  const PeerId again = table.join(worker_join(1, "beta:99"));
  table.join(worker_join(0, "alpha:10"));
  const PeerId server = table.join(server_join("gamma:12", 4000));
  table.heartbeat(server, 1);
  EXPECT_EQ(table.roster_to(again).members[1].host, "beta:99");
}

TEST(Roster, ends_the_job_when_workers_disagree_about_its_size_naming_both_values_and_hosts) {
  for (const bool about_workers : {true, false}) {
    Table table;
    const PeerId server = table.join(server_join("gamma:12", 4000));
    const PeerId first = table.join(worker_join(0, "alpha:10", 2, 2));
    const PeerId second = table.join(about_workers ? worker_join(1, "beta:11", 3, 2)
                                                   : worker_join(1, "beta:11", 2, 3));
    for (const PeerId peer : {server, first, second}) {
      EXPECT_EQ(table.code_to(peer), Code::kMismatch);
      EXPECT_THAT(
          table.text_to(peer, Kind::kFail),
          AllOf(HasSubstr("worker 0 (alpha:10) says 2"), HasSubstr("worker 1 (beta:11) says 3"),
                HasSubstr(about_workers ? "DMLC_NUM_WORKER" : "DMLC_NUM_SERVER")));
    }
    EXPECT_TRUE(table.keeper().outcome().is(Code::kMismatch));
    EXPECT_TRUE(table.keeper().outcome().is_because_of(CauseKind::kSizesDiffer));
  }
}

TEST(Roster, refuses_joins_that_cannot_be_meant) {
  wire::Join frame = worker_join(0, "alpha:10");
  frame.frame_bytes = 100;
  wire::Join huge = worker_join(0, "alpha:10");
  huge.worker_count = 1'000'000;
  wire::Join no_address = server_join("gamma:12", 4000);
  no_address.endpoints[0].host.clear();
  wire::Join no_endpoints = server_join("gamma:12", 4000);
  no_endpoints.endpoints.clear();
  const std::vector<std::pair<wire::Join, std::string>> cases = {
      {worker_join(2, "alpha:10"), "ranks are 0 to 1"},
      {worker_join(kNoRank, "alpha:10"), "DMLC_WORKER_ID"},
      {frame, "multiples of 64"},
      {huge, "at most"},
      {no_address, "address"},
      {no_endpoints, "address"},
  };
  for (const auto& [join, text] : cases) {
    Table table;
    const PeerId peer = table.join(join);
    EXPECT_EQ(table.code_to(peer), Code::kInvalidArgument);
    EXPECT_THAT(table.text_to(peer, Kind::kFail), HasSubstr(text));
    EXPECT_EQ(table.cause_to(peer).kind, CauseKind::kTurnedAway);
    EXPECT_EQ(table.cause_to(peer).who.host, join.host);
    EXPECT_EQ(table.keeper().phase(), Phase::kGathering);
  }
}

TEST(Roster, refuses_two_servers_at_the_same_address) {
  Table table(small_job(2, 2));
  table.join(server_join("gamma:12", 4000));
  const PeerId second = table.join(server_join("delta:13", 4000));
  EXPECT_THAT(table.text_to(second, Kind::kFail),
              AllOf(HasSubstr("10.0.0.2:4000"), HasSubstr("gamma:12")));
}

TEST(Roster, refuses_a_member_of_a_job_that_another_scheduler_began) {
  Table table;
  const PeerId peer = table.join(worker_join(0, "alpha:10"), Epoch(3));
  EXPECT_EQ(table.code_to(peer), Code::kDisconnected);
  EXPECT_THAT(table.text_to(peer, Kind::kFail), HasSubstr("epoch 3"));
}

TEST(Roster, refuses_a_member_of_another_incarnation_also_of_the_same_epoch_host_and_rank) {
  Config config = small_job();
  config.job.incarnation = {std::byte{1}};
  const Incarnation other = {std::byte{2}};
  RunningJob job(config);
  const wire::Join worker = worker_join(0, "alpha:10");
  const wire::Join server = server_join("gamma:12", 4000);
  for (const PeerId stranger :
       {job.table.join(worker, Epoch(1), other), job.table.join(worker, Epoch(0), other),
        job.table.join(server, Epoch(1), other), job.table.join(server, Epoch(0), other)}) {
    EXPECT_EQ(job.table.code_to(stranger), Code::kDisconnected);
    EXPECT_THAT(job.table.text_to(stranger, Kind::kFail),
                HasSubstr("the scheduler was started anew"));
    EXPECT_THAT(job.table.sent(stranger, Kind::kRoster), testing::SizeIs(0));
  }
  EXPECT_FALSE(job.table.closed(job.worker0) || job.table.closed(job.server));
  EXPECT_EQ(job.table.keeper().phase(), RosterKeeper::Phase::kRunning);
  // The same member of this one is known.
  const PeerId back = job.table.join(worker, Epoch(1), config.job.incarnation);
  EXPECT_THAT(job.table.sent(back, Kind::kRoster), testing::SizeIs(1));
  EXPECT_TRUE(job.table.closed(job.worker0)) << "replaced by its newer connection";
}

TEST(Roster, says_so_when_nobody_knows_of_any_server) {
  Table table(small_job(1, 0));
  const PeerId worker = table.join(worker_join(0, "alpha:10", 1, 0));
  EXPECT_THAT(table.text_to(worker, Kind::kFail), HasSubstr("DMLC_NUM_SERVER"));
}

// ---- who sums ----

// Of a worker on this machine, with a relay at 7000 + its rank.
wire::Join relay_join(std::uint32_t rank, std::uint64_t machine, std::uint32_t workers,
                      std::uint32_t servers) {
  wire::Join join = worker_join(rank, "host:" + std::to_string(rank), workers, servers);
  join.machine = machine;
  join.relay_port = static_cast<std::uint16_t>(7000 + rank);
  join.local_reduce = true;
  return join;
}

TEST(Summing, a_job_of_one_machine_runs_without_servers_and_ends_with_its_workers) {
  Table table(small_job(2, 0));
  const PeerId one = table.join(relay_join(0, 5, 2, 0));
  EXPECT_TRUE(table.sent(one, Kind::kRoster).empty());
  const PeerId two = table.join(relay_join(1, 5, 2, 0));
  EXPECT_EQ(table.keeper().phase(), Phase::kRunning) << "there is no server to wait for";
  for (const PeerId worker : {one, two}) {
    const wire::Roster roster = table.roster_to(worker);
    EXPECT_EQ(roster.summing, wire::Summing::kAlone);
    ASSERT_EQ(roster.members.size(), 2U);
    EXPECT_GT(roster.frame_bytes, 0U);
  }
  EXPECT_TRUE(table.notices(LogLevel::kWarning).empty());
  table.barrier(one, 0);
  table.barrier(two, 0);
  EXPECT_EQ(table.sent(one, Kind::kBarrierDone).size(), 1U);
  table.leave(one, 0, true);
  table.leave(two, 1, true);
  table.down(one);
  table.down(two);
  table.tick();
  EXPECT_TRUE(table.keeper().ended());
  EXPECT_TRUE(table.keeper().outcome().is_ok());
}

TEST(Summing, servers_that_are_not_used_are_one_line_and_work_in_the_epoch_all_the_same) {
  for (const std::uint32_t count : {1U, 2U}) {
    Table table(small_job(2, count));
    const PeerId one = table.join(relay_join(0, 5, 2, count));
    table.join(relay_join(1, 5, 2, count));
    std::vector<PeerId> servers;
    for (std::uint32_t i = 0; i < count; ++i) {
      servers.push_back(
          table.join(server_join("s:" + std::to_string(i), static_cast<std::uint16_t>(4000 + i))));
    }
    EXPECT_EQ(table.notices(LogLevel::kWarning),
              (std::vector<std::string>{
                  std::string(count == 1 ? "1 server is" : "2 servers are") +
                  " not used: all workers are on one machine, and sum there themselves "
                  "(BYTEPS_FORCE_DISTRIBUTED=1 uses servers all the same)"}));
    EXPECT_EQ(table.keeper().phase(), Phase::kConfirming);
    for (const PeerId server : servers) table.heartbeat(server, 1);
    EXPECT_EQ(table.roster_to(one).summing, wire::Summing::kAlone);
  }
}

TEST(Summing, who_sums_is_said_when_the_job_is_complete) {
  const auto said = [](const std::vector<std::uint64_t>& machines, std::uint32_t servers) {
    const auto workers = static_cast<std::uint32_t>(machines.size());
    Table table(small_job(workers, servers));
    for (std::uint32_t rank = 0; rank < workers; ++rank) {
      table.join(relay_join(rank, machines[rank], workers, servers));
    }
    for (std::uint32_t i = 0; i < servers; ++i) {
      table.join(server_join("s:" + std::to_string(i), static_cast<std::uint16_t>(4000 + i)));
    }
    for (const std::string& line : table.notices(LogLevel::kInfo)) {
      if (line.starts_with("complete: ")) return line;
    }
    return std::string();
  };
  EXPECT_EQ(said({5, 6}, 2), "complete: epoch 1 with 2 workers and 2 servers; who sums: 2 servers");
  EXPECT_EQ(said({5, 5, 6, 6}, 1),
            "complete: epoch 1 with 4 workers and 1 servers; who sums: relays of 2 machines with 2 "
            "workers each, then 1 server");
  EXPECT_EQ(said({5, 5, 6}, 1),
            "complete: epoch 1 with 3 workers and 1 servers; who sums: relays of 2 machines with 1 "
            "to 2 workers each, then 1 server");
  EXPECT_EQ(said({5, 5}, 0),
            "complete: epoch 1 with 2 workers and 0 servers; who sums: relays of one machine with "
            "2 workers alone");
}

TEST(Summing, is_as_rank_0_says) {
  for (const std::uint32_t who : {0U, 1U}) {
    Table table;
    std::vector<wire::Join> joins = {relay_join(0, 5, 2, 1), relay_join(1, 5, 2, 1)};
    joins[who].local_reduce = false;
    for (const wire::Join& join : joins) table.join(join);
    const PeerId server = table.join(server_join("gamma:12", 4000));
    EXPECT_EQ(table.roster_to(server).summing,
              who == 0 ? wire::Summing::kServers : wire::Summing::kAlone);
  }
  Table table;
  wire::Join zero = relay_join(0, 5, 2, 1);
  zero.needs_servers = true;
  table.join(zero);
  table.join(relay_join(1, 5, 2, 1));
  const PeerId server = table.join(server_join("gamma:12", 4000));
  EXPECT_EQ(table.roster_to(server).summing, wire::Summing::kRelays);
  EXPECT_TRUE(table.notices(LogLevel::kWarning).empty());
}

TEST(Summing, several_machines_without_servers_fail_with_what_to_set) {
  Table table(small_job(3, 0));
  table.join(relay_join(0, 5, 3, 0));
  table.join(relay_join(1, 5, 3, 0));
  const PeerId worker = table.join(relay_join(2, 6, 3, 0));
  EXPECT_EQ(table.code_to(worker), Code::kInvalidArgument);
  EXPECT_THAT(table.text_to(worker, Kind::kFail),
              AllOf(HasSubstr("not all sum on one machine (BYTEPS_LOCAL_REDUCE)"),
                    HasSubstr("set DMLC_NUM_SERVER to at least 1")));
}

TEST(Summing, one_machine_without_servers_fails_where_its_workers_do_not_sum_there) {
  Table table(small_job(2, 0));
  wire::Join zero = relay_join(0, 5, 2, 0);
  zero.local_reduce = false;
  table.join(zero);
  const PeerId worker = table.join(relay_join(1, 5, 2, 0));
  EXPECT_THAT(table.text_to(worker, Kind::kFail), HasSubstr("DMLC_NUM_SERVER"));
}

TEST(Summing, by_relays_gives_all_where_these_are_and_shorter_parts) {
  Table table(small_job(3, 1));
  wire::Join zero = relay_join(0, 5, 3, 1);
  zero.partition_bytes = 1 << 20;
  zero.frame_bytes = 4096;
  table.join(zero);
  table.join(relay_join(1, 6, 3, 1));
  table.join(relay_join(2, 5, 3, 1));
  const PeerId server = table.join(server_join("gamma:12", 4000));
  const wire::Roster roster = table.roster_to(server);
  EXPECT_EQ(roster.summing, wire::Summing::kRelays);
  ASSERT_EQ(roster.members.size(), 4U);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(roster.members[rank].relay_port, 7000 + rank);
    EXPECT_EQ(roster.members[rank].machine, rank == 1 ? 6U : 5U);
  }
  EXPECT_EQ(roster.members[3].relay_port, 0);
  EXPECT_EQ(roster.partition_bytes, 1U << 19);
  EXPECT_EQ(roster.frame_bytes, 4096U);
}

// ---- hostile bytes ----

TEST(Roster, closes_only_the_connection_that_sends_nonsense_with_one_log_line) {
  RunningJob job;
  const std::vector<std::byte> garbage(7, std::byte{0xff});
  for (const Kind kind :
       {Kind::kJoin, Kind::kBarrier, Kind::kLeave, Kind::kFail, Kind::kRoster, Kind::kPush}) {
    const PeerId peer = job.table.up(Role::kWorker);
    job.table.forget();
    job.table.say(peer, kind, garbage);
    EXPECT_TRUE(job.table.closed(peer)) << static_cast<int>(kind);
    EXPECT_EQ(job.table.notices(LogLevel::kWarning).size(), 1U);
    job.table.say(peer, kind, garbage);
    EXPECT_EQ(job.table.notices(LogLevel::kWarning).size(), 1U) << "one line, not two";
    job.table.down(peer);
  }
  for (const PeerId peer : job.all()) EXPECT_FALSE(job.table.closed(peer));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
}

TEST(Roster, closes_a_connection_whose_join_is_not_of_the_role_and_rank_it_proved) {
  Table table;
  const wire::Join worker = worker_join(1, "beta:11");
  const wire::Join server = server_join("gamma:12", 4001);
  const std::vector<std::pair<PeerId, wire::Join>> wrong = {{table.up(Role::kWorker, 0), worker},
                                                            {table.up(Role::kServer, 1), worker},
                                                            {table.up(Role::kWorker, 1), server}};
  for (const auto& [peer, join] : wrong) {
    table.say(peer, wire::Kind::kJoin, wire::encode(join));
    EXPECT_TRUE(table.closed(peer));
  }
  EXPECT_FALSE(table.closed(table.join(worker)));
}

TEST(Roster, closes_a_connection_that_never_joins_after_the_failure_timeout) {
  Table table;
  const PeerId peer = table.up(Role::kWorker);
  table.pass(2900 * kMillisecond);
  EXPECT_FALSE(table.closed(peer));
  table.pass(100 * kMillisecond);
  EXPECT_TRUE(table.closed(peer));
}

TEST(Roster, writes_no_control_characters_of_a_stranger_into_the_log) {
  Table table;
  table.join(worker_join(0, "evil\x1b[31m\n" + std::string(10'000, 'x')));
  const std::string text = table.keeper().waiting_text(table.now());
  EXPECT_THAT(text,
              AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\n")), HasSubstr("evil?[31m?xxx")));
  EXPECT_LT(text.size(), 400U);
}

TEST(Roster, closes_a_member_whose_barrier_is_out_of_turn) {
  RunningJob job;
  job.table.barrier(job.worker0, 5);
  EXPECT_TRUE(job.table.closed(job.worker0));
  EXPECT_FALSE(job.table.closed(job.worker1));
}

// ---- notices ----

TEST(Roster, says_who_is_missing_after_5_s_and_every_10_s_after) {
  Table table;
  const PeerId worker = table.join(worker_join(0, "alpha:10"));
  table.pass(4900 * kMillisecond, {worker});
  EXPECT_TRUE(table.sent(worker, Kind::kWaiting).empty());
  table.pass(100 * kMillisecond, {worker});
  ASSERT_EQ(table.sent(worker, Kind::kWaiting).size(), 1U);
  EXPECT_EQ(table.text_to(worker, Kind::kWaiting),
            "waiting for worker 1 of 2 and server 0 of 1; here: worker 0 (alpha:10) since 5 s");
  EXPECT_EQ(table.notices(LogLevel::kWarning).size(), 1U);
  table.pass(9900 * kMillisecond, {worker});
  EXPECT_EQ(table.sent(worker, Kind::kWaiting).size(), 1U);
  table.pass(100 * kMillisecond, {worker});
  EXPECT_EQ(table.sent(worker, Kind::kWaiting).size(), 2U);
}

TEST(Roster, lists_missing_ranks_as_ranges_and_who_is_here_with_address) {
  Table table(small_job(9, 3));
  for (const std::uint32_t rank : {0U, 7U}) {
    table.join(worker_join(rank, "host" + std::to_string(rank) + ":1", 9, 3));
  }
  table.join(server_join("gamma:12", 4000, 1));
  EXPECT_EQ(
      table.keeper().waiting_text(table.now()),
      "waiting for workers 1-6 and 8 of 9 and servers 0 and 2 of 3; here: worker 0 (host0:1) since "
      "0 ms, worker 7 (host7:1) since 0 ms, server 1 (gamma:12 at 10.0.0.2:4000) since 0 ms");
}

TEST(Roster, notices_stay_short_in_a_large_job) {
  Table table(small_job(1000, 1));
  for (std::uint32_t rank = 0; rank < 999; ++rank) {
    table.join(worker_join(rank, std::string(200, 'h'), 1000, 1));
  }
  const std::string text = table.keeper().waiting_text(table.now());
  EXPECT_THAT(text, AllOf(HasSubstr("worker 999 of 1000"), HasSubstr("and 983 more")));
  EXPECT_LE(text.size(), wire::kTextBytesMax);
}

TEST(Roster, names_a_refused_process_and_a_lost_connection_in_the_notice) {
  Table table;
  table.join(worker_join(0, "alpha:10"));
  table.join(worker_join(0, "beta:11"));
  table.down(table.join(server_join("gamma:12", 4000)));
  EXPECT_THAT(
      table.keeper().waiting_text(table.now()),
      AllOf(HasSubstr("lost its connection: server"), HasSubstr("gamma:12"),
            HasSubstr("refused: two processes claim to be worker 0"), HasSubstr("server 0 of 1")));
}

TEST(Roster, names_the_server_that_does_not_take_up_the_epoch) {
  Table table;
  const PeerId worker0 = table.join(worker_join(0, "alpha:10"));
  const PeerId worker1 = table.join(worker_join(1, "beta:11"));
  const PeerId server = table.join(server_join("gamma:12", 4000));
  table.pass(5 * kSecond, {worker0, worker1, server}, 0);
  EXPECT_THAT(
      table.text_to(worker0, Kind::kWaiting),
      AllOf(HasSubstr("epoch 1"), HasSubstr("not yet: server 0 (gamma:12 at 10.0.0.2:4000)")));
}

TEST(Roster, gives_up_at_the_start_timeout_with_the_text_of_the_notice) {
  Config config = small_job();
  config.timeout.start_ns = 20 * kSecond;
  Table table(config);
  const PeerId worker = table.join(worker_join(0, "alpha:10"));
  table.pass(20 * kSecond, {worker});
  EXPECT_EQ(table.code_to(worker), Code::kTimeout);
  EXPECT_THAT(table.text_to(worker, Kind::kFail),
              AllOf(HasSubstr("gave up after 20 s"), HasSubstr("worker 1 of 2 and server 0 of 1"),
                    HasSubstr("alpha:10")));
  table.hear_end(worker);
  EXPECT_TRUE(table.keeper().ended());
  EXPECT_TRUE(table.keeper().outcome().is(Code::kTimeout));
  const Cause expected{.kind = CauseKind::kIncomplete,
                       .detail = "worker 1 of 2 and server 0 of 1",
                       .missing_workers = {1},
                       .missing_servers = {0}};
  EXPECT_EQ(table.keeper().outcome().cause(), expected);
}

TEST(Roster, keeps_no_more_of_a_server_than_its_shards_can_need) {
  Table table(small_job(1, 1));
  wire::Join join = server_join("gamma:12", 4000);
  join.endpoints.assign(kShardsOfServerMax + 1, {"10.0.0.2", 4000});
  EXPECT_THAT(table.text_to(table.join(join), Kind::kFail), HasSubstr("names 257 addresses"));
  join.endpoints = {{std::string(kHostNameBytesMax + 1, 'h'), 4000}};
  EXPECT_THAT(table.text_to(table.join(join), Kind::kFail), HasSubstr("names no address"));
  for (std::uint32_t i = 0; i < kServersMax; ++i) {
    join.endpoints = {{"10.0." + std::to_string(i / 250) + "." + std::to_string(i % 250), 4000}};
    EXPECT_EQ(table.code_to(table.join(join)), Code::kOk);
  }
  join.endpoints = {{"10.1.0.1", 4000}};
  EXPECT_EQ(table.code_to(table.join(join)), Code::kUnsupported);
}

TEST(Roster, keeps_no_more_shards_than_a_worker_may_be_connected_to) {
  Table table(small_job(1, kShardsMax / kShardsOfServerMax));
  wire::Join join = server_join("gamma:12", 4000);
  const auto with_shards = [&](std::size_t server, std::size_t count) {
    join.host = "gamma:" + std::to_string(server);
    join.endpoints.clear();
    for (std::size_t i = 0; i < count; ++i) {
      join.endpoints.push_back(
          {"10.0.0." + std::to_string(server), static_cast<std::uint16_t>(4000 + i)});
    }
    return join;
  };
  std::size_t server = 0;
  for (; server + 1 < kShardsMax / kShardsOfServerMax; ++server) {
    EXPECT_EQ(table.code_to(table.join(with_shards(server, kShardsOfServerMax))), Code::kOk);
  }
  EXPECT_EQ(table.code_to(table.join(with_shards(server, kShardsOfServerMax - 1))), Code::kOk);
  const PeerId one_more = table.join(with_shards(server + 1, 2));
  EXPECT_EQ(table.code_to(one_more), Code::kUnsupported);
  EXPECT_THAT(table.text_to(one_more, Kind::kFail),
              AllOf(HasSubstr("8191 shards"), HasSubstr("at most 8192"),
                    HasSubstr("BYTEPS_SERVER_ENGINE_THREAD")));
  EXPECT_EQ(table.code_to(table.join(with_shards(server + 1, 1))), Code::kOk);
}

TEST(Roster, forgets_the_addresses_of_workers) {
  Table table(small_job(1, 1));
  wire::Join join = worker_join(0, "alpha:10", 1, 1);
  join.endpoints.assign(60000, {"10.0.0.2", 4000});
  const PeerId worker = table.join(join);
  const PeerId server = table.join(server_join("gamma:12", 4000));
  table.heartbeat(server, 1);
  ASSERT_EQ(table.roster_to(worker).members.size(), 2U);
  EXPECT_TRUE(table.roster_to(worker).members[0].endpoints.empty());
}

// ---- life and loss ----

TEST(Roster, closes_whoever_comes_after_the_end_and_tells_it_nothing) {
  Table table;
  KeeperOutputs out;
  table.keeper().stop({Code::kCancelled, "stopped"}, table.now(), out);
  ASSERT_TRUE(table.keeper().ended());
  const PeerId late = table.up(Role::kWorker);
  EXPECT_TRUE(table.closed(late));
  table.leave(late, 0, true);
  EXPECT_TRUE(table.sent(late, Kind::kLeave).empty()) << "its window would keep the scheduler";
}

TEST(Roster, sends_heartbeats_every_sixth_of_the_failure_timeout) {
  RunningJob job;
  job.table.forget();
  job.table.pass(3 * kSecond, job.all(), 1);
  EXPECT_EQ(job.table.sent(job.worker0, Kind::kHeartbeat).size(), 6U);
  EXPECT_EQ(job.table.sent(job.server, Kind::kHeartbeat).size(), 6U);
}

// A member that stood still for just less than the failure timeout after its last heartbeat is not gone.
TEST(Roster, ends_the_job_naming_the_member_that_is_silent_for_a_heartbeat_more_than_the_timeout) {
  RunningJob job;
  job.table.pass(3400 * kMillisecond, {job.worker0, job.server}, 1);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  job.table.pass(100 * kMillisecond, {job.worker0, job.server}, 1);
  for (const PeerId peer : {job.worker0, job.server}) {
    EXPECT_EQ(job.table.code_to(peer), Code::kDisconnected);
    EXPECT_THAT(job.table.text_to(peer, Kind::kFail),
                AllOf(HasSubstr("worker 1 (beta:11)"), HasSubstr("said nothing for 3.5 s")));
  }
  const Cause expected{.kind = CauseKind::kSilent,
                       .who = {.role = Role::kWorker, .rank = 1, .host = "beta:11"},
                       .for_ns = 3500 * kMillisecond};
  EXPECT_EQ(job.table.keeper().outcome().cause(), expected);
}

// Found by the soak: it waited a whole failure timeout longer for the word of the member that stood still.
TEST(Roster, ends_itself_within_twice_the_timeout_when_a_member_stands_still) {
  RunningJob job;
  job.table.pass(3500 * kMillisecond, {job.worker0, job.server}, 1);
  job.table.say(job.worker0, Kind::kLeave);
  job.table.say(job.server, Kind::kLeave);
  EXPECT_FALSE(job.table.keeper().ended()) << "worker 1 may hear it yet";
  job.table.pass(2100 * kMillisecond, {}, 1);
  EXPECT_TRUE(job.table.keeper().ended());
}

// What members said meanwhile is not all handed in when the clock is looked at.
TEST(Roster, does_not_take_its_own_pause_for_a_silence_of_the_members) {
  RunningJob job;
  job.table.pass(kSecond, job.all(), 1);
  job.table.stand_still(10 * kSecond);
  job.table.tick();
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  job.table.pass(2 * kSecond, {job.worker0, job.server}, 1);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  job.table.pass(1500 * kMillisecond, {job.worker0, job.server}, 1);
  EXPECT_THAT(job.table.text_to(job.worker0, Kind::kFail), HasSubstr("worker 1 (beta:11)"));
}

TEST(Roster, ends_the_job_naming_the_member_that_is_gone_for_the_failure_timeout_and_why) {
  RunningJob job;
  job.table.down(job.server, "10.0.0.2:51234: connection reset by peer");
  job.table.pass(3 * kSecond, {job.worker0, job.worker1}, 1);
  EXPECT_THAT(job.table.text_to(job.worker1, Kind::kFail),
              AllOf(HasSubstr("server 0 (gamma:12 at 10.0.0.2:4000)"), HasSubstr("gone for 3 s"),
                    HasSubstr("connection reset by peer")));
  const Cause expected{.kind = CauseKind::kGone,
                       .who = {.role = Role::kServer, .rank = 0, .host = "gamma:12"},
                       .for_ns = 3 * kSecond,
                       .detail = "10.0.0.2:51234: connection reset by peer"};
  EXPECT_EQ(job.table.keeper().outcome().cause(), expected);
}

TEST(Roster, what_becomes_of_members_is_news_in_fields) {
  RunningJob job;
  job.table.down(job.worker1, "connection reset");
  job.table.join(worker_join(1, "beta:11"), Epoch(1));
  job.table.leave(job.worker0, 0, true);
  EXPECT_THAT(job.table.news(),
              testing::IsSupersetOf({"here worker 0 alpha:10", "here worker 1 beta:11",
                                     "lost worker 1 beta:11: connection reset",
                                     "back worker 1 beta:11", "left worker 0 alpha:10"}));
}

TEST(Roster, a_member_that_is_lost_and_back_gets_the_same_roster_and_nothing_else_happens) {
  RunningJob job;
  const wire::Roster before = job.table.roster_to(job.worker1);
  job.table.down(job.worker1);
  job.table.pass(2 * kSecond, {job.worker0, job.server}, 1);
  const PeerId again = job.table.join(worker_join(1, "beta:11"), Epoch(1));
  EXPECT_EQ(job.table.roster_to(again), before);
  job.table.pass(10 * kSecond, {job.worker0, again, job.server}, 1);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  EXPECT_EQ(job.table.keeper().epoch(), Epoch(1));
}

TEST(Roster, a_new_connection_of_a_member_replaces_one_that_is_not_known_to_be_dead) {
  RunningJob job;
  const PeerId again = job.table.join(worker_join(1, "beta:11"), Epoch(1));
  EXPECT_TRUE(job.table.closed(job.worker1));
  EXPECT_EQ(job.table.roster_to(again).epoch, Epoch(1));
  job.table.down(job.worker1);  // late
  job.table.pass(10 * kSecond, {job.worker0, again, job.server}, 1);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
}

TEST(Roster, a_server_that_is_lost_while_it_takes_up_the_epoch_gets_the_roster_again) {
  Table table;
  const PeerId worker0 = table.join(worker_join(0, "alpha:10"));
  table.join(worker_join(1, "beta:11"));
  const PeerId server = table.join(server_join("gamma:12", 4000));
  table.down(server);
  const PeerId again = table.join(server_join("gamma:12", 4000));
  EXPECT_EQ(table.roster_to(again).epoch, Epoch(1));
  EXPECT_EQ(table.keeper().phase(), Phase::kConfirming);
  table.heartbeat(again, 1);
  EXPECT_EQ(table.roster_to(worker0).epoch, Epoch(1));
}

TEST(Roster, a_server_that_lost_its_memory_ends_the_job_at_once) {
  RunningJob job;
  job.table.down(job.server);
  job.table.join(server_join("gamma:12", 4000), Epoch(0));
  EXPECT_THAT(job.table.text_to(job.worker0, Kind::kFail),
              AllOf(HasSubstr("server 0 (gamma:12"), HasSubstr("started anew")));
  EXPECT_TRUE(job.table.keeper().outcome().is_because_of(CauseKind::kStartedAnew));
  EXPECT_EQ(job.table.keeper().outcome().cause().who.rank, 0U);
}

TEST(Roster, a_lost_member_before_the_start_is_only_missing_again) {
  Table table;
  const PeerId worker0 = table.join(worker_join(0, "alpha:10"));
  const PeerId worker1 = table.join(worker_join(1, "beta:11"));
  table.pass(4 * kSecond, {worker0});  // worker 1 is silent
  EXPECT_TRUE(table.closed(worker1));
  EXPECT_EQ(table.keeper().phase(), Phase::kGathering);
  EXPECT_THAT(table.keeper().waiting_text(table.now()), HasSubstr("worker 1 of 2"));
}

TEST(Roster, a_members_failure_is_everybodys_and_names_it) {
  RunningJob job;
  job.table.say(
      job.worker1, Kind::kFail,
      wire::encode(wire::Text{"no memory for tensor x", static_cast<std::uint32_t>(Code::kSystem)}),
      Epoch(1));
  for (const PeerId peer : job.all()) {
    EXPECT_EQ(job.table.code_to(peer), Code::kSystem);
    EXPECT_THAT(job.table.text_to(peer, Kind::kFail),
                HasSubstr("worker 1 (beta:11): no memory for tensor x"));
  }
  EXPECT_EQ(job.table.keeper().phase(), Phase::kEnding);
  const Participant worker1{.role = Role::kWorker, .rank = 1, .host = "beta:11"};
  const Cause expected{.who = worker1, .told_by = worker1, .detail = "no memory for tensor x"};
  EXPECT_EQ(job.table.keeper().outcome().cause(), expected);
  EXPECT_EQ(job.table.cause_to(job.worker0), expected) << "all are told so";
}

TEST(Roster, a_member_says_whom_its_failure_is_about_but_not_who_says_it) {
  RunningJob job;
  wire::Text text{"server 0 cannot be reached", static_cast<std::uint32_t>(Code::kDisconnected)};
  text.cause = {.kind = CauseKind::kUnreachable,
                .who = {.role = Role::kServer, .rank = 0, .host = "gamma:12"},
                .told_by = {.role = Role::kScheduler},
                .for_ns = 3 * kSecond,
                .detail = "no route to host"};
  job.table.say(job.worker1, Kind::kFail, wire::encode(text), Epoch(1));
  Cause expected = text.cause;
  expected.told_by = {.role = Role::kWorker, .rank = 1, .host = "beta:11"};
  EXPECT_EQ(job.table.cause_to(job.worker0), expected);
}

TEST(Roster, after_a_failure_it_ends_when_all_have_heard_of_it_or_after_the_timeout) {
  for (const bool all_hear : {true, false}) {
    RunningJob job;
    job.table.say(job.worker1, Kind::kFail, wire::encode(wire::Text{"x", 6}), Epoch(1));
    job.table.hear_end(job.worker0);
    job.table.hear_end(job.worker1);
    EXPECT_FALSE(job.table.keeper().ended());
    if (all_hear) {
      job.table.hear_end(job.server);
    } else {
      job.table.pass(2900 * kMillisecond);  // it may stand still for so long, and wake up
      EXPECT_FALSE(job.table.keeper().ended());
      job.table.pass(100 * kMillisecond);
      EXPECT_TRUE(job.table.closed(job.server));
    }
    EXPECT_TRUE(job.table.keeper().ended());
    EXPECT_TRUE(job.table.keeper().outcome().is(Code::kSystem));
  }
}

TEST(Roster, a_member_that_was_away_when_the_job_failed_hears_of_it_when_it_is_back) {
  RunningJob job;
  job.table.down(job.worker0);
  job.table.say(job.worker1, Kind::kFail, wire::encode(wire::Text{"x", 6}), Epoch(1));
  job.table.hear_end(job.worker1);
  job.table.hear_end(job.server);
  EXPECT_FALSE(job.table.keeper().ended());
  const PeerId again = job.table.join(worker_join(0, "alpha:10"), Epoch(1));
  EXPECT_THAT(job.table.text_to(again, Kind::kFail), HasSubstr("beta:11"));
  job.table.down(again);  // perhaps before it has read it
  EXPECT_FALSE(job.table.keeper().ended());
  job.table.hear_end(job.table.join(worker_join(0, "alpha:10"), Epoch(1)));
  EXPECT_TRUE(job.table.keeper().ended());
}

// Found by the simulator, seed 39002383 with pause, partition and long-partition: told nothing, it blamed a server that
// had ended with the job.
TEST(Roster, a_member_that_was_given_up_hears_why_when_it_comes_back_before_the_end) {
  RunningJob job;
  job.table.down(job.worker1, "10.0.0.3:50000: connection timed out");
  job.table.pass(3 * kSecond, {job.worker0, job.server}, 1);
  ASSERT_EQ(job.table.keeper().phase(), Phase::kEnding);
  const PeerId again = job.table.join(worker_join(1, "beta:11"), Epoch(1));
  EXPECT_THAT(job.table.text_to(again, Kind::kFail),
              AllOf(HasSubstr("worker 1 (beta:11) has been gone for 3 s"), HasSubstr("timed out")));
  for (const PeerId peer : {job.worker0, job.server, again}) job.table.hear_end(peer);
  EXPECT_TRUE(job.table.keeper().ended());
}

// Found by the simulator, seed 213019: the connection went down with the last word in it, and the network kept the
// server away for longer than the scheduler stayed.
TEST(Roster, waits_the_whole_failure_timeout_for_a_server_that_may_have_missed_the_good_end) {
  RunningJob job;
  job.table.leave(job.worker0, 0, true);
  job.table.leave(job.worker1, 1, true);
  ASSERT_EQ(job.table.keeper().phase(), Phase::kEnding);
  for (const PeerId peer : job.all()) job.table.down(peer);
  job.table.pass(2 * kSecond);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kEnding);
  const PeerId again = job.table.join(server_join("gamma:12", 4000), Epoch(1));
  EXPECT_EQ(job.table.sent(again, Kind::kLeave).size(), 1U);
  job.table.down(again);
  job.table.pass(1500 * kMillisecond);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kEnded) << "but no longer";
}

TEST(Roster, one_who_comes_after_the_end_hears_of_the_failure_or_is_sent_to_look_for_the_next_job) {
  RunningJob failed;
  failed.table.say(failed.worker1, Kind::kFail, wire::encode(wire::Text{"x", 6}), Epoch(1));
  const PeerId late = failed.table.join(worker_join(0, "alpha:99"));
  EXPECT_THAT(failed.table.text_to(late, Kind::kFail), HasSubstr("worker 1 (beta:11): x"));
  RunningJob over;
  over.table.leave(over.worker0, 0, true);
  over.table.leave(over.worker1, 1, true);
  const PeerId next = over.table.join(worker_join(0, "alpha:99"));
  EXPECT_TRUE(over.table.sent(next, Kind::kFail).empty());
  EXPECT_TRUE(over.table.closed(next));
}

TEST(Roster, does_not_stay_long_for_those_who_were_told_and_do_not_come_back) {
  RunningJob job;
  job.table.say(job.worker1, Kind::kFail, wire::encode(wire::Text{"x", 6}), Epoch(1));
  for (const PeerId peer : job.all()) job.table.down(peer);
  job.table.pass(400 * kMillisecond);
  EXPECT_FALSE(job.table.keeper().ended());
  job.table.pass(100 * kMillisecond);
  EXPECT_TRUE(job.table.keeper().ended());
}

// ---- leaving ----

TEST(Roster, answers_leave_and_tells_the_other_workers_who_left) {
  RunningJob job;
  job.table.leave(job.worker1, 1, true);
  ASSERT_EQ(job.table.sent(job.worker1, Kind::kLeave).size(), 1U);
  const auto told = job.table.sent(job.worker0, Kind::kLeave);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(wire::decode_leave(told[0].payload).value().who.some(), std::vector<std::uint32_t>{1});
  EXPECT_TRUE(wire::decode_leave(told[0].payload).value().final);
  EXPECT_TRUE(job.table.sent(job.server, Kind::kLeave).empty());
  job.table.down(job.worker1);
  job.table.pass(20 * kSecond, {job.worker0, job.server}, 1);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning) << "who has left is not missed";
}

TEST(Roster, ends_well_when_all_workers_have_left_for_good) {
  RunningJob job;
  job.table.leave(job.worker1, 1, true);
  job.table.leave(job.worker0, 0, true);
  EXPECT_EQ(job.table.sent(job.server, Kind::kLeave).size(), 1U);
  job.table.down(job.worker0);
  job.table.down(job.worker1);
  EXPECT_FALSE(job.table.keeper().ended());
  job.table.hear_end(job.server);
  EXPECT_TRUE(job.table.keeper().ended());
  EXPECT_TRUE(job.table.keeper().outcome().is_ok());
}

TEST(Roster, answers_a_repeated_leave_also_after_the_end_of_the_epoch) {
  RunningJob job;
  job.table.leave(job.worker1, 1, false);
  job.table.down(job.worker1);  // the answer was lost
  job.table.leave(job.worker0, 0, false);
  const PeerId again = job.table.join(worker_join(1, "beta:11"), Epoch(1));
  job.table.leave(again, 1, false);
  EXPECT_EQ(job.table.sent(again, Kind::kLeave).size(), 1U);
}

TEST(Roster, a_worker_that_was_away_hears_who_left_when_it_is_back) {
  RunningJob job;
  job.table.down(job.worker0);
  job.table.leave(job.worker1, 1, true);
  const PeerId again = job.table.join(worker_join(0, "alpha:10"), Epoch(1));
  ASSERT_EQ(job.table.sent(again, Kind::kLeave).size(), 1U);
  const auto told = job.table.sent(again, Kind::kLeave);
  EXPECT_EQ(wire::decode_leave(told[0].payload).value().who.some(), std::vector<std::uint32_t>{1});
}

TEST(Roster, waits_twice_the_failure_timeout_for_workers_that_may_come_back_then_ends_well) {
  RunningJob job;
  job.table.leave(job.worker0, 0, false);
  job.table.leave(job.worker1, 1, true);
  job.table.down(job.worker0);
  job.table.down(job.worker1);
  job.table.pass(5900 * kMillisecond, {job.server}, 1);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kGathering);
  EXPECT_TRUE(job.table.sent(job.server, Kind::kLeave).empty());
  EXPECT_TRUE(job.table.sent(job.server, Kind::kWaiting).empty()) << "nobody is waited for in vain";
  job.table.pass(100 * kMillisecond, {job.server}, 1);
  EXPECT_EQ(job.table.sent(job.server, Kind::kLeave).size(), 1U);
  EXPECT_TRUE(job.table.keeper().outcome().is_ok());
}

TEST(Roster, a_worker_that_leaves_before_the_start_is_missing_again) {
  Table table;
  const PeerId worker = table.join(worker_join(0, "alpha:10"));
  table.leave(worker, 0, true, 0);
  EXPECT_EQ(table.sent(worker, Kind::kLeave).size(), 1U);
  EXPECT_THAT(table.keeper().waiting_text(table.now()), HasSubstr("workers 0 and 1 of 2"));
}

TEST(Roster, a_server_stopped_while_the_job_runs_ends_the_job_naming_it) {
  RunningJob job;
  job.table.leave(job.server, 0, true);
  EXPECT_THAT(job.table.text_to(job.worker0, Kind::kFail),
              AllOf(HasSubstr("server 0 (gamma:12"), HasSubstr("stopped")));
  EXPECT_TRUE(job.table.keeper().outcome().is_because_of(CauseKind::kLeft));
  EXPECT_EQ(job.table.keeper().outcome().cause().who.role, Role::kServer);
}

// ---- the next generation ----

TEST(Roster, a_new_set_of_workers_with_other_counts_is_a_new_epoch_on_the_same_servers) {
  RunningJob job;
  job.table.leave(job.worker0, 0, false);
  job.table.leave(job.worker1, 1, false);
  std::vector<PeerId> workers;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(job.table.keeper().epoch(), Epoch(1));
    workers.push_back(job.table.join(worker_join(rank, "new:" + std::to_string(rank), 3, 1)));
  }
  EXPECT_EQ(job.table.roster_to(job.server).epoch, Epoch(2));
  EXPECT_TRUE(job.table.sent(workers[0], Kind::kRoster).empty());
  job.table.heartbeat(job.server, 1);
  EXPECT_TRUE(job.table.sent(workers[0], Kind::kRoster).empty());
  job.table.heartbeat(job.server, 2);
  EXPECT_EQ(job.table.roster_to(workers[2]).members.size(), 4U);
  EXPECT_EQ(job.table.roster_to(workers[2]).epoch, Epoch(2));
}

TEST(Roster, workers_of_the_next_generation_wait_until_the_running_ones_have_left_and_are_told_so) {
  RunningJob job;
  job.table.leave(job.worker0, 0, false);
  job.table.down(job.worker0);
  const PeerId early =
      job.table.join(worker_join(0, "alpha:10", 1, 1));  // same process, begun anew
  std::vector<PeerId> alive = {job.worker1, job.server};
  job.table.pass(5 * kSecond, {job.worker1, job.server, early}, 1);
  EXPECT_THAT(job.table.text_to(early, Kind::kWaiting),
              AllOf(HasSubstr("worker 1 (beta:11)"), HasSubstr("left")));
  EXPECT_TRUE(job.table.sent(early, Kind::kRoster).empty());
  job.table.leave(job.worker1, 1, true);
  job.table.heartbeat(job.server, 2);
  EXPECT_EQ(job.table.roster_to(early).epoch, Epoch(2));
}

TEST(Roster, a_worker_that_begins_anew_without_a_word_has_left_its_old_life) {
  RunningJob job;
  const PeerId again = job.table.join(worker_join(1, "beta:11"), Epoch(0));
  job.table.tick();
  const auto told = job.table.sent(job.worker0, Kind::kLeave);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(wire::decode_leave(told[0].payload).value().who.some(), std::vector<std::uint32_t>{1});
  EXPECT_TRUE(job.table.sent(again, Kind::kRoster).empty());
  job.table.leave(job.worker0, 0, false);
  job.table.join(worker_join(0, "alpha:10"), Epoch(0));
  job.table.heartbeat(job.server, 2);
  EXPECT_EQ(job.table.roster_to(again).epoch, Epoch(2));
}

TEST(Roster, a_late_goodbye_of_an_old_life_does_not_end_the_new_one) {
  RunningJob job;
  job.table.leave(job.worker0, 0, false);
  job.table.leave(job.worker1, 1, false);
  const PeerId zero = job.table.join(worker_join(0, "alpha:10"));
  const PeerId one = job.table.join(worker_join(1, "beta:11"));
  job.table.heartbeat(job.server, 2);
  job.table.heartbeat(zero, 2);
  job.table.heartbeat(one, 2);
  const PeerId ghost = job.table.join(worker_join(1, "beta:11"), Epoch(1));
  job.table.leave(ghost, 1, false, 1);
  EXPECT_EQ(job.table.sent(ghost, Kind::kLeave).size(), 1U);
  EXPECT_TRUE(job.table.sent(zero, Kind::kLeave).empty());
  EXPECT_FALSE(job.table.closed(one));
}

// Whoever leaves first is back first, under a rank whose holder has not said Leave yet.
TEST(Roster, workers_that_swap_ranks_may_come_back_before_the_others_have_left) {
  RunningJob job;
  job.table.leave(job.worker0, 0, false);
  job.table.down(job.worker0);
  const PeerId alpha = job.table.join(worker_join(1, "alpha:10"));
  EXPECT_TRUE(job.table.sent(alpha, Kind::kFail).empty()) << job.table.text_to(alpha, Kind::kFail);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  job.table.barrier(job.worker1, 0);
  EXPECT_EQ(job.table.sent(job.worker1, Kind::kBarrierDone).size(), 1U) << "it is still worker 1";
  job.table.leave(job.worker1, 1, false);
  job.table.down(job.worker1);
  const PeerId beta = job.table.join(worker_join(0, "beta:11"));
  job.table.heartbeat(job.server, 2);
  ASSERT_EQ(job.table.roster_to(alpha).epoch, Epoch(2));
  EXPECT_EQ(job.table.roster_to(alpha).your_rank, 1U);
  EXPECT_EQ(job.table.roster_to(beta).your_rank, 0U);
  EXPECT_EQ(job.table.roster_to(beta).members[1].host, "alpha:10");
}

TEST(Roster, a_parked_worker_that_lost_its_connection_is_known_again) {
  RunningJob job;
  job.table.leave(job.worker0, 0, false);
  job.table.down(job.table.join(worker_join(1, "alpha:10")));
  const PeerId again = job.table.join(worker_join(1, "alpha:10"));
  job.table.leave(job.worker1, 1, false);
  job.table.join(worker_join(0, "beta:11"));
  job.table.heartbeat(job.server, 2);
  EXPECT_EQ(job.table.roster_to(again).your_rank, 1U);
  EXPECT_EQ(job.table.roster_to(again).epoch, Epoch(2));
}

TEST(Roster, a_new_process_may_take_a_rank_of_an_epoch_that_is_ending) {
  RunningJob job;
  job.table.leave(job.worker0, 0, false);
  const PeerId fresh = job.table.join(worker_join(1, "delta:13", 1 + 1, 1));
  EXPECT_TRUE(job.table.sent(fresh, Kind::kFail).empty());
}

TEST(Roster, two_of_the_next_generation_cannot_have_one_rank) {
  RunningJob job;
  job.table.leave(job.worker0, 0, false);
  job.table.join(worker_join(1, "alpha:10"));
  const PeerId second = job.table.join(worker_join(1, "delta:13"));
  EXPECT_TRUE(job.table.code_to(second) == Code::kMismatch);
  EXPECT_THAT(job.table.text_to(second, Kind::kFail),
              AllOf(HasSubstr("alpha:10"), HasSubstr("delta:13")));
}

TEST(Roster, a_rank_stays_taken_when_others_have_left_for_good) {
  RunningJob job;
  job.table.leave(job.worker0, 0, true);
  const PeerId second = job.table.join(worker_join(1, "delta:13"));
  EXPECT_TRUE(job.table.code_to(second) == Code::kMismatch);
  const PeerId same_process = job.table.join(worker_join(1, "alpha:10"));
  EXPECT_TRUE(job.table.sent(same_process, Kind::kFail).empty());
}

TEST(Roster, the_size_of_the_next_generation_is_not_compared_with_that_of_the_running_one) {
  RunningJob job;
  job.table.leave(job.worker0, 0, false);
  const PeerId alpha = job.table.join(worker_join(1, "alpha:10", 3, 1));
  const PeerId delta = job.table.join(worker_join(2, "delta:13", 3, 1));
  const PeerId other = job.table.join(worker_join(3, "omega:14", 4, 1));
  EXPECT_TRUE(job.table.sent(alpha, Kind::kFail).empty());
  EXPECT_TRUE(job.table.sent(delta, Kind::kFail).empty());
  EXPECT_THAT(job.table.text_to(other, Kind::kFail), HasSubstr("disagree"));
  job.table.leave(job.worker1, 1, false);
  job.table.join(worker_join(0, "beta:11", 3, 1));
  job.table.heartbeat(job.server, 2);
  EXPECT_EQ(job.table.roster_to(delta).members.size(), 4U);
}

TEST(Roster, a_late_join_of_the_last_epoch_takes_no_rank_of_the_next) {
  Table table;
  wire::Join alpha = worker_join(0, "alpha:10");
  wire::Join beta = worker_join(1, "beta:11");
  alpha.life = beta.life = 1000;
  const PeerId older = table.up(Role::kWorker);
  const PeerId zero = table.join(alpha);
  const PeerId one = table.join(beta);
  const PeerId server = table.join(server_join("gamma:12", 4000));
  table.heartbeat(server, 1);
  table.leave(zero, 0, false);
  table.leave(one, 1, false);
  table.say(older, Kind::kJoin, wire::encode(alpha));
  EXPECT_TRUE(table.closed(older));
  wire::Join swapped = worker_join(0, "beta:11");
  swapped.life = 2000;
  const PeerId next = table.join(swapped);
  EXPECT_TRUE(table.sent(next, Kind::kFail).empty());
}

TEST(Roster, a_failing_worker_of_the_next_generation_does_not_disturb_the_running_one) {
  RunningJob job;
  job.table.leave(job.worker0, 0, false);
  const PeerId early = job.table.join(worker_join(0, "alpha:10"));
  job.table.say(early, Kind::kFail, wire::encode(wire::Text{"no", 6}));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  EXPECT_TRUE(job.table.sent(job.worker1, Kind::kFail).empty());
}

TEST(Roster, a_server_that_was_started_anew_between_epochs_does_no_harm) {
  RunningJob job;
  job.table.leave(job.worker0, 0, false);
  job.table.leave(job.worker1, 1, false);
  job.table.down(job.server);
  const PeerId again = job.table.join(server_join("gamma:12", 4000));
  const PeerId alone = job.table.join(worker_join(0, "alpha:10", 1, 1));
  job.table.heartbeat(again, 2);
  EXPECT_EQ(job.table.roster_to(alone).epoch, Epoch(2));
}

// Found by the simulator, seeds 1553 and 4522: the first connection of a member was cut, and what it had said there
// arrived when it had long joined on its second and worked in the epoch.
TEST(Roster, a_join_that_comes_late_on_an_older_connection_is_no_new_life) {
  Table table;
  wire::Join worker = worker_join(0, "alpha:10", 1, 1);
  wire::Join server = server_join("gamma:12", 4000);
  worker.life = 1000;
  server.life = 1000;
  const PeerId older_worker = table.up(Role::kWorker);
  const PeerId older_server = table.up(Role::kServer);
  const PeerId current_worker = table.join(worker);
  const PeerId current_server = table.join(server);
  table.heartbeat(current_server, 1);
  table.heartbeat(current_worker, 1);
  table.say(older_worker, Kind::kJoin, wire::encode(worker));
  table.say(older_server, Kind::kJoin, wire::encode(server));
  EXPECT_EQ(table.keeper().phase(), Phase::kRunning);
  EXPECT_TRUE(table.sent(current_worker, Kind::kFail).empty());
  table.barrier(current_worker, 0);
  EXPECT_EQ(table.sent(current_worker, Kind::kBarrierDone).size(), 1U) << "it still counts";

  server.life = 999;  // another life, whatever its number: its sums are lost
  table.down(current_server);
  table.join(server);
  EXPECT_THAT(table.text_to(current_worker, Kind::kFail), HasSubstr("started anew"));
}

// A process of one name may begin again on a host whose clock is behind.
TEST(Roster, a_life_is_late_when_it_was_heard_of_before_and_never_because_its_number_is_smaller) {
  Table table;
  const auto join = [&](std::uint32_t rank, const char* host, std::uint64_t life) {
    wire::Join worker = worker_join(rank, host);
    worker.life = life;
    return table.join(worker);
  };
  table.down(join(0, "pod-0:1", 5000));
  const PeerId second = join(0, "pod-0:1", 3000);
  EXPECT_FALSE(table.closed(second));
  table.down(second);
  const PeerId third = join(0, "pod-0:1", 4000);
  EXPECT_FALSE(table.closed(third));
  for (const std::uint64_t before : {5000U, 3000U}) {
    EXPECT_TRUE(table.closed(join(0, "pod-0:1", before))) << before;
  }
  EXPECT_FALSE(table.closed(third)) << "it keeps its place";
  EXPECT_FALSE(table.closed(join(0, "pod-0:1", 4000))) << "the same life on a newer connection";
  EXPECT_TRUE(table.closed(third));
  // Likewise from one epoch to the next.
  const PeerId other = join(1, "pod-1:1", 9000);
  const PeerId last = join(0, "pod-0:1", 4000);
  const PeerId server = table.join(server_join("gamma:12", 4000));
  table.heartbeat(server, 1);
  table.leave(last, 0, false);
  table.leave(other, 1, false);
  for (const std::uint64_t before : {5000U, 3000U, 4000U}) {
    EXPECT_TRUE(table.closed(join(0, "pod-0:1", before))) << before;
  }
  EXPECT_FALSE(table.closed(join(0, "pod-0:1", 1)));
}

// Two containers with the network of one host, each of them process 1.
TEST(Roster, a_second_process_under_a_living_workers_name_is_refused_and_the_first_goes_on) {
  for (const bool gathering : {false, true}) {
    Table table;
    wire::Join first = worker_join(0, "alpha:1");
    wire::Join second = first;
    first.life = 1000;
    second.life = 2000;
    const PeerId zero = table.join(first);
    const PeerId server = table.join(server_join("gamma:12", 4000));
    std::vector<PeerId> alive = {zero, server};
    if (!gathering) alive.push_back(table.join(worker_join(1, "beta:11")));
    const std::uint32_t epoch = gathering ? 0 : 1;
    table.pass(kSecond, alive, epoch);
    PeerId rival = table.join(second);
    EXPECT_TRUE(table.closed(rival)) << "the first may be about to end";
    EXPECT_TRUE(table.sent(rival, Kind::kFail).empty());
    table.pass(5 * kSecond, alive, epoch);
    rival = table.join(second);
    EXPECT_THAT(table.text_to(rival, Kind::kFail),
                HasSubstr("two processes claim to be worker 0: alpha:1 is here already"));
    EXPECT_FALSE(table.closed(zero));
    EXPECT_EQ(table.keeper().phase(), gathering ? Phase::kGathering : Phase::kRunning);
  }
}

TEST(Roster, a_life_that_has_ended_makes_room_once_the_end_of_its_connection_is_known) {
  Table table;
  wire::Join worker = worker_join(0, "alpha:1", 1, 1);
  worker.life = 1000;
  const PeerId before = table.join(worker);
  const PeerId server = table.join(server_join("gamma:12", 4000));
  table.heartbeat(server, 1);
  table.heartbeat(before, 1);
  worker.life = 2000;
  const PeerId early = table.join(worker);
  EXPECT_TRUE(table.closed(early));
  table.pass(2 * kSecond, {server}, 1);
  EXPECT_TRUE(table.sent(table.join(worker), Kind::kFail).empty())
      << "the first said nothing since";
  table.down(before);
  const PeerId again = table.join(worker);
  table.heartbeat(server, 2);
  EXPECT_EQ(table.roster_to(again).epoch, Epoch(2));
}

TEST(Roster, encodes_the_roster_once_for_all_members) {
  const std::uint32_t workers = 100;
  const std::uint32_t servers = 20;
  Table table(small_job(workers, servers));
  std::vector<PeerId> peers;
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    peers.push_back(
        table.join(worker_join(rank, "w" + std::to_string(rank) + ":1", workers, servers)));
  }
  std::vector<PeerId> server_peers;
  for (std::uint32_t rank = 0; rank < servers; ++rank) {
    server_peers.push_back(table.join(server_join("s" + std::to_string(rank) + ":1",
                                                  static_cast<std::uint16_t>(4000 + rank), rank)));
  }
  for (const PeerId peer : server_peers) table.heartbeat(peer, 1);
  peers.insert(peers.end(), server_peers.begin(), server_peers.end());
  const SharedBytes first = table.sent(peers[0], Kind::kRoster).at(0).payload;
  EXPECT_GT(first.size(), 0U);
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const auto sent = table.sent(peers[i], Kind::kRoster);
    ASSERT_EQ(sent.size(), 1U);
    EXPECT_TRUE(sent[0].payload.is_same(first)) << "one piece of memory";
    EXPECT_EQ(table.roster_to(peers[i]).your_rank, i < workers ? i : i - workers);
  }
}

TEST(Roster, tells_of_all_who_left_in_a_turn_in_one_message) {
  const std::uint32_t workers = 40;
  Table table(small_job(workers, 1));
  std::vector<PeerId> peers;
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    peers.push_back(table.join(worker_join(rank, "w" + std::to_string(rank) + ":1", workers, 1)));
  }
  table.heartbeat(table.join(server_join("s:1", 4000)), 1);
  const auto say_leave = [&](std::uint32_t rank, bool final) {
    table.say(peers[rank], Kind::kLeave, wire::encode(wire::Leave{final}), Epoch(1),
              WorkerRank(rank));
  };
  for (std::uint32_t rank = 0; rank < 20; ++rank) say_leave(rank, true);
  say_leave(33, false);
  say_leave(30, false);
  table.tick();
  table.tick();
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    if (rank < 20 || rank == 30 || rank == 33) continue;
    const auto told = table.sent(peers[rank], Kind::kLeave);
    ASSERT_EQ(told.size(), 2U) << "worker " << rank;
    const wire::Leave for_good = wire::decode_leave(told[0].payload).value();
    const wire::Leave for_a_while = wire::decode_leave(told[1].payload).value();
    EXPECT_TRUE(for_good.final);
    EXPECT_EQ(for_good.who.some().size(), 20U);
    EXPECT_FALSE(for_a_while.final);
    EXPECT_EQ(for_a_while.who.some(), (std::vector<std::uint32_t>{30, 33}));
  }
  EXPECT_EQ(table.sent(peers[3], Kind::kLeave).size(), 1U) << "who has left hears its own only";
}

TEST(Roster, a_worker_that_begins_anew_after_the_end_does_not_revive_the_job) {
  RunningJob job;
  job.table.say(job.worker1, Kind::kFail, wire::encode(wire::Text{"x", 6}), Epoch(1));
  const PeerId again = job.table.join(worker_join(1, "beta:11"), Epoch(0));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kEnding);
  EXPECT_THAT(job.table.text_to(again, Kind::kFail), HasSubstr("x"));
}

// ---- barriers ----

TEST(Roster, a_barrier_is_done_when_all_workers_have_arrived) {
  RunningJob job;
  job.table.barrier(job.worker0, 0);
  EXPECT_TRUE(job.table.sent(job.worker0, Kind::kBarrierDone).empty());
  job.table.barrier(job.worker0, 0);  // a repeat does not count twice
  EXPECT_TRUE(job.table.sent(job.worker0, Kind::kBarrierDone).empty());
  job.table.barrier(job.worker1, 0);
  for (const PeerId peer : {job.worker0, job.worker1}) {
    const auto done = job.table.sent(peer, Kind::kBarrierDone);
    ASSERT_EQ(done.size(), 1U);
    EXPECT_EQ(wire::decode_barrier(done[0].payload).value().number, 0U);
  }
  EXPECT_TRUE(job.table.sent(job.server, Kind::kBarrierDone).empty());
}

TEST(Roster, a_worker_that_lost_the_answer_of_a_barrier_is_answered_at_once) {
  RunningJob job;
  job.table.barrier(job.worker0, 0);
  job.table.down(job.worker0);
  job.table.barrier(job.worker1, 0);
  const PeerId again = job.table.join(worker_join(0, "alpha:10"), Epoch(1));
  job.table.barrier(again, 0);
  EXPECT_EQ(job.table.sent(again, Kind::kBarrierDone).size(), 1U);
  job.table.barrier(again, 1);
  EXPECT_EQ(job.table.sent(again, Kind::kBarrierDone).size(), 1U) << "the next one is open";
}

TEST(Roster, a_barrier_that_a_worker_left_without_can_never_end_and_says_so) {
  RunningJob job;
  job.table.barrier(job.worker0, 0);
  job.table.leave(job.worker1, 1, true);
  auto done = job.table.sent(job.worker0, Kind::kBarrierDone);
  ASSERT_EQ(done.size(), 1U) << "who waits already";
  EXPECT_EQ(done[0].header.flags, wire::kNeverDone);
  EXPECT_EQ(done[0].header.worker, WorkerRank(1));
  job.table.barrier(job.worker0, 1);
  done = job.table.sent(job.worker0, Kind::kBarrierDone);
  ASSERT_EQ(done.size(), 2U) << "and who comes later";
  EXPECT_EQ(done[1].header.flags, wire::kNeverDone);
  EXPECT_FALSE(job.table.closed(job.worker0));
}

TEST(Roster, a_barrier_ends_well_when_a_worker_came_to_it_and_left_then) {
  RunningJob job;
  job.table.barrier(job.worker1, 0);
  job.table.leave(job.worker1, 1, true);
  job.table.barrier(job.worker0, 0);
  const auto done = job.table.sent(job.worker0, Kind::kBarrierDone);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].header.flags, 0);
  job.table.barrier(job.worker0, 1);
  EXPECT_EQ(job.table.sent(job.worker0, Kind::kBarrierDone).back().header.flags, wire::kNeverDone);
}

TEST(Roster, barriers_count_from_0_again_in_a_new_epoch) {
  RunningJob job;
  job.table.barrier(job.worker0, 0);
  job.table.barrier(job.worker1, 0);
  job.table.leave(job.worker0, 0, false);
  job.table.leave(job.worker1, 1, false);
  const PeerId alone = job.table.join(worker_join(0, "alpha:10", 1, 1));
  job.table.heartbeat(job.server, 2);
  job.table.barrier(alone, 0, 2);
  EXPECT_EQ(job.table.sent(alone, Kind::kBarrierDone).size(), 1U);
}

}  // namespace
}  // namespace byteps
