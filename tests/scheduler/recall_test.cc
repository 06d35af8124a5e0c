// A scheduler that was begun anew, whose members have a job that runs.
#include "scheduler/recall.h"

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
using testing::Not;
using testing::SizeIs;
using wire::Kind;
using Phase = RosterKeeper::Phase;

constexpr TimeNs kFailure = 3 * kSecond;
constexpr Incarnation kJob{std::byte{7}};

Config recovering_job() {
  Config config = small_job();
  config.recovers = true;
  config.timeout.recovery_ns = 20 * kSecond;
  config.job.incarnation = {std::byte{0}, std::byte{5}};
  return config;
}

// What the members of a job with two workers and one server were told by the scheduler before.
wire::Roster roster_of(std::uint32_t revision = 0) {
  wire::Roster roster;
  roster.epoch = Epoch(4);
  roster.revision = revision;
  roster.partition_bytes = 6400;
  roster.frame_bytes = 640;
  roster.recovers = true;
  roster.incarnation = kJob;
  for (const wire::Join& join : {worker_join(0, "alpha:10"), worker_join(1, "beta:11")}) {
    wire::RosterMember& member = roster.members.emplace_back();
    member.role = Role::kWorker;
    member.rank = join.wanted_rank;
    member.host = join.host;
    member.life = 100 + join.wanted_rank;
  }
  wire::RosterMember& server = roster.members.emplace_back();
  server.role = Role::kServer;
  server.host = "gamma:12";
  server.endpoints = {{"10.0.0.2", 4000}};
  server.life = 200;
  roster.slots = {{.server = 0, .shard = 0, .weight = 256}};
  return roster;
}

struct BegunAnew {
  explicit BegunAnew(const Config& config = recovering_job()) : table(config) {}

  static wire::Join heard(wire::Join join, std::uint64_t life, std::uint32_t term = 1,
                          std::uint32_t revision = 0) {
    join.life = life;
    join.heard.term = term;
    join.heard.epoch = Epoch(4);
    join.heard.revision = revision;
    return join;
  }
  static wire::Join worker(std::uint32_t rank, std::uint32_t term = 1, std::uint32_t revision = 0) {
    const std::string host = rank == 0 ? "alpha:10" : "beta:11";
    return heard(worker_join(rank, host), 100 + rank, term, revision);
  }
  static wire::Join server(std::uint32_t term = 1, std::uint32_t revision = 0) {
    return heard(server_join("gamma:12", 4000), 200, term, revision);
  }
  PeerId join(const wire::Join& join) {
    const PeerId peer = table.join(join, Epoch(4), kJob);
    table.tick();
    return peer;
  }
  void answer(PeerId peer, const wire::Roster& roster) {
    table.say(peer, Kind::kRoster, wire::encode(roster), Epoch(4));
    table.tick();
  }
  // All are back, and it has the roster.
  std::vector<PeerId> all_back() {
    std::vector<PeerId> peers = {join(worker(0)), join(worker(1)), join(server())};
    answer(peers[0], roster_of());
    return peers;
  }
  std::uint32_t term_to(PeerId peer) const {
    return table.sent(peer, Kind::kRoster).back().header.round.value;
  }
  Table table;
};

TEST(Recall, it_goes_on_with_the_roster_of_a_member_under_a_higher_term_when_all_are_back) {
  BegunAnew job;
  const PeerId worker0 = job.join(BegunAnew::worker(0));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRecalling);
  EXPECT_THAT(job.table.sent(worker0, Kind::kRecall), SizeIs(1));
  job.answer(worker0, roster_of());
  const PeerId server = job.join(BegunAnew::server());
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRecalling);
  const PeerId worker1 = job.join(BegunAnew::worker(1));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  EXPECT_EQ(job.table.keeper().epoch(), Epoch(4));
  for (const PeerId peer : {worker0, worker1, server}) {
    EXPECT_EQ(job.table.roster_to(peer), [&] {
      wire::Roster same = roster_of();
      same.your_rank = peer == worker1 ? 1 : 0;
      return same;
    }());
    EXPECT_EQ(job.term_to(peer), 2U);
  }
  EXPECT_THAT(job.table.notices(LogLevel::kWarning),
              Contains(AllOf(HasSubstr("3 of 3 members are back"), HasSubstr("term 2"))));
}

TEST(Recall, the_places_of_its_workers_are_those_of_the_roster) {
  const auto place_at = [](std::uint8_t bus) {
    topology::Place place;
    place.device = {{{.domain = 0, .bus = bus, .slot = 0}, 126'030}};
    return place;
  };
  BegunAnew job;
  wire::Roster roster = roster_of();
  roster.places = {place_at(5), place_at(6)};
  roster.members[0].place = 2;
  roster.members[1].place = 1;
  const PeerId worker0 = job.join(BegunAnew::worker(0));
  job.answer(worker0, roster);
  job.join(BegunAnew::worker(1));
  const PeerId server = job.join(BegunAnew::server());
  ASSERT_EQ(job.table.keeper().phase(), Phase::kRunning);
  EXPECT_EQ(job.table.roster_to(server).places, roster.places);
  EXPECT_EQ(job.table.roster_to(worker0).members, roster.members);
}

TEST(Recall, the_newest_roster_counts_and_is_asked_of_who_has_it) {
  BegunAnew job;
  const PeerId worker0 = job.join(BegunAnew::worker(0));
  job.answer(worker0, roster_of());
  const PeerId server = job.join(BegunAnew::server(3, 2));
  EXPECT_THAT(job.table.sent(server, Kind::kRecall), SizeIs(1));
  const PeerId worker1 = job.join(BegunAnew::worker(1));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRecalling);
  wire::Roster newer = roster_of(2);
  newer.slots[0].since = 2;
  job.answer(server, newer);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  EXPECT_EQ(job.table.roster_to(worker1).revision, 2U);
  EXPECT_EQ(job.term_to(worker1), 4U);
}

TEST(Recall, one_that_is_gone_before_it_has_answered_is_not_waited_for) {
  BegunAnew job;
  const PeerId first = job.join(BegunAnew::worker(0));
  job.table.down(first);
  const PeerId again = job.join(BegunAnew::worker(0));
  EXPECT_THAT(job.table.sent(again, Kind::kRecall), SizeIs(1));
}

TEST(Recall, a_barrier_that_some_know_to_be_done_is_done_for_all) {
  BegunAnew job;
  wire::Join further = BegunAnew::worker(0);
  further.heard.barriers = 3;
  const PeerId worker0 = job.join(further);
  job.answer(worker0, roster_of());
  const PeerId worker1 = job.join(BegunAnew::worker(1));
  job.join(BegunAnew::server());
  job.table.barrier(worker1, 2, 4);
  EXPECT_THAT(job.table.sent(worker1, Kind::kBarrierDone), SizeIs(1));
  job.table.barrier(worker1, 3, 4);
  EXPECT_THAT(job.table.sent(worker1, Kind::kBarrierDone), SizeIs(1)) << "the other has not come";
  job.table.barrier(worker0, 3, 4);
  EXPECT_THAT(job.table.sent(worker1, Kind::kBarrierDone), SizeIs(2));
}

TEST(Recall, a_worker_that_has_left_is_not_waited_for) {
  BegunAnew job;
  wire::Join server = BegunAnew::server();
  server.heard.left_for_good = {1};
  job.answer(job.join(server), roster_of());
  const PeerId worker0 = job.join(BegunAnew::worker(0));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  const auto told = job.table.sent(worker0, Kind::kLeave);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_THAT(wire::decode_leave(told[0].payload).value().who.some(), ElementsAre(1U));
}

TEST(Recall, a_server_that_is_not_back_is_replaced_and_no_revision_is_given_twice) {
  BegunAnew job;
  const PeerId worker0 = job.join(BegunAnew::worker(0));
  job.answer(worker0, roster_of());
  job.join(BegunAnew::worker(1));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRecalling);
  wire::Join fresh = server_join("gamma:99", 5000, 0);
  fresh.life = 300;
  const PeerId heir = job.table.join(fresh);
  job.table.tick();
  job.table.tick();
  EXPECT_EQ(job.table.roster_to(heir).epoch, Epoch(4));
  EXPECT_EQ(job.table.roster_to(heir).revision, 1024U + 5 + 1);
  EXPECT_THAT(job.table.sent(worker0, Kind::kRoster), IsEmpty()) << "it does not serve yet";
  job.table.heartbeat(heir, 4);
  EXPECT_EQ(job.table.roster_to(worker0).slots[0].since, 1024U + 5 + 1);
}

// It was started for another one, and somebody else was faster; the server that it names lives.
TEST(Recall, a_spare_server_that_has_waited_is_not_taken_for_one_that_was_started_just_now) {
  BegunAnew job;
  const PeerId worker0 = job.join(BegunAnew::worker(0));
  job.answer(worker0, roster_of());
  job.join(BegunAnew::worker(1));
  wire::Join spare = server_join("gamma:99", 5000, 0);
  spare.life = 300;
  spare.has_waited = true;
  const PeerId waiting = job.table.join(spare);
  job.table.tick();
  job.table.tick();
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRecalling);
  job.join(BegunAnew::server());
  job.table.tick();
  EXPECT_NE(job.table.keeper().phase(), Phase::kRecalling);
  EXPECT_THAT(job.table.sent(waiting, Kind::kRoster), IsEmpty());
}

TEST(Recall, a_worker_that_is_not_back_in_time_ends_the_job_by_its_name) {
  BegunAnew job;
  const PeerId worker0 = job.join(BegunAnew::worker(0));
  job.answer(worker0, roster_of());
  const PeerId server = job.join(BegunAnew::server());
  job.table.pass(kFailure - 200 * kMillisecond, {worker0, server}, 4);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRecalling);
  job.table.pass(kSecond, {worker0, server}, 4);
  EXPECT_THAT(job.table.text_to(worker0, Kind::kFail), HasSubstr("worker 1 (beta:11"));
}

TEST(Recall, with_fewer_than_half_of_the_members_the_job_is_not_taken_up_and_they_are_refused) {
  BegunAnew job;
  const PeerId server = job.join(BegunAnew::server());
  job.answer(server, roster_of());
  job.table.pass(kFailure + kSecond, {server}, 4);
  EXPECT_THAT(job.table.text_to(server, Kind::kFail), HasSubstr("1 of 3 members are back"));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kGathering);
}

TEST(Recall, a_roster_that_nobody_asked_for_or_that_cannot_be_ends_the_connection) {
  BegunAnew job;
  const PeerId worker0 = job.join(BegunAnew::worker(0));
  const PeerId worker1 = job.join(BegunAnew::worker(1));
  job.answer(worker1, roster_of());
  EXPECT_TRUE(job.table.closed(worker1));
  wire::Roster without_workers = roster_of();
  without_workers.members.erase(without_workers.members.begin(),
                                without_workers.members.begin() + 2);
  job.answer(worker0, without_workers);
  EXPECT_TRUE(job.table.closed(worker0));
  const PeerId server = job.join(BegunAnew::server(wire::kCountMax + 1));
  EXPECT_THAT(job.table.text_to(server, Kind::kFail), HasSubstr("cannot be"));
}

TEST(Recall, who_leaves_is_answered_when_all_servers_know_it) {
  BegunAnew job;
  const std::vector<PeerId> peers = job.all_back();
  job.table.forget();
  job.table.leave(peers[1], 1, true, 4);
  EXPECT_THAT(job.table.sent(peers[1], Kind::kLeave), IsEmpty());
  const auto told = job.table.sent(peers[2], Kind::kLeave);
  ASSERT_THAT(told, SizeIs(1));
  job.table.say(peers[2], Kind::kLeave, wire::encode(wire::decode_leave(told[0].payload).value()),
                Epoch(4));
  job.table.tick();
  EXPECT_THAT(job.table.sent(peers[1], Kind::kLeave), SizeIs(1));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
}

TEST(Recall, one_of_a_lower_term_than_members_have_had_ends_and_is_to_be_started_anew) {
  BegunAnew job;
  const std::vector<PeerId> peers = job.all_back();
  job.table.down(peers[0]);
  job.table.forget();
  const PeerId again = job.join(BegunAnew::worker(0, 5));
  EXPECT_THAT(job.table.sent(again, Kind::kFail), IsEmpty());
  EXPECT_TRUE(job.table.keeper().ended());
  EXPECT_TRUE(job.table.keeper().outcome().is_because_of(CauseKind::kReplaced));
}

// What one server alone was told: worker 1 was given up.
wire::Roster without_worker_1(std::uint32_t revision) {
  wire::Roster roster = roster_of(revision);
  roster.members[1].vacant_since = revision;
  return roster;
}

// Of a job that goes on without workers that are lost: all are back but for a second server.
struct ContinuedAnew : BegunAnew {
  ContinuedAnew() : BegunAnew(continuing_job()) {
    for (const wire::Join& each : {worker(0), worker(1), server()}) peers.push_back(join(each));
    answer(peers[0], with_second_server(roster_of()));
    table.pass(kFailure / 2, peers, 4);
    EXPECT_EQ(table.keeper().phase(), Phase::kConfirming) << "nor has it a successor";
    table.forget();
  }
  static Config continuing_job() {
    Config config = recovering_job();
    config.continues = true;
    return config;
  }
  static wire::Roster with_second_server(wire::Roster roster) {
    wire::RosterMember& second = roster.members.emplace_back(roster.members.back());
    second.rank = 1;
    second.host = "delta:13";
    second.endpoints = {{"10.0.0.3", 4000}};
    second.life = 201;
    roster.slots.push_back({.server = 1, .shard = 0, .weight = 256});
    return roster;
  }
  static wire::Join second(std::uint32_t term, std::uint32_t revision) {
    wire::Join join = heard(server_join("delta:13", 4000), 201, term, revision);
    join.endpoints = {{"10.0.0.3", 4000}};
    return join;
  }
  std::vector<PeerId> peers;
};

TEST(Recall, who_is_back_later_and_alone_knows_of_a_loss_is_believed) {
  ContinuedAnew job;
  const PeerId back = job.join(ContinuedAnew::second(1, 1));
  EXPECT_THAT(job.table.sent(back, Kind::kRecall), SizeIs(1));
  EXPECT_THAT(job.table.sent(back, Kind::kRoster), IsEmpty()) << "or it could not say what it knew";
  job.answer(back, ContinuedAnew::with_second_server(without_worker_1(1)));
  for (const PeerId each : {job.peers[0], job.peers[2], back}) {
    const wire::Roster roster = job.table.roster_to(each);
    EXPECT_THAT(vacant_ranks(roster), ElementsAre(WorkerRank(1)));
    EXPECT_GT(roster.revision, 1U) << "a number of its own";
  }
  EXPECT_TRUE(job.table.closed(job.peers[1]));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kRunning);
  EXPECT_THAT(job.table.notices(LogLevel::kWarning),
              Contains(AllOf(HasSubstr("worker 1 (beta:11) was given up by a scheduler before"),
                             HasSubstr("server 1 (delta:13"))));
}

TEST(Recall, one_that_is_gone_before_it_has_said_what_it_knows_alone_is_asked_again) {
  ContinuedAnew job;
  job.table.down(job.join(ContinuedAnew::second(1, 1)));
  const PeerId again = job.join(ContinuedAnew::second(1, 1));
  EXPECT_THAT(job.table.sent(again, Kind::kRecall), SizeIs(1));
  job.answer(again, ContinuedAnew::with_second_server(roster_of(1)));
  EXPECT_THAT(job.table.sent(again, Kind::kRoster), Not(IsEmpty())) << "nobody was lost";
  EXPECT_THAT(vacant_ranks(job.table.roster_to(again)), IsEmpty());
}

TEST(Recall, who_is_back_later_and_knows_nothing_else_is_not_asked) {
  ContinuedAnew job;
  const PeerId back = job.join(ContinuedAnew::second(1, 0));
  EXPECT_THAT(job.table.sent(back, Kind::kRecall), IsEmpty());
  EXPECT_THAT(job.table.sent(back, Kind::kRoster), Not(IsEmpty()));
  job.table.worker_ended(1, "was ended by signal SIGKILL");
  const std::uint32_t revision = job.table.roster_to(back).revision;
  job.table.down(back);
  const PeerId again = job.join(ContinuedAnew::second(2, revision));
  EXPECT_THAT(job.table.sent(again, Kind::kRecall), IsEmpty()) << "it has that from this scheduler";
}

TEST(Recall, another_roster_than_the_one_that_it_told_of_ends_its_connection) {
  ContinuedAnew job;
  const PeerId back = job.join(ContinuedAnew::second(1, 1));
  job.answer(back, ContinuedAnew::with_second_server(without_worker_1(2)));
  EXPECT_TRUE(job.table.closed(back));
  EXPECT_FALSE(job.table.closed(job.peers[1]));
}

TEST(Recall, a_job_that_is_ended_meanwhile_is_not_taken_up) {
  BegunAnew job;
  const PeerId worker0 = job.join(BegunAnew::worker(0));
  job.answer(worker0, roster_of());
  job.table.say(worker0, Kind::kFail, wire::encode(wire::Text{"out of memory", 1}), Epoch(4));
  EXPECT_EQ(job.table.keeper().phase(), Phase::kEnding);
  job.table.pass(kSecond, {worker0}, 4);
  EXPECT_EQ(job.table.keeper().phase(), Phase::kEnding);
}

TEST(Recall, without_the_setting_members_of_a_job_are_refused_as_ever) {
  Table table;
  const PeerId worker = table.join(BegunAnew::worker(0), Epoch(4), kJob);
  EXPECT_THAT(table.text_to(worker, Kind::kFail), HasSubstr("was started anew"));
}

}  // namespace
}  // namespace byteps
