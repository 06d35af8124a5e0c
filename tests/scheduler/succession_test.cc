// A server that is lost gets a successor.
#include "scheduler/succession.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/table.h"

namespace byteps {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using wire::Kind;
using Phase = RosterKeeper::Phase;

constexpr TimeNs kFailure = 3 * kSecond;

Config recovering_job() {
  Config config = small_job();
  config.recovers = true;
  config.timeout.recovery_ns = 20 * kSecond;
  return config;
}

struct RecoveringJob : RunningJob {
  RecoveringJob() : RunningJob(recovering_job()) { table.forget(); }
  std::vector<PeerId> workers() const { return {worker0, worker1}; }
  // This one takes the server's place, is lost as well, and has an heir itself.
  PeerId heir_of(const wire::Join& first) {
    table.down(server);
    const PeerId second = table.join(first);
    table.heartbeat(second, 1);
    table.down(second);
    const PeerId heir = table.join(server_join("gamma:99", 5000, 0));
    table.heartbeat(heir, 1);
    return heir;
  }
  // This server says that it has heard who leaves.
  void heed_leaves(PeerId from) {
    for (const auto& told : table.sent(from, Kind::kLeave)) {
      table.say(from, Kind::kLeave, wire::encode(wire::decode_leave(told.payload).value()),
                Epoch(1));
    }
  }
};

TEST(Succession, who_is_started_in_a_lost_servers_place_has_its_rank_and_slots_at_once) {
  RecoveringJob job;
  job.table.down(job.server);
  const PeerId heir = job.table.join(server_join("gamma:99", 5000, 0));
  const wire::Roster roster = job.table.roster_to(heir);
  EXPECT_EQ(roster.epoch, Epoch(1));
  EXPECT_EQ(roster.revision, 1U);
  EXPECT_EQ(roster.your_rank, 0U);
  ASSERT_THAT(roster.slots, SizeIs(1));
  EXPECT_EQ(roster.slots[0].since, 1U);
  EXPECT_EQ(roster.members[2].host, "gamma:99");
  EXPECT_THAT(job.table.sent(job.worker0, Kind::kRoster), SizeIs(0)) << "it does not serve yet";
  job.table.heartbeat(heir, 1);
  for (const PeerId worker : job.workers()) {
    EXPECT_EQ(job.table.roster_to(worker).revision, 1U);
    EXPECT_EQ(job.table.roster_to(worker).members[2].endpoints[0].port, 5000);
  }
  EXPECT_THAT(job.table.notices(LogLevel::kWarning),
              Contains(AllOf(HasSubstr("server 0 (gamma:12"), HasSubstr("connection reset by peer"),
                             HasSubstr("server 0 (gamma:99"), HasSubstr("takes its place"))));
  EXPECT_THAT(job.table.news(), Contains(HasSubstr("lost server 0 gamma:12")));
}

TEST(Succession, who_is_started_where_it_was_under_its_name_is_its_successor) {
  RecoveringJob job;
  job.table.down(job.server);
  const PeerId heir = job.table.join(server_join("gamma:12", 4000));
  EXPECT_EQ(job.table.roster_to(heir).revision, 1U);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
}

TEST(Succession, a_spare_server_takes_the_place_when_nobody_is_back_in_a_sixth_of_the_time) {
  RecoveringJob job;
  const PeerId spare = job.table.join(server_join("delta:13", 4001));
  job.table.down(job.server);
  job.table.pass(kFailure / 6 - 100 * kMillisecond, {job.worker0, job.worker1, spare}, 1);
  EXPECT_THAT(job.table.sent(spare, Kind::kRoster), SizeIs(0));
  job.table.pass(200 * kMillisecond, {job.worker0, job.worker1, spare}, 1);
  EXPECT_EQ(job.table.roster_to(spare).revision, 1U);
}

TEST(Succession, a_spare_server_that_says_nothing_takes_no_place) {
  RecoveringJob job;
  job.table.join(server_join("delta:13", 4001));
  const PeerId spare = job.table.join(server_join("delta:14", 4002));
  job.table.pass(2 * kSecond, {job.worker0, job.worker1, job.server, spare}, 1);
  job.table.down(job.server);
  job.table.pass(kSecond, {job.worker0, job.worker1, spare}, 1);
  EXPECT_EQ(job.table.roster_to(spare).revision, 1U);
}

TEST(Succession, one_that_is_back_before_a_successor_is_there_goes_on) {
  RecoveringJob job;
  job.table.down(job.server);
  job.table.pass(kFailure, job.workers(), 1);
  const PeerId again = job.table.join(server_join("gamma:12", 4000), Epoch(1));
  EXPECT_EQ(job.table.roster_to(again).revision, 0U);
  job.table.pass(10 * kSecond, {job.worker0, job.worker1, again}, 1);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
}

TEST(Succession, who_was_replaced_is_told_that_the_job_went_on_without_it_and_nothing_else) {
  RecoveringJob job;
  job.table.down(job.server);
  job.table.heartbeat(job.table.join(server_join("gamma:99", 5000, 0)), 1);
  const PeerId again = job.table.join(server_join("gamma:12", 4000), Epoch(1));
  EXPECT_THAT(job.table.text_to(again, Kind::kFail), HasSubstr("another server has its place"));
  EXPECT_THAT(job.table.sent(again, Kind::kRoster), SizeIs(0));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
}

// Found by the simulator, seed 8659813 with lost-server and cut: told nothing, it looked for a scheduler that was gone.
TEST(Succession, who_was_replaced_and_comes_back_when_the_job_is_over_hears_that_it_is) {
  RecoveringJob job;
  wire::Join first = server_join("gamma:98", 4999, 0);
  first.life = 77;
  const PeerId heir = job.heir_of(first);
  job.table.leave(job.worker0, 0, true);
  job.table.leave(job.worker1, 1, true);
  job.heed_leaves(heir);
  job.table.pass(100 * kMillisecond, {heir}, 1);
  ASSERT_EQ(job.table.keeper().phase(), Phase::kEnding);
  const PeerId again = job.table.join(first, Epoch(1));
  EXPECT_THAT(job.table.sent(again, Kind::kLeave), SizeIs(1));
  EXPECT_THAT(job.table.sent(again, Kind::kFail), SizeIs(0));
  wire::Join stranger = first;  // of another job, which had its scheduler at this address
  stranger.life = 78;
  const PeerId other = job.table.join(stranger, Epoch(1), Incarnation{std::byte{9}});
  EXPECT_THAT(job.table.sent(other, Kind::kLeave), SizeIs(0));
}

TEST(Succession, who_was_replaced_hears_so_when_the_workers_have_begun_again_meanwhile_too) {
  RecoveringJob job;
  wire::Join first = server_join("gamma:98", 4999, 0);
  first.life = 77;
  const PeerId heir = job.heir_of(first);
  job.table.leave(job.worker0, 0, false);
  job.table.leave(job.worker1, 1, false);
  job.heed_leaves(heir);
  job.table.down(job.worker0);
  job.table.down(job.worker1);
  job.table.join(worker_join(0, "alpha:10"));
  job.table.join(worker_join(1, "beta:11"));
  job.table.heartbeat(heir, 2);
  ASSERT_EQ(job.table.roster_to(heir).epoch, Epoch(2));
  const PeerId again = job.table.join(first, Epoch(1));
  EXPECT_THAT(job.table.text_to(again, Kind::kFail), HasSubstr("another server has its place"));
  // As one is to a scheduler that was started anew since.
  wire::Join stranger = server_join("gamma:97", 4998);
  stranger.life = 78;
  EXPECT_THAT(job.table.text_to(job.table.join(stranger, Epoch(1)), Kind::kFail),
              HasSubstr("another server has its place"));
  stranger.life = 79;
  EXPECT_THAT(job.table.text_to(job.table.join(stranger, Epoch(3)), Kind::kFail),
              HasSubstr("which this scheduler does not know or which is over"));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
}

// Found by the simulator, seed 8754944 with lost-server and cut: it was refused, as if two servers had one address.
TEST(Succession, who_is_started_anew_between_two_epochs_waits_until_its_old_connection_ends) {
  RecoveringJob job;
  job.table.down(job.server);
  wire::Join first = server_join("gamma:98", 4999, 0);
  first.life = 77;
  const PeerId old = job.table.join(first);
  job.table.heartbeat(old, 1);
  job.table.leave(job.worker0, 0, false);
  job.table.leave(job.worker1, 1, false);
  job.heed_leaves(old);
  job.table.pass(100 * kMillisecond, {old}, 1);
  wire::Join anew = server_join("gamma:99", 4999);
  anew.life = 78;
  const PeerId early = job.table.join(anew);
  EXPECT_TRUE(job.table.closed(early)) << "to try again";
  EXPECT_THAT(job.table.sent(early, Kind::kFail), SizeIs(0));
  job.table.down(old);
  const PeerId late = job.table.join(anew);
  EXPECT_FALSE(job.table.closed(late));
  EXPECT_THAT(job.table.sent(late, Kind::kFail), SizeIs(0));
}

TEST(Succession, one_that_takes_a_place_while_a_worker_leaves_hears_so_and_the_worker_may_go) {
  RecoveringJob job;
  job.table.leave(job.worker1, 1, true);
  EXPECT_THAT(job.table.sent(job.server, Kind::kLeave), SizeIs(1));
  job.table.down(job.server);
  const PeerId heir = job.table.join(server_join("gamma:99", 5000, 0));
  job.table.heartbeat(heir, 1);
  job.table.tick();
  const auto told = job.table.sent(heir, Kind::kLeave);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_THAT(job.table.sent(job.worker1, Kind::kLeave), SizeIs(0)) << "nobody knows it yet";
  job.table.say(heir, Kind::kLeave, wire::encode(wire::decode_leave(told[0].payload).value()),
                Epoch(1));
  job.table.tick();
  EXPECT_THAT(job.table.sent(job.worker1, Kind::kLeave), SizeIs(1));
}

TEST(Succession, a_server_that_says_nothing_is_lost_where_there_is_no_spare_one_and_may_come_back) {
  RecoveringJob job;
  job.table.pass(4 * kSecond, job.workers(), 1);
  EXPECT_TRUE(job.table.closed(job.server));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  const PeerId again = job.table.join(server_join("gamma:12", 4000), Epoch(1));
  EXPECT_EQ(job.table.roster_to(again).revision, 0U);
  job.table.pass(30 * kSecond, {job.worker0, job.worker1, again}, 1);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
}

TEST(Succession, a_server_that_says_nothing_is_replaced_by_a_spare_and_hears_no_more) {
  RecoveringJob job;
  const PeerId spare = job.table.join(server_join("delta:13", 4001));
  job.table.pass(4 * kSecond, {job.worker0, job.worker1, spare}, 1);
  EXPECT_EQ(job.table.roster_to(spare).revision, 1U);
  EXPECT_TRUE(job.table.closed(job.server));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
}

TEST(Succession, without_a_successor_the_job_ends_when_the_time_for_that_is_over) {
  RecoveringJob job;
  job.table.down(job.server);
  job.table.pass(19 * kSecond, job.workers(), 1);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  job.table.pass(2 * kSecond, job.workers(), 1);
  EXPECT_THAT(job.table.text_to(job.worker0, Kind::kFail), HasSubstr("server 0 (gamma:12"));
}

TEST(Succession, the_successor_may_be_lost_before_it_serves_and_has_one_itself) {
  RecoveringJob job;
  job.table.down(job.server);
  const PeerId first = job.table.join(server_join("gamma:98", 5000, 0));
  job.table.down(first);
  const PeerId second = job.table.join(server_join("gamma:99", 6000, 0));
  EXPECT_EQ(job.table.roster_to(second).revision, 2U);
  EXPECT_EQ(job.table.roster_to(second).slots[0].since, 2U);
  job.table.heartbeat(second, 1);
  EXPECT_EQ(job.table.roster_to(job.worker1).revision, 2U);
}

TEST(Succession, while_one_successor_does_not_serve_yet_nobody_hears_of_another) {
  Config config = recovering_job();
  config.job.server_count = 2;
  Table table(config);
  const PeerId worker = table.join(worker_join(0, "alpha:10", 2, 2));
  table.join(worker_join(1, "beta:11", 2, 2));
  const PeerId server0 = table.join(server_join("gamma:12", 4000, 0));
  const PeerId server1 = table.join(server_join("gamma:13", 4001, 1));
  table.heartbeat(server0, 1);
  table.heartbeat(server1, 1);
  table.forget();
  table.down(server0);
  const PeerId heir0 = table.join(server_join("gamma:22", 5000, 0));
  table.down(server1);
  const PeerId heir1 = table.join(server_join("gamma:23", 5001, 1));
  table.heartbeat(heir1, 1);
  EXPECT_THAT(table.sent(worker, Kind::kRoster), SizeIs(0));
  const PeerId again = table.join(worker_join(0, "alpha:10", 2, 2), Epoch(1));
  EXPECT_EQ(table.roster_to(again).revision, 0U);
  table.heartbeat(heir0, 1);
  EXPECT_EQ(table.roster_to(again).revision, 2U);
}

TEST(Succession, a_server_with_fewer_shards_than_are_served_takes_no_place) {
  Config config = recovering_job();
  Table table(config);
  const PeerId worker = table.join(worker_join(0, "alpha:10"));
  table.join(worker_join(1, "beta:11"));
  wire::Join wide = server_join("gamma:12", 4000);
  wide.endpoints.push_back({"10.0.0.2", 4001});
  const PeerId server = table.join(wide);
  table.heartbeat(server, 1);
  table.down(server);
  const PeerId narrow = table.join(server_join("gamma:98", 5000, 0));
  EXPECT_THAT(table.sent(narrow, Kind::kRoster), SizeIs(0));
  wide.endpoints = {{"10.0.0.3", 4000}, {"10.0.0.3", 4001}};
  wide.host = "gamma:99";
  const PeerId heir = table.join(wide);
  table.pass(2 * kSecond, {worker, heir, narrow}, 1);
  EXPECT_EQ(table.roster_to(heir).revision, 1U);
}

TEST(Succession,
     a_spare_server_that_is_started_again_at_its_address_has_the_shards_that_it_says_now) {
  RecoveringJob job;
  wire::Join wide = server_join("delta:13", 4001);
  wide.endpoints.push_back({"10.0.0.2", 4002});
  wide.life = 1;
  job.table.down(job.table.join(wide));
  wire::Join narrow = server_join("delta:14", 4001);
  narrow.life = 2;
  const PeerId spare = job.table.join(narrow);
  job.table.down(job.server);
  job.table.pass(kSecond, {job.worker0, job.worker1, spare}, 1);
  const wire::Roster roster = job.table.roster_to(spare);
  EXPECT_THAT(roster.members.at(2).endpoints, SizeIs(1));
  EXPECT_EQ(roster.members.at(2).host, "delta:14");
}

TEST(Succession, without_the_setting_a_lost_server_ends_the_job_as_ever) {
  RunningJob job;
  job.table.down(job.server);
  job.table.join(server_join("gamma:99", 5000, 0));
  job.table.pass(kFailure + kSecond, {job.worker0, job.worker1}, 1);
  EXPECT_THAT(job.table.text_to(job.worker0, Kind::kFail), HasSubstr("server 0 (gamma:12"));
}

// ---- adoption

wire::Adopt adopt_of(const Table::Out& sent) {
  return sent.empty() ? wire::Adopt{} : wire::decode_adopt(sent.back().payload).value();
}

// Two workers and three servers of one shard each.
struct JobOfThree {
  JobOfThree() : table(config()) {
    worker0 = table.join(worker_join(0, "alpha:10", 2, 3));
    worker1 = table.join(worker_join(1, "beta:11", 2, 3));
    for (std::uint32_t i = 0; i < 3; ++i) servers.push_back(table.join(join_of(i)));
    for (const PeerId server : servers) table.heartbeat(server, 1);
    table.forget();
  }
  static Config config() {
    Config config = recovering_job();
    config.job.server_count = 3;
    return config;
  }
  static wire::Join join_of(std::uint32_t number) {
    return server_join("gamma:" + std::to_string(20 + number),
                       static_cast<std::uint16_t>(4000 + number), number);
  }
  // One more unit of this server.
  PeerId unit_of(std::uint32_t server, std::uint32_t rank) {
    return table.join(server_join("gamma:" + std::to_string(20 + server), next_port++, rank));
  }
  // While these servers and the workers live.
  void pass(TimeNs duration, std::vector<PeerId> alive) {
    alive.insert(alive.end(), {worker0, worker1});
    table.pass(duration, alive, 1);
  }
  Table table;
  PeerId worker0, worker1;
  std::vector<PeerId> servers;
  std::uint16_t next_port = 5000;
};

TEST(Adoption, where_there_is_no_spare_server_a_survivor_is_asked_and_its_unit_takes_the_place) {
  JobOfThree job;
  job.table.down(job.servers[1]);
  job.pass(kFailure / 6 - 100 * kMillisecond, {job.servers[0], job.servers[2]});
  EXPECT_THAT(job.table.sent(job.servers[0], Kind::kAdopt), SizeIs(0)) << "it may be back";
  job.pass(200 * kMillisecond, {job.servers[0], job.servers[2]});
  ASSERT_THAT(job.table.sent(job.servers[0], Kind::kAdopt), SizeIs(1));
  EXPECT_EQ(adopt_of(job.table.sent(job.servers[0], Kind::kAdopt)),
            (wire::Adopt{.rank = 1, .shards = 1}));
  EXPECT_THAT(job.table.sent(job.servers[2], Kind::kAdopt), SizeIs(0));
  const PeerId unit = job.unit_of(0, 1);
  EXPECT_EQ(job.table.roster_to(unit).your_rank, 1U);
  job.table.heartbeat(unit, 1);
  const wire::Roster roster = job.table.roster_to(job.worker0);
  EXPECT_EQ(roster.revision, 1U);
  EXPECT_EQ(roster.members[2].host, roster.members[3].host) << "one process has two places";
  EXPECT_EQ(roster.slots[1].since, 1U);
  EXPECT_EQ(roster.slots[0].since, 0U);
}

TEST(Adoption, when_nothing_comes_of_it_others_are_asked_and_then_all_again) {
  JobOfThree job;
  job.table.down(job.servers[1]);
  job.pass(kFailure / 6 + 100 * kMillisecond, {job.servers[0], job.servers[2]});
  EXPECT_THAT(job.table.sent(job.servers[0], Kind::kAdopt), SizeIs(1));
  job.pass(kFailure / 3, {job.servers[0], job.servers[2]});
  EXPECT_THAT(job.table.sent(job.servers[2], Kind::kAdopt), SizeIs(1));
  job.pass(kFailure / 3, {job.servers[0], job.servers[2]});
  EXPECT_THAT(job.table.sent(job.servers[0], Kind::kAdopt), SizeIs(2));
}

TEST(Adoption, who_was_asked_and_is_lost_is_not_waited_for) {
  JobOfThree job;
  job.table.down(job.servers[1]);
  job.pass(kFailure / 6 + 100 * kMillisecond, {job.servers[0], job.servers[2]});
  job.table.down(job.servers[0]);
  job.table.tick();
  EXPECT_EQ(adopt_of(job.table.sent(job.servers[2], Kind::kAdopt)).rank, 1U);
  job.pass(kFailure / 6 + 100 * kMillisecond, {job.servers[2]});
  EXPECT_EQ(adopt_of(job.table.sent(job.servers[2], Kind::kAdopt)).rank, 0U);
}

TEST(Adoption, the_process_that_serves_least_is_asked_and_one_with_two_places_can_lose_both) {
  JobOfThree job;
  job.table.down(job.servers[1]);
  job.pass(kFailure / 6 + 100 * kMillisecond, {job.servers[0], job.servers[2]});
  const PeerId unit = job.unit_of(0, 1);
  job.table.heartbeat(unit, 1);
  job.table.forget();
  job.table.down(job.servers[0]);
  job.table.down(unit);
  job.pass(kFailure / 6 + 100 * kMillisecond, {job.servers[2]});
  EXPECT_THAT(job.table.sent(job.servers[2], Kind::kAdopt), SizeIs(2));
  job.table.heartbeat(job.unit_of(2, 0), 1);
  EXPECT_THAT(job.table.sent(job.worker0, Kind::kRoster), SizeIs(1));
  const PeerId last = job.unit_of(2, 1);
  job.table.heartbeat(last, 1);
  EXPECT_EQ(job.table.roster_to(job.worker0).revision, 3U);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
}

TEST(Adoption, a_server_that_is_back_before_the_unit_keeps_its_place_and_the_unit_is_spare) {
  JobOfThree job;
  job.table.down(job.servers[1]);
  job.pass(kFailure / 6 + 100 * kMillisecond, {job.servers[0], job.servers[2]});
  const PeerId again = job.table.join(JobOfThree::join_of(1), Epoch(1));
  const PeerId unit = job.unit_of(0, 1);
  EXPECT_THAT(job.table.sent(unit, Kind::kRoster), SizeIs(0));
  job.pass(kSecond, {job.servers[0], again, job.servers[2], unit});
  job.table.down(job.servers[2]);
  job.pass(kSecond, {job.servers[0], again, unit});
  EXPECT_EQ(job.table.roster_to(unit).your_rank, 2U) << "it takes the next place";
  EXPECT_THAT(job.table.sent(again, Kind::kAdopt), SizeIs(0));
}

TEST(Adoption, two_units_of_one_process_are_never_taken_for_each_other) {
  JobOfThree job;
  job.table.down(job.servers[1]);
  job.pass(kFailure / 6 + 100 * kMillisecond, {job.servers[0], job.servers[2]});
  const PeerId unit = job.unit_of(0, 1);
  job.table.heartbeat(unit, 1);
  job.table.down(unit);
  const PeerId again = job.table.join(server_join("gamma:20", 5000, 1), Epoch(1));
  EXPECT_EQ(job.table.roster_to(again).your_rank, 1U);
  EXPECT_FALSE(job.table.closed(job.servers[0]));
}

TEST(Adoption, the_only_server_of_a_job_is_waited_for_as_ever) {
  RecoveringJob job;
  job.table.down(job.server);
  job.table.pass(10 * kSecond, job.workers(), 1);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  const PeerId heir = job.table.join(server_join("gamma:99", 5000, 0));
  EXPECT_EQ(job.table.roster_to(heir).revision, 1U);
}

// ---- leaving

TEST(Leaving, a_server_goes_when_all_know_that_a_spare_one_has_its_place) {
  JobOfThree job;
  const PeerId spare = job.table.join(server_join("delta:13", 6000));
  job.table.leave(job.servers[1], 0, true);
  EXPECT_EQ(job.table.roster_to(spare).your_rank, 1U);
  EXPECT_THAT(job.table.sent(job.servers[1], Kind::kFail), SizeIs(0)) << "it serves still";
  EXPECT_FALSE(job.table.closed(job.servers[1]));
  job.table.heartbeat(spare, 1);
  EXPECT_EQ(job.table.roster_to(job.worker1).revision, 1U);
  EXPECT_THAT(job.table.text_to(job.servers[1], Kind::kFail),
              AllOf(HasSubstr("server 1 (delta:13"), HasSubstr("has its place")));
  EXPECT_EQ(job.table.cause_to(job.servers[1]).kind, CauseKind::kReplaced);
  EXPECT_THAT(job.table.sent(job.servers[1], Kind::kRoster), SizeIs(0));
}

TEST(Leaving, one_that_says_so_again_on_a_new_connection_still_goes_when_all_know) {
  JobOfThree job;
  job.table.leave(job.servers[1], 0, true);
  job.table.down(job.servers[1]);
  const PeerId again = job.table.join(JobOfThree::join_of(1), Epoch(1));
  const PeerId unit = job.unit_of(0, 1);
  job.table.leave(again, 0, true);
  EXPECT_THAT(job.table.sent(again, Kind::kLeave), SizeIs(0));
  EXPECT_THAT(job.table.sent(again, Kind::kFail), SizeIs(0)) << "nobody knows its successor yet";
  job.table.heartbeat(unit, 1);
  EXPECT_THAT(job.table.text_to(again, Kind::kFail), HasSubstr("has its place"));
}

TEST(Leaving, when_the_job_fails_before_all_know_the_successor_it_goes_as_one_that_has_one) {
  JobOfThree job;
  job.table.join(server_join("delta:13", 6000));
  job.table.leave(job.servers[1], 0, true);
  EXPECT_THAT(job.table.sent(job.servers[1], Kind::kFail), SizeIs(0));
  job.table.say(job.worker0, Kind::kFail, wire::encode(wire::Text{"out of memory", 1}), Epoch(1));
  EXPECT_THAT(job.table.text_to(job.servers[1], Kind::kFail), HasSubstr("has its place"));
}

TEST(Leaving, without_a_spare_server_another_one_is_asked_at_once) {
  JobOfThree job;
  job.table.leave(job.servers[1], 0, true);
  EXPECT_EQ(adopt_of(job.table.sent(job.servers[0], Kind::kAdopt)).rank, 1U);
  EXPECT_THAT(job.table.text_to(job.servers[1], Kind::kWaiting),
              HasSubstr("server 0 (gamma:20 at 10.0.0.2:4000) is asked to take the place of server "
                        "1 (gamma:21"));
  job.table.heartbeat(job.unit_of(0, 1), 1);
  EXPECT_THAT(job.table.sent(job.servers[1], Kind::kFail), SizeIs(1));
}

TEST(Leaving, the_only_server_goes_on_and_says_so_until_another_comes) {
  RecoveringJob job;
  job.table.leave(job.server, 0, true);
  EXPECT_THAT(job.table.text_to(job.server, Kind::kWaiting),
              HasSubstr("goes on, for nobody can take its place"));
  job.table.pass(100 * kSecond, job.all(), 1);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  const PeerId heir = job.table.join(server_join("delta:13", 4001));
  job.table.heartbeat(heir, 1);
  EXPECT_EQ(job.table.roster_to(job.worker0).revision, 1U);
  EXPECT_THAT(job.table.sent(job.server, Kind::kFail), SizeIs(1));
}

TEST(Leaving, one_that_leaves_takes_a_lost_place_only_if_there_is_nobody_else) {
  JobOfThree job;
  job.table.leave(job.servers[0], 0, true);
  job.table.leave(job.servers[2], 0, true);
  job.table.forget();
  job.table.down(job.servers[1]);
  job.pass(kFailure / 6 + 100 * kMillisecond, {job.servers[0], job.servers[2]});
  const auto asked = job.table.sent(job.servers[0], Kind::kAdopt);
  ASSERT_THAT(asked, SizeIs(1));
  EXPECT_EQ(adopt_of(asked).rank, 1U);
  EXPECT_THAT(job.table.sent(job.servers[2], Kind::kAdopt), SizeIs(0));
}

TEST(Leaving, what_was_lost_with_its_connection_is_told_when_it_is_back) {
  JobOfThree job;
  const PeerId spare = job.table.join(server_join("delta:13", 6000));
  job.table.leave(job.servers[1], 0, true);
  job.table.down(job.servers[1]);
  job.table.heartbeat(spare, 1);
  const PeerId again = job.table.join(JobOfThree::join_of(1), Epoch(1));
  EXPECT_EQ(job.table.cause_to(again).kind, CauseKind::kReplaced);
}

TEST(Leaving, between_two_epochs_it_may_go_at_once) {
  RecoveringJob job;
  job.table.leave(job.server, 0, true);
  job.table.forget();
  job.table.leave(job.worker0, 0, false);
  job.table.leave(job.worker1, 1, false);
  for (const auto& told : job.table.sent(job.server, Kind::kLeave)) {  // it says that it knows
    const wire::Leave leave = wire::decode_leave(told.payload).value();
    job.table.say(job.server, Kind::kLeave, wire::encode(leave), Epoch(1));
  }
  job.table.forget();
  job.table.tick();
  EXPECT_EQ(job.table.keeper().phase(), Phase::kGathering);
  EXPECT_THAT(job.table.sent(job.server, Kind::kLeave), SizeIs(1));
}

TEST(Leaving, without_the_setting_it_ends_the_job_as_ever) {
  RunningJob job;
  job.table.leave(job.server, 0, true);
  EXPECT_THAT(job.table.text_to(job.worker0, Kind::kFail),
              HasSubstr("server 0 (gamma:12 at 10.0.0.2:4000) was stopped while the job ran"));
}

}  // namespace
}  // namespace byteps
