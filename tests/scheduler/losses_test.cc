// A job goes on without a worker that is lost.
#include "scheduler/losses.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "member/roster_check.h"
#include "tests/scheduler/table.h"

namespace byteps {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Kind;
using Phase = RosterKeeper::Phase;

constexpr TimeNs kFailure = 3 * kSecond;

Config continuing_job() {
  Config config = small_job(3);
  config.recovers = true;
  config.continues = true;
  config.timeout.recovery_ns = 20 * kSecond;
  return config;
}

// Three workers and a server.
struct ContinuingJob {
  explicit ContinuingJob(const Config& config = continuing_job()) : table(config) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      workers.push_back(table.join(worker_join(rank, "host:" + std::to_string(rank), 3)));
    }
    server = table.join(server_join("gamma:12", 4000));
    table.heartbeat(server, 1);
    for (const PeerId worker : workers) table.heartbeat(worker, 1);
    table.forget();
  }
  std::vector<PeerId> others(std::uint32_t but) const {
    std::vector<PeerId> found = {server};
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      if (rank != but) found.push_back(workers[rank]);
    }
    return found;
  }
  std::vector<WorkerRank> vacant_to(PeerId peer) const {
    return vacant_ranks(table.roster_to(peer));
  }
  Table table;
  std::vector<PeerId> workers;
  PeerId server;
};

TEST(Losses, who_has_started_a_worker_says_that_it_has_ended_and_nobody_waits) {
  ContinuingJob job;
  job.table.worker_ended(1, "was ended by signal SIGKILL");
  for (const PeerId each : job.others(1)) {
    EXPECT_THAT(job.vacant_to(each), ElementsAre(WorkerRank(1)));
    EXPECT_EQ(job.table.roster_to(each).revision, 1U);
  }
  EXPECT_TRUE(job.table.closed(job.workers[1])) << "though its connection was open still";
  EXPECT_THAT(job.table.notices(LogLevel::kWarning),
              Contains(AllOf(HasSubstr("worker 1 (host:1) was ended by signal SIGKILL"),
                             HasSubstr("the 2 workers that are left"))));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
}

TEST(Losses, a_scheduler_that_stood_still_takes_nobody_else_for_silent_when_it_hears_of_an_end) {
  ContinuingJob job;
  job.table.stand_still(2 * kFailure);
  job.table.worker_ended(1, "was ended by signal SIGKILL");
  EXPECT_THAT(job.vacant_to(job.server), ElementsAre(WorkerRank(1)));
  for (const PeerId each : job.others(1)) EXPECT_FALSE(job.table.closed(each));
}

TEST(Losses, without_that_word_a_third_of_the_failure_timeout_is_waited) {
  ContinuingJob job;
  job.table.down(job.workers[1]);
  job.table.pass(kFailure / 3 - 100 * kMillisecond, job.others(1), 1);
  EXPECT_THAT(job.vacant_to(job.server), IsEmpty());
  job.table.pass(200 * kMillisecond, job.others(1), 1);
  EXPECT_THAT(job.vacant_to(job.server), ElementsAre(WorkerRank(1)));
}

TEST(Losses, who_is_back_in_time_is_not_lost) {
  ContinuingJob job;
  job.table.down(job.workers[1]);
  job.table.pass(kFailure / 6, job.others(1), 1);
  job.table.join(worker_join(1, "host:1", 3), Epoch(1));
  job.table.pass(kFailure / 2, job.others(1), 1);
  EXPECT_THAT(job.vacant_to(job.server), IsEmpty());
}

TEST(Losses, who_stands_still_is_lost_and_told_so_when_it_is_back) {
  ContinuingJob job;
  job.table.pass(kFailure + kFailure / 6 + 200 * kMillisecond, job.others(1), 1);
  EXPECT_THAT(job.vacant_to(job.server), ElementsAre(WorkerRank(1)));
  EXPECT_TRUE(job.table.closed(job.workers[1]));
  const PeerId back = job.table.join(worker_join(1, "host:1", 3), Epoch(1));
  EXPECT_THAT(job.table.text_to(back, Kind::kFail), HasSubstr("the job goes on without it"));
  EXPECT_EQ(job.table.cause_to(back).kind, CauseKind::kReplaced);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
}

TEST(Losses, a_barrier_is_of_those_that_are_left) {
  ContinuingJob job;
  job.table.barrier(job.workers[0], 0);
  job.table.barrier(job.workers[2], 0);
  EXPECT_THAT(job.table.sent(job.workers[0], Kind::kBarrierDone), IsEmpty());
  job.table.worker_ended(1, "was ended by signal SIGKILL");
  EXPECT_THAT(job.table.sent(job.workers[0], Kind::kBarrierDone), SizeIs(1));
  job.table.barrier(job.workers[0], 1);
  job.table.barrier(job.workers[2], 1);
  EXPECT_THAT(job.table.sent(job.workers[2], Kind::kBarrierDone), SizeIs(2));
}

TEST(Losses, who_had_come_to_a_barrier_and_is_lost_does_not_count_twice) {
  ContinuingJob job;
  job.table.barrier(job.workers[1], 0);
  job.table.worker_ended(1, "was ended by signal SIGKILL");
  job.table.barrier(job.workers[0], 0);
  EXPECT_THAT(job.table.sent(job.workers[0], Kind::kBarrierDone), IsEmpty());
  job.table.barrier(job.workers[2], 0);
  EXPECT_THAT(job.table.sent(job.workers[0], Kind::kBarrierDone), SizeIs(1));
}

TEST(Losses, the_job_ends_well_when_all_that_are_left_have_left) {
  ContinuingJob job;
  job.table.worker_ended(1, "was ended by signal SIGKILL");
  job.table.leave(job.workers[0], 0, true);
  job.table.leave(job.workers[2], 2, true);
  job.table.say(job.server, Kind::kLeave,
                wire::encode(wire::Leave{true, Members(std::vector<std::uint32_t>{0, 2})}),
                Epoch(1));
  job.table.pass(100 * kMillisecond, {job.server}, 1);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kEnding);
  EXPECT_TRUE(job.table.keeper().outcome().is_ok()) << job.table.keeper().outcome().text();
}

TEST(Losses, without_the_last_worker_there_is_no_job) {
  ContinuingJob job;
  job.table.worker_ended(0, "was ended by signal SIGKILL");
  job.table.worker_ended(1, "was ended by signal SIGKILL");
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  job.table.worker_ended(2, "was ended by signal SIGSEGV");
  EXPECT_EQ(job.table.keeper().phase(), Phase::kEnding);
  EXPECT_THAT(job.table.keeper().outcome().message(),
              AllOf(HasSubstr("worker 2"), HasSubstr("SIGSEGV")));
}

TEST(Losses, when_most_are_away_at_once_it_is_the_scheduler_that_is_cut_off) {
  ContinuingJob job;
  job.table.pass(2 * kFailure, {job.server}, 1);
  EXPECT_THAT(job.vacant_to(job.server), IsEmpty());
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  job.table.pass(25 * kSecond, {job.server}, 1);
  EXPECT_FALSE(job.table.keeper().outcome().is_ok()) << "but not for ever";
}

// They come back one by one, and their connections have ended long ago.
TEST(Losses, when_most_are_back_the_others_have_the_failure_timeout_to_come_back_too) {
  ContinuingJob job;
  for (const PeerId each : job.others(3)) job.table.down(each, "connection timed out");
  job.table.pass(2 * kFailure);
  std::vector<PeerId> back = {job.table.join(server_join("gamma:12", 4000), Epoch(1))};
  for (const std::uint32_t rank : {0U, 1U}) {
    back.push_back(job.table.join(worker_join(rank, "host:" + std::to_string(rank), 3), Epoch(1)));
    job.table.tick();
    EXPECT_THAT(job.vacant_to(back[0]), IsEmpty());
  }
  job.table.pass(kFailure - 300 * kMillisecond, back, 1);
  EXPECT_THAT(job.vacant_to(back[0]), IsEmpty());
  job.table.pass(600 * kMillisecond, back, 1);
  EXPECT_THAT(job.vacant_to(back[0]), ElementsAre(WorkerRank(2)));
}

// Who has said something last is silent for too long a little later than the first.
TEST(Losses, it_is_cut_off_though_not_all_have_been_silent_for_as_long) {
  ContinuingJob job;
  job.table.pass(kFailure / 6, {job.server, job.workers[1], job.workers[2]}, 1);
  job.table.pass(2 * kFailure);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  job.table.join(server_join("gamma:12", 4000), Epoch(1));
  std::vector<PeerId> back;
  for (const std::uint32_t rank : {0U, 1U, 2U}) {
    back.push_back(job.table.join(worker_join(rank, "host:" + std::to_string(rank), 3), Epoch(1)));
    EXPECT_THAT(job.vacant_to(back.back()), IsEmpty());
  }
}

TEST(Losses, a_job_that_ends_with_a_worker_does_not_end_with_a_cable_of_its_scheduler) {
  Config config = continuing_job();
  config.continues = false;
  ContinuingJob job(config);
  job.table.pass(2 * kFailure);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  std::vector<PeerId> back = {job.table.join(server_join("gamma:12", 4000), Epoch(1))};
  for (const std::uint32_t rank : {0U, 1U}) {
    back.push_back(job.table.join(worker_join(rank, "host:" + std::to_string(rank), 3), Epoch(1)));
  }
  job.table.pass(kFailure - 300 * kMillisecond, back, 1);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  job.table.pass(600 * kMillisecond, back, 1);
  EXPECT_THAT(job.table.keeper().outcome().message(), HasSubstr("worker 2")) << "it is not back";
}

// Their ends were said: that is no cable.
TEST(Losses, and_where_most_processes_have_ended_it_ends_as_ever) {
  Config config = continuing_job();
  config.continues = false;
  ContinuingJob job(config);
  for (const PeerId each : job.workers)
    job.table.down(each, "the other side closed the connection");
  job.table.pass(kFailure + 100 * kMillisecond, {job.server}, 1);
  EXPECT_FALSE(job.table.keeper().outcome().is_ok());
}

TEST(Losses, a_worker_that_has_ended_before_the_job_was_complete_ends_it) {
  Table table(continuing_job());
  table.join(worker_join(0, "host:0", 3));
  table.worker_ended(1, "was ended by signal SIGILL");
  table.pass(kFailure + kFailure / 3);
  EXPECT_EQ(table.keeper().phase(), Phase::kEnding);
  EXPECT_THAT(table.keeper().outcome().message(),
              AllOf(HasSubstr("worker 1"), HasSubstr("SIGILL")));
}

TEST(Losses, where_the_job_is_to_fail_it_does) {
  Config config = continuing_job();
  config.continues = false;
  ContinuingJob job(config);
  job.table.worker_ended(1, "was ended by signal SIGKILL");
  job.table.down(job.workers[1]);
  job.table.pass(2 * kFailure, job.others(1), 1);
  EXPECT_THAT(job.table.keeper().outcome().message(), HasSubstr("worker 1"));
}

TEST(Losses, a_lost_server_and_a_lost_worker_of_one_machine_are_two_revisions) {
  ContinuingJob job;
  job.table.down(job.server);
  job.table.worker_ended(1, "was lost with its host");
  EXPECT_THAT(job.vacant_to(job.workers[0]), ElementsAre(WorkerRank(1)));
  const PeerId heir = job.table.join(server_join("gamma:99", 5000, 0));
  EXPECT_THAT(job.vacant_to(heir), ElementsAre(WorkerRank(1)));
  job.table.heartbeat(heir, 1);
  EXPECT_THAT(job.vacant_to(job.workers[0]), ElementsAre(WorkerRank(1)));
  EXPECT_EQ(job.table.roster_to(job.workers[0]).revision, 2U);
}

}  // namespace
}  // namespace byteps
