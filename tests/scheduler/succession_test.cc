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

TEST(Succession, a_spare_server_takes_the_place_when_nobody_is_back_in_a_third_of_the_time) {
  RecoveringJob job;
  const PeerId spare = job.table.join(server_join("delta:13", 4001));
  job.table.down(job.server);
  job.table.pass(kFailure / 3 - 100 * kMillisecond, {job.worker0, job.worker1, spare}, 1);
  EXPECT_THAT(job.table.sent(spare, Kind::kRoster), SizeIs(0));
  job.table.pass(200 * kMillisecond, {job.worker0, job.worker1, spare}, 1);
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

TEST(Succession, without_the_setting_a_lost_server_ends_the_job_as_ever) {
  RunningJob job;
  job.table.down(job.server);
  job.table.join(server_join("gamma:99", 5000, 0));
  job.table.pass(kFailure + kSecond, {job.worker0, job.worker1}, 1);
  EXPECT_THAT(job.table.text_to(job.worker0, Kind::kFail), HasSubstr("server 0 (gamma:12"));
}

}  // namespace
}  // namespace byteps
