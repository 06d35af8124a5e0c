// The worker's shell and its door. The test plays the scheduler and the shards on a scripted transport, and is the
// clock.
#include "worker/worker.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/devices.h"
#include "loop/runner.h"
#include "tests/net/scripted_transport.h"

namespace byteps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using wire::Kind;

constexpr Incarnation kJob = {std::byte{9}};
const Endpoint kScheduler{"10.0.0.9", 9000};
const std::vector<Endpoint> kShards = {{"10.0.0.1", 7000}, {"10.0.0.2", 7000}};

Config two_workers() {
  Config config;
  config.job.scheduler_host = kScheduler.host;
  config.job.scheduler_port = kScheduler.port;
  config.job.worker_count = 2;
  config.job.server_count = 2;
  config.job.rank = 0;
  config.flow.partition_bytes = 64;
  config.flow.frame_bytes = 64;
  return config;
}

wire::Roster roster_of_two() {
  wire::Roster roster;
  roster.epoch = Epoch(1);
  roster.your_rank = 0;
  roster.partition_bytes = 64;
  roster.frame_bytes = 64;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    roster.members.push_back({.role = Role::kWorker, .rank = rank, .host = "w", .endpoints = {}});
  }
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    roster.members.push_back({.role = Role::kServer,
                              .rank = rank,
                              .host = "machine" + std::to_string(rank) + ":17",
                              .endpoints = {kShards[rank]}});
    roster.slots.push_back({.server = rank, .shard = 0, .weight = 256});
  }
  return roster;
}

class WorkerTest : public ::testing::Test {
 protected:
  explicit WorkerTest(const Config& config = two_workers(), bool has_relay = false)
      : config_(config), has_relay_(has_relay) {
    transport_.gives_back_at_once = true;
    transport_.answers[kScheduler.text()].role = Role::kScheduler;
    transport_.answers[kScheduler.text()].incarnation = kJob;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      Hello& server = transport_.answers[kShards[rank].text()];
      server.role = Role::kServer;
      server.rank = rank;
      server.epoch = Epoch(1);
      server.incarnation = kJob;
    }
  }
  void TearDown() override { EXPECT_FALSE(transport_.told) << "a worker accepts no connections"; }

  void turn(TimeNs after = kMillisecond) {
    now_ += after;
    do {
      for (int i = 0; i < 1000 && worker_.turn(now_) > 0; ++i) {
      }
    } while (!worker_.finished() && worker_.next_deadline() <= now_ && worker_.turn(now_) > 0);
  }
  // Time passes in small steps, as a runner would make it.
  void pass(TimeNs duration) {
    for (TimeNs end = now_ + duration; now_ < end && !worker_.finished();) turn(50 * kMillisecond);
  }
  // The scheduler stays alive meanwhile.
  void pass_with_heartbeats(TimeNs duration) {
    for (TimeNs end = now_ + duration; now_ < end && !worker_.finished();) {
      say(Kind::kHeartbeat);
      turn(50 * kMillisecond);
    }
  }
  PeerId scheduler() { return transport_.peer_at(kScheduler); }
  PeerId shard(std::size_t index) { return transport_.peer_at(kShards[index]); }
  void say(Kind kind, std::vector<std::byte> payload = {}, std::uint32_t about = 0) {
    wire::Header header;
    header.kind = kind;
    header.epoch = Epoch(1);
    header.worker = WorkerRank(about);
    transport_.say(scheduler(), header, std::move(payload));
  }
  void reach_scheduler() {
    turn();
    transport_.up(scheduler());
    turn();
  }
  void join(const wire::Roster& roster = roster_of_two()) {
    reach_scheduler();
    say(Kind::kRoster, wire::encode(roster));
    turn();
    for (std::size_t i = 0; i < 2; ++i) transport_.up(shard(i));
    turn();
    ASSERT_TRUE(door_.membership().state().is_ok()) << door_.membership().state().text();
  }
  HandleId submit(const std::string& name, std::vector<float>& values) {
    Submission one;
    one.name = name;
    one.input = values.data();
    one.output = values.data();
    one.element_count = values.size();
    const Result<HandleId> handle = door_.submit(one);
    EXPECT_TRUE(handle.is_ok()) << handle.status().text();
    turn();
    return handle.value();
  }
  // Answers every push so far with the bytes it brought.
  // Of a tensor that was pushed; says by which shard.
  PeerId say_mismatch_of_w(bool is_shared) {
    const PeerId peer = transport_.take(Kind::kPush)->peer;
    wire::Header header;
    header.kind = Kind::kMismatch;
    header.epoch = Epoch(1);
    header.key = key_of("w");
    const auto text = wire::encode(wire::Text{.text = "tensor 'w': rank 1 has float64",
                                              .code = static_cast<std::uint32_t>(Code::kMismatch)});
    transport_.say(peer, header, text, is_shared);
    turn();
    return peer;
  }
  void answer_all() {
    while (const auto push = transport_.take(Kind::kPush)) {
      wire::Header answer = push->header;
      answer.kind = Kind::kAnswer;
      transport_.say(push->peer, answer, push->payload);
    }
    turn();
  }
  Status result(HandleId handle) { return door_.wait(handle, 0); }

  const Config config_;
  const bool has_relay_;
  ScriptedTransport transport_;
  std::vector<std::string> log_lines_;
  Log log_{"worker 0", LogLevel::kInfo,
           [this](std::string_view line) { log_lines_.emplace_back(line); }};
  WorkerDoor door_{config_, nullptr};
  Mailbox<RelayCommand> relay_commands_{16, nullptr};
  Mailbox<RelayNotice> relay_notices_{16, nullptr};
  Worker worker_{config_,
                 transport_,
                 door_,
                 log_,
                 "machine:42",
                 {},
                 has_relay_ ? RelayPort{&relay_commands_, &relay_notices_, 7100} : RelayPort{}};
  TimeNs now_ = kSecond;
};

TEST_F(WorkerTest, joins_through_the_scheduler_and_then_reaches_all_shards) {
  EXPECT_TRUE(door_.membership().state().is(Code::kAgain));
  reach_scheduler();
  const auto join_message = transport_.take(Kind::kJoin);
  ASSERT_TRUE(join_message);
  EXPECT_EQ(wire::decode_join(join_message->payload).value().host, "machine:42");
  say(Kind::kRoster, wire::encode(roster_of_two()));
  turn();
  ASSERT_EQ(transport_.attempts.size(), 3u);
  EXPECT_EQ(transport_.attempts[1].hello.epoch, Epoch(1));
  EXPECT_EQ(transport_.attempts[0].hello.incarnation, Incarnation{}) << "not known yet";
  EXPECT_EQ(transport_.attempts[1].hello.incarnation, kJob);
  EXPECT_EQ(transport_.attempts[1].hello.rank, 0u);
  EXPECT_EQ(transport_.attempts[1].hello.role, Role::kWorker);
  transport_.up(shard(0));
  turn();
  EXPECT_TRUE(door_.membership().state().is(Code::kAgain)) << "one shard is missing";
  transport_.up(shard(1));
  turn();
  EXPECT_TRUE(door_.membership().state().is_ok());
  EXPECT_EQ(door_.membership().size(), 2u);
  EXPECT_EQ(door_.membership().server_count(), 2u);
}

TEST_F(WorkerTest, knows_its_neighbours_when_it_has_joined) {
  reach_scheduler();
  wire::Roster roster = roster_of_two();
  roster.members[0].machine = roster.members[1].machine = 7;
  say(Kind::kRoster, wire::encode(roster));
  turn();
  transport_.up(shard(0));
  transport_.up(shard(1));
  turn();
  ASSERT_TRUE(door_.membership().state().is_ok());
  EXPECT_EQ(door_.membership().local_rank(), 0u);
  EXPECT_EQ(door_.membership().local_size(), 2u);
  EXPECT_THAT(door_.membership().machines(), ::testing::ElementsAre(0, 0));
}

TEST_F(WorkerTest, submissions_before_joining_are_refused) {
  float value = 1;
  Submission one;
  one.name = "w";
  one.input = &value;
  one.output = &value;
  one.element_count = 1;
  EXPECT_TRUE(door_.submit(one).status().is(Code::kInvalidArgument));
  EXPECT_TRUE(door_.begin_barrier().status().is(Code::kInvalidArgument));
}

TEST_F(WorkerTest, a_tensor_is_declared_pushed_and_answered) {
  join();
  std::vector<float> values(40, 2.5F);
  const HandleId handle = submit("w", values);
  EXPECT_FALSE(door_.poll(handle).value());
  ASSERT_TRUE(transport_.take(Kind::kDeclare));
  ASSERT_TRUE(transport_.take(Kind::kDeclare));
  answer_all();
  EXPECT_TRUE(result(handle).is_ok());
  const WorkerMetrics metrics = door_.metrics();
  EXPECT_EQ(metrics.pushed_bytes, 160u);
  EXPECT_EQ(metrics.pulled_bytes, 160u);
  EXPECT_EQ(metrics.local_pushed_bytes, 0u);
  EXPECT_EQ(metrics.local_pulled_bytes, 0u);
  EXPECT_EQ(metrics.finished_operations, 1u);
  EXPECT_EQ(metrics.finished_bytes, 160u);
  EXPECT_EQ(door_.pending_handles(), 0u);
}

TEST_F(WorkerTest, what_one_member_alone_takes_part_in_is_copied_without_a_word_to_anybody) {
  join();
  const std::vector<float> values(4, 3.0F);
  std::vector<float> out(4);
  const std::uint32_t self = 0;
  Submission one;
  one.name = "w";
  one.input = values.data();
  one.output = out.data();
  one.element_count = 4;
  one.members = &self;
  one.member_count = 1;
  one.scale = 2;
  const HandleId handle = door_.submit(one).value();
  EXPECT_TRUE(door_.poll(handle).value());
  EXPECT_TRUE(result(handle).is_ok());
  EXPECT_EQ(out, std::vector<float>(4, 6.0F));
  EXPECT_FALSE(transport_.take(Kind::kDeclare));
  EXPECT_EQ(door_.metrics().finished_operations, 1u);
}

TEST_F(WorkerTest, a_failure_with_the_code_of_waiting_is_a_failure) {
  join();
  std::vector<float> values(4);
  const HandleId handle = submit("w", values);
  say(Kind::kFail,
      wire::encode(wire::Text{.text = "", .code = static_cast<std::uint32_t>(Code::kAgain)}));
  turn();
  EXPECT_TRUE(door_.membership().state().is(Code::kCancelled)) << door_.membership().state().text();
  EXPECT_EQ(result(handle).message(), "no reason was given");
}

TEST_F(WorkerTest, a_full_connection_is_asked_again_when_something_of_it_was_sent) {
  join();
  std::vector<std::string> names;  // two whose tensors belong to shard 0
  for (int i = 0; names.size() < 2; ++i) {
    const std::string name = "t" + std::to_string(i);
    if (Placement(64, 64, {1, 1}).first_shard(key_of(name)) == ShardIndex(0)) names.push_back(name);
  }
  transport_.gives_back_at_once = false;
  std::vector<float> a(4);
  std::vector<float> b(4);
  const HandleId first = submit(names[0], a);
  transport_.window = 0;
  const HandleId second = submit(names[1], b);
  transport_.window = SIZE_MAX;
  const std::size_t sent_before = transport_.sent.size();
  turn();
  EXPECT_EQ(transport_.sent.size(), sent_before) << "nothing has come back: it is not asked";
  transport_.gives_back_at_once = true;
  transport_.give_back_all();
  turn();
  answer_all();
  EXPECT_TRUE(result(first).is_ok());
  EXPECT_TRUE(result(second).is_ok());
}

TEST_F(WorkerTest, where_the_way_is_memory_as_much_is_under_way_as_it_holds) {
  join();
  std::vector<float> values(1024);  // 32 frames for each shard
  const auto pushes = [&] {
    return std::count_if(transport_.sent.begin(), transport_.sent.end(),
                         [](const auto& each) { return each.header.kind == Kind::kPush; });
  };
  const HandleId handle = submit("w", values);
  EXPECT_EQ(pushes(), 2 * 2) << "a network: the credit to begin with";
  transport_.capacity = 10 * (64 + wire::kHeaderBytes);
  turn();
  EXPECT_EQ(pushes(), 2 * 10) << "it has become known meanwhile";
  while (pushes() > 0) answer_all();
  EXPECT_TRUE(result(handle).is_ok());
}

TEST_F(WorkerTest, a_lost_shard_is_reached_again_and_gets_what_it_has_not_answered) {
  join();
  std::vector<float> values(40, 1);
  const HandleId handle = submit("w", values);
  const std::size_t before = transport_.attempts.size();
  transport_.sent.clear();
  const PeerId lost = shard(0);
  transport_.end(lost, Status(Code::kDisconnected, "reset by peer"));
  transport_.end(shard(1), Status(Code::kDisconnected, "reset by peer"));
  turn();
  EXPECT_EQ(transport_.attempts.size(), before) << "not before reconnect_ns";
  pass_with_heartbeats(100 * kMillisecond);
  EXPECT_EQ(transport_.attempts.size(), before + 2);
  EXPECT_NE(shard(0), lost);
  transport_.up(shard(0));
  transport_.up(shard(1));
  turn();
  EXPECT_TRUE(transport_.take(Kind::kDeclare));
  answer_all();
  EXPECT_TRUE(result(handle).is_ok());
  EXPECT_EQ(door_.metrics().reconnects, 2u);
  EXPECT_EQ(door_.metrics().pushed_bytes, 320u) << "repeats count";
}

TEST_F(WorkerTest, the_losses_that_a_job_has_survived_are_counted) {
  wire::Roster roster = roster_of_two();
  roster.recovers = true;
  roster.incarnation = kJob;
  const auto say_roster = [&](std::uint32_t term) {
    wire::Header header;
    header.kind = Kind::kRoster;
    header.epoch = Epoch(1);
    header.round = Round(term);
    transport_.say(scheduler(), header, wire::encode(roster));
    turn();
  };
  reach_scheduler();
  say_roster(1);
  for (std::size_t i = 0; i < 2; ++i) transport_.up(shard(i));
  turn();
  EXPECT_EQ(door_.metrics().lost_servers, 0U);
  roster.revision = 1;
  roster.slots[1].since = 1;
  roster.members[3].host = "machine9:4";
  roster.members[3].endpoints = {{"10.0.0.3", 7000}};
  say_roster(1);
  EXPECT_EQ(door_.metrics().lost_servers, 1U);
  EXPECT_EQ(door_.metrics().lost_schedulers, 0U);
  transport_.end(scheduler(), Status(Code::kDisconnected, "reset by peer"));
  transport_.answers[kScheduler.text()].incarnation = {std::byte{10}};
  pass(200 * kMillisecond);
  transport_.up(scheduler());
  turn();
  EXPECT_EQ(door_.metrics().lost_schedulers, 0U) << "it does not know the job yet";
  say_roster(2);
  EXPECT_EQ(door_.metrics().lost_schedulers, 1U);
  EXPECT_EQ(door_.metrics().lost_servers, 1U);
  EXPECT_EQ(door_.metrics().lost_workers, 0U);
}

TEST_F(WorkerTest,
       attempts_in_vain_come_at_ever_longer_and_unequal_times_but_some_of_them_in_time) {
  join();
  std::vector<TimeNs> gaps;
  const TimeNs reconnect_ns = TimeoutConfig().reconnect_ns();
  const TimeNs began_ns = now_;
  for (TimeNs last_ns = now_; now_ < began_ns + 2900 * kMillisecond; last_ns = now_) {
    const std::size_t before = transport_.attempts.size();
    transport_.end(shard(1), Status(Code::kDisconnected, "connection refused"));
    while (transport_.attempts.size() == before && now_ < began_ns + 2900 * kMillisecond) {
      say(Kind::kHeartbeat);
      turn();
    }
    gaps.push_back(now_ - last_ns);
  }
  gaps.pop_back();
  ASSERT_GE(gaps.size(), 7U);
  EXPECT_LE(gaps.size(), 20U) << "a crowd that never lets go";
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    const TimeNs longest_ns = reconnect_ns << std::min<std::size_t>(i, 3);
    EXPECT_GE(gaps[i], longest_ns / 2) << i;
    EXPECT_LE(gaps[i], longest_ns + 2 * kMillisecond) << i;
  }
  EXPECT_GT(*std::max_element(gaps.begin() + 4, gaps.end()),
            *std::min_element(gaps.begin() + 4, gaps.end()) + 10 * kMillisecond)
      << "others wait for another time";
}

TEST_F(WorkerTest, an_unreachable_shard_fails_the_job_and_is_named_to_everyone) {
  join();
  std::vector<float> values(4);
  const HandleId handle = submit("w", values);
  const HandleId barrier = door_.begin_barrier().value();
  turn();
  transport_.end(shard(1), Status(Code::kDisconnected, "connection refused"));
  pass_with_heartbeats(2900 * kMillisecond);
  EXPECT_TRUE(result(handle).is(Code::kAgain));
  pass_with_heartbeats(200 * kMillisecond);
  for (const Status& status : {result(handle), result(barrier), door_.membership().state()}) {
    EXPECT_TRUE(status.is(Code::kDisconnected)) << status.text();
    EXPECT_THAT(status.message(), HasSubstr("server 1 (machine1:17) at 10.0.0.2:7000"));
    EXPECT_TRUE(status.is_because_of(CauseKind::kUnreachable));
    EXPECT_EQ(status.cause().who,
              (Participant{.role = Role::kServer, .rank = 1, .host = "machine1:17"}));
    EXPECT_EQ(status.cause().detail, "connection refused");
  }
  const auto fail = transport_.take(Kind::kFail);
  ASSERT_TRUE(fail);
  EXPECT_THAT(wire::decode_text(fail->payload).value().text, HasSubstr("10.0.0.2:7000"));
  Submission late;
  late.name = "late";
  EXPECT_THAT(door_.submit(late).status().message(), HasSubstr("10.0.0.2:7000"));
  say(Kind::kFail, fail->payload);
  pass(100 * kMillisecond);
  EXPECT_TRUE(worker_.finished());
  EXPECT_EQ(door_.pending_handles(), 0u);
  door_.leave(true);  // harmless
}

TEST_F(WorkerTest, who_answers_in_a_shards_place_is_not_used_and_named_when_the_job_fails) {
  const auto fails_with = [&](Role role, std::uint32_t rank, std::uint32_t epoch,
                              const Incarnation& incarnation = kJob) {
    Hello& answer = transport_.answers[kShards[1].text()];
    answer.role = role;
    answer.rank = rank;
    answer.epoch = Epoch(epoch);
    answer.incarnation = incarnation;
    const std::size_t closed = transport_.closed.size();
    transport_.up(shard(1));
    turn();
    EXPECT_EQ(transport_.closed.size(), closed + 1);
    EXPECT_FALSE(transport_.take(Kind::kDeclare) || transport_.take(Kind::kPush));
    pass_with_heartbeats(450 * kMillisecond);
    return transport_.closed.rbegin()->second.message();
  };
  reach_scheduler();
  say(Kind::kRoster, wire::encode(roster_of_two()));
  turn();
  transport_.up(shard(0));
  EXPECT_THAT(fails_with(Role::kWorker, 1, 1), HasSubstr("a worker 1 answers there"));
  EXPECT_THAT(fails_with(Role::kScheduler, kNoRank, 1), HasSubstr("a scheduler answers"));
  EXPECT_THAT(fails_with(Role::kServer, 0, 1), HasSubstr("a server 0 answers there"));
  EXPECT_THAT(fails_with(Role::kServer, 1, 1, {std::byte{8}}),
              HasSubstr("a server 1 of another job, or of another life of this one, answers"));
  EXPECT_THAT(fails_with(Role::kServer, 1, 2),
              HasSubstr("it is of epoch 2, this worker of epoch 1"));
  EXPECT_TRUE(door_.membership().state().is(Code::kAgain)) << "not joined";
  pass_with_heartbeats(4 * kSecond);
  EXPECT_THAT(door_.membership().state().message(),
              AllOf(HasSubstr("server 1"), HasSubstr("cannot be reached"), HasSubstr("epoch 2")));
}

TEST_F(WorkerTest, a_pause_of_its_own_does_not_make_a_shard_unreachable) {
  join();
  transport_.end(shard(1), Status(Code::kDisconnected, "connection reset"));
  turn();
  turn(10 * kSecond);  // the process stood still
  EXPECT_TRUE(door_.membership().state().is_ok()) << door_.membership().state().text();
  transport_.up(shard(1));
  pass_with_heartbeats(5 * kSecond);
  EXPECT_TRUE(door_.membership().state().is_ok()) << door_.membership().state().text();
}

TEST_F(WorkerTest, a_shard_whose_connection_never_lasts_is_unreachable_too) {
  join();
  for (int i = 0; i < 200 && door_.membership().state().is_ok(); ++i) {
    transport_.end(shard(0), Status(Code::kDisconnected, "refused this push"));
    pass_with_heartbeats(100 * kMillisecond);
    if (door_.membership().state().is_ok()) transport_.up(shard(0));
    turn();
  }
  EXPECT_TRUE(door_.membership().state().is(Code::kDisconnected));
  EXPECT_THAT(door_.membership().state().message(), HasSubstr("refused this push"));
}

// Every push to it is damaged on the way. It lives, and asks for what it misses.
TEST_F(WorkerTest, a_shard_that_only_asks_again_while_no_answer_comes_is_unreachable) {
  join();
  std::vector<float> values(40, 1.5F);
  const HandleId handle = submit("w", values);
  for (int i = 0; i < 200 && door_.membership().state().is_ok(); ++i) {
    transport_.end(shard(0), Status(Code::kDisconnected, "damaged on the way"));
    turn();  // as soon as it has asked
    pass_with_heartbeats(100 * kMillisecond);
    if (!door_.membership().state().is_ok()) break;
    transport_.up(shard(0));
    turn();
    wire::Header wanted;
    wanted.kind = Kind::kWanted;
    wanted.epoch = Epoch(1);
    wanted.key = key_of("w");
    transport_.say(shard(0), wanted);
    turn();
  }
  EXPECT_TRUE(result(handle).is(Code::kDisconnected));
  EXPECT_THAT(door_.membership().state().message(), HasSubstr("damaged on the way"));
}

TEST_F(WorkerTest, lent_payloads_come_back_before_handles_end_when_the_job_fails) {
  join();
  transport_.gives_back_at_once = false;
  std::vector<float> values(40);
  const HandleId handle = submit("w", values);
  say(Kind::kFail,
      wire::encode(wire::Text{.text = "worker 1 (host b:7) is gone",
                              .code = static_cast<std::uint32_t>(Code::kDisconnected)}));
  turn();
  const Status status = result(handle);
  EXPECT_TRUE(status.is(Code::kDisconnected)) << status.text();
  EXPECT_THAT(status.message(), HasSubstr("worker 1 (host b:7) is gone"));
  EXPECT_TRUE(worker_.finished());
}

TEST_F(WorkerTest, leaving_cancels_what_is_pending_and_says_good_bye) {
  join();
  std::vector<float> values(40);
  const HandleId handle = submit("w", values);
  const HandleId barrier = door_.begin_barrier().value();
  turn();
  door_.leave(false);
  door_.leave(true);  // the first one counts
  turn();
  EXPECT_TRUE(result(handle).is(Code::kCancelled));
  EXPECT_TRUE(result(barrier).is(Code::kCancelled));
  EXPECT_FALSE(worker_.finished());
  const auto leave = transport_.take(Kind::kLeave);
  ASSERT_TRUE(leave);
  EXPECT_FALSE(wire::decode_leave(leave->payload).value().final);
  say(Kind::kLeave, wire::encode(wire::Leave{.final = false}), 0);
  pass(200 * kMillisecond);
  EXPECT_TRUE(worker_.finished());
  Submission late;
  late.name = "late";
  EXPECT_TRUE(door_.submit(late).status().is(Code::kCancelled));
}

// It has a sum that others may lack: a server may be lost now, whose successor asks for it.
class LeaverTest : public WorkerTest {
 protected:
  void get_a_sum_and_leave() {
    wire::Roster roster = roster_of_two();
    roster.recovers = true;
    roster.incarnation = kJob;
    join(roster);
    std::vector<float> values(4);
    Submission one;
    one.name = "w";
    one.input = values.data();
    one.output = values.data();
    one.element_count = values.size();
    one.root = root_only_ ? 1 : 0;
    one.root_only = root_only_;
    const HandleId handle = door_.submit(one).value();
    turn();
    server_ = transport_.take(Kind::kPush)->peer;
    wire::Header answer;
    answer.kind = Kind::kAnswer;
    answer.epoch = Epoch(1);
    answer.key = key_of("w");
    if (root_only_) answer.flags = wire::kNoPayload;
    transport_.say(server_, answer, std::vector<std::byte>(root_only_ ? 0 : 16));
    turn();
    ASSERT_TRUE(result(handle).is_ok());
    door_.leave(true);
    turn();
    EXPECT_FALSE(transport_.take(Kind::kLeave));
  }
  PeerId server_;
  bool root_only_ = false;  // of which this worker is not the root
};

TEST_F(LeaverTest, leaves_when_all_have_it) {
  get_a_sum_and_leave();
  wire::Header settled;
  settled.kind = Kind::kSettled;
  settled.epoch = Epoch(1);
  settled.count = 1;
  transport_.say(server_, settled, {});
  turn();
  EXPECT_TRUE(transport_.take(Kind::kLeave));
}

// By then the scheduler has seen that a server stands still.
TEST_F(LeaverTest, leaves_after_the_failure_timeout_and_a_third_in_any_case) {
  get_a_sum_and_leave();
  pass_with_heartbeats(3900 * kMillisecond);
  EXPECT_FALSE(transport_.take(Kind::kLeave));
  pass_with_heartbeats(200 * kMillisecond);
  EXPECT_TRUE(transport_.take(Kind::kLeave));
}

TEST_F(LeaverTest, waits_until_a_server_that_is_lost_is_replaced) {
  get_a_sum_and_leave();
  const std::size_t lost = server_ == shard(0) ? 0 : 1;
  transport_.end(server_, Status(Code::kDisconnected, "reset by peer"));
  pass_with_heartbeats(4500 * kMillisecond);
  EXPECT_FALSE(transport_.take(Kind::kLeave));
  transport_.up(shard(lost));
  pass_with_heartbeats(3900 * kMillisecond);
  EXPECT_FALSE(transport_.take(Kind::kLeave)) << "others may come for it";
  pass_with_heartbeats(200 * kMillisecond);
  EXPECT_TRUE(transport_.take(Kind::kLeave));
}

TEST_F(LeaverTest, says_why_it_waits) {
  get_a_sum_and_leave();
  pass_with_heartbeats(900 * kMillisecond);
  EXPECT_TRUE(log_lines_.empty());
  pass_with_heartbeats(200 * kMillisecond);
  ASSERT_EQ(log_lines_.size(), 1U);
  EXPECT_THAT(log_lines_[0], HasSubstr("leaving waits until others have the last sums"));
}

TEST_F(WorkerTest, where_no_server_is_replaced_leaving_waits_for_none) {
  join();
  transport_.end(shard(0), Status(Code::kDisconnected, "reset by peer"));
  door_.leave(true);
  turn();
  EXPECT_TRUE(transport_.take(Kind::kLeave));
}

// A server that was lost may not have told it to the others.
TEST_F(LeaverTest, who_has_heard_the_end_of_all_inputs_waits_for_a_lost_server_too) {
  wire::Roster roster = roster_of_two();
  roster.recovers = true;
  roster.incarnation = kJob;
  join(roster);
  const HandleId handle = door_.finish_inputs().value();
  turn();
  wire::Header done;
  done.kind = Kind::kInputsDone;
  done.epoch = Epoch(1);
  done.round = Round(1);
  for (const std::size_t each : {0U, 1U}) transport_.say(shard(each), done, {});
  turn();
  ASSERT_TRUE(result(handle).is_ok());
  transport_.end(shard(0), Status(Code::kDisconnected, "reset by peer"));
  door_.leave(true);
  pass_with_heartbeats(2500 * kMillisecond);
  EXPECT_FALSE(transport_.take(Kind::kLeave));
  transport_.up(shard(0));
  turn();
  EXPECT_TRUE(transport_.take(Kind::kLeave));
}

// Both may be on one machine, and back in a while.
TEST_F(LeaverTest, waits_also_while_the_scheduler_is_away) {
  get_a_sum_and_leave();
  transport_.end(server_, Status(Code::kDisconnected, "reset by peer"));
  transport_.end(scheduler(), Status(Code::kDisconnected, "reset by peer"));
  pass(3 * kSecond);
  EXPECT_FALSE(door_.membership().state().is(Code::kCancelled));
}

TEST_F(LeaverTest, waits_as_well_while_others_may_not_know_that_the_root_has_what_it_alone_gets) {
  root_only_ = true;
  get_a_sum_and_leave();
  EXPECT_EQ(worker_.pipeline()->counters().kept_bytes, 0u);
  pass_with_heartbeats(3900 * kMillisecond);
  EXPECT_FALSE(transport_.take(Kind::kLeave));
  pass_with_heartbeats(200 * kMillisecond);
  EXPECT_TRUE(transport_.take(Kind::kLeave));
}

TEST_F(LeaverTest, what_fails_meanwhile_is_no_concern_of_it) {
  get_a_sum_and_leave();
  say(Kind::kFail, wire::encode(wire::Text{.text = "worker 1: out of memory", .code = 1}));
  turn();
  EXPECT_TRUE(transport_.take(Kind::kLeave));
  EXPECT_TRUE(door_.membership().state().is(Code::kCancelled));
}

TEST_F(WorkerTest, leaving_ends_without_a_scheduler_after_the_failure_time) {
  join();
  door_.leave(true);
  turn();
  pass(2900 * kMillisecond);
  EXPECT_FALSE(worker_.finished());
  pass(300 * kMillisecond);
  EXPECT_TRUE(worker_.finished());
}

TEST_F(WorkerTest, leaving_before_the_job_is_complete_ends_soon) {
  turn();
  door_.leave(true);
  pass(100 * kMillisecond);
  EXPECT_TRUE(worker_.finished());
  EXPECT_TRUE(door_.membership().wait(-1).is(Code::kCancelled));
}

TEST_F(WorkerTest, barriers_end_in_their_order) {
  join();
  const HandleId first = door_.begin_barrier().value();
  const HandleId second = door_.begin_barrier().value();
  turn();
  ASSERT_TRUE(transport_.take(Kind::kBarrier));
  EXPECT_TRUE(result(first).is(Code::kAgain));
  say(Kind::kBarrierDone, wire::encode(wire::Barrier{.number = 0}));
  turn();
  EXPECT_TRUE(result(first).is_ok());
  EXPECT_TRUE(result(second).is(Code::kAgain));
  say(Kind::kBarrierDone, wire::encode(wire::Barrier{.number = 1}));
  turn();
  EXPECT_TRUE(result(second).is_ok());
}

// Has the caller in wait(), in slices, while time passes; in between it says that no other thread may submit anything.
class StalledWorkerTest : public WorkerTest {
 protected:
  using WorkerTest::WorkerTest;
  void pass_in_wait(HandleId handle, TimeNs duration) {
    for (TimeNs end = now_ + duration; now_ < end;) {
      EXPECT_TRUE(door_.wait(handle, 1).is(Code::kAgain));
      EXPECT_TRUE(door_.all_wait(door_.progress(), 0));
      say(Kind::kHeartbeat);
      turn(50 * kMillisecond);
    }
  }
  // The newest report, if there is one since the last look.
  std::optional<wire::Stalled> report() {
    std::optional<wire::Stalled> newest;
    while (const auto sent = transport_.take(Kind::kStalled)) {
      newest = wire::decode_stalled(sent->payload).value();
    }
    return newest;
  }
  // A shard asks for a round of a tensor.
  void want(const std::string& name, std::uint32_t round) {
    wire::Header header;
    header.kind = Kind::kWanted;
    header.epoch = Epoch(1);
    header.key = key_of(name);
    header.round = Round(round);
    transport_.say(shard(0), header);
    turn();
  }
};

TEST_F(StalledWorkerTest, it_says_what_it_waits_for_and_what_others_want_until_something_moves) {
  join();
  std::vector<float> values(4);
  const HandleId handle = submit("x", values);
  want("y", 2);
  pass_in_wait(handle, 400 * kMillisecond);
  EXPECT_FALSE(report()) << "not at the first look";
  pass_in_wait(handle, kSecond);
  const wire::Stalled expected{{{"x", key_of("x"), 0}}, {{key_of("y"), 2}}};
  EXPECT_EQ(report(), expected);
  pass_in_wait(handle, kSecond);
  EXPECT_FALSE(report()) << "only when it changes";
  std::vector<float> more(4);
  const HandleId other = submit("y", more);
  EXPECT_EQ(report(), wire::Stalled{}) << "at once";
  pass_in_wait(other, 2 * kSecond);
  EXPECT_EQ(report(), (wire::Stalled{{{"x", key_of("x"), 0}, {"y", key_of("y"), 0}}, {}}))
      << "both have been waited for";
}

TEST_F(StalledWorkerTest,
       at_the_end_of_its_inputs_it_waits_for_what_is_pending_and_then_for_the_others) {
  join();
  std::vector<float> values(4);
  const HandleId x = submit("x", values);
  const HandleId end = door_.finish_inputs().value();
  pass_in_wait(end, 2 * kSecond);
  EXPECT_EQ(report(), (wire::Stalled{{{"x", key_of("x"), 0}}, {}}));
  answer_all();
  pass_in_wait(end, 2 * kSecond);
  EXPECT_TRUE(result(x).is_ok());
  EXPECT_EQ(report(), (wire::Stalled{{{"", wire::kInputsKey, 0}}, {}}));
}

TEST_F(StalledWorkerTest, it_says_nothing_while_its_caller_does_something_else) {
  join();
  std::vector<float> values(4);
  const HandleId handle = submit("x", values);
  pass_with_heartbeats(2 * kSecond);
  EXPECT_TRUE(door_.wait(handle, 0).is(Code::kAgain));
  EXPECT_FALSE(report());
}

TEST_F(StalledWorkerTest, it_says_so_again_when_the_scheduler_is_back) {
  join();
  const HandleId barrier = door_.begin_barrier().value();
  turn();
  pass_in_wait(barrier, 2 * kSecond);
  const wire::Stalled expected{{{"", Key(), 0}}, {}};
  EXPECT_EQ(report(), expected);
  transport_.end(scheduler(), Status(Code::kDisconnected, "reset"));
  turn(100 * kMillisecond);
  transport_.up(scheduler());
  turn();
  EXPECT_EQ(report(), expected);
}

TEST_F(StalledWorkerTest, it_says_nothing_when_a_thread_waits_that_may_give_up) {
  join();
  std::vector<float> values(4);
  const HandleId handle = submit("x", values);
  for (TimeNs end = now_ + 4 * kSecond; now_ < end;) {
    EXPECT_TRUE(door_.wait(handle, 1).is(Code::kAgain));
    say(Kind::kHeartbeat);
    turn(50 * kMillisecond);
  }
  EXPECT_FALSE(report()) << "nobody has said that all threads wait";
}

TEST_F(StalledWorkerTest,
       of_several_barriers_it_waits_for_the_first_and_not_for_what_nobody_waits_for) {
  join();
  std::vector<float> values(4);
  (void)submit("x", values);
  const HandleId first = door_.begin_barrier().value();
  const HandleId second = door_.begin_barrier().value();
  turn();
  pass_in_wait(second, 2 * kSecond);
  EXPECT_EQ(report(), (wire::Stalled{{{"", Key(), 0}}, {}}));
  EXPECT_TRUE(result(first).is(Code::kAgain));
}

Config with_patience_of(TimeNs stall_ns) {
  Config config = two_workers();
  config.timeout.stall_ns = stall_ns;
  return config;
}

class ImpatientWorkerTest : public StalledWorkerTest {
 protected:
  ImpatientWorkerTest() : StalledWorkerTest(with_patience_of(20 * kSecond)) {}
};

TEST_F(ImpatientWorkerTest,
       it_tells_all_that_is_pending_when_its_patience_is_over_whatever_its_threads_do) {
  join();
  std::vector<float> values(4), more(4);
  (void)submit("x", values);
  pass_with_heartbeats(15 * kSecond);
  (void)submit("y", more);
  pass_with_heartbeats(19 * kSecond);
  EXPECT_FALSE(report()) << "something was submitted less than 20 s ago";
  pass_with_heartbeats(2 * kSecond);
  EXPECT_EQ(report(), (wire::Stalled{{{"x", key_of("x"), 0}, {"y", key_of("y"), 0}}, {}}));
  EXPECT_TRUE(door_.membership().state().is_ok());
}

TEST_F(ImpatientWorkerTest,
       it_ends_the_job_and_says_for_what_it_waits_when_the_others_do_not_wait) {
  join();
  std::vector<float> values(4);
  const HandleId handle = submit("x", values);
  const HandleId barrier = door_.begin_barrier().value();
  pass_with_heartbeats(60 * kSecond);
  const Status why = door_.membership().state();
  EXPECT_TRUE(why.is(Code::kTimeout)) << why.text();
  EXPECT_TRUE(why.is_because_of(CauseKind::kStallTimeout));
  EXPECT_NE(why.message().find("(BYTEPS_STALL_TIMEOUT_S is 20), waiting for tensor 'x'"),
            std::string::npos)
      << why.message();
  EXPECT_NE(why.message().find("; and a barrier"), std::string::npos) << why.message();
  EXPECT_TRUE(result(handle).is(Code::kTimeout));
  EXPECT_TRUE(result(barrier).is(Code::kTimeout));
  ASSERT_TRUE(transport_.take(Kind::kFail)) << "the scheduler tells the others";
}

TEST_F(ImpatientWorkerTest, it_waits_for_ever_while_answers_come_or_nothing_is_pending) {
  join();
  std::vector<float> values(4);
  pass_with_heartbeats(60 * kSecond);
  for (int i = 0; i < 5; ++i) {
    const HandleId handle = submit("x", values);
    pass_with_heartbeats(15 * kSecond);
    answer_all();
    EXPECT_TRUE(result(handle).is_ok());
  }
  EXPECT_TRUE(door_.membership().state().is_ok()) << door_.membership().state().text();
}

TEST_F(WorkerTest, a_shard_that_breaks_the_protocol_loses_its_connection_with_one_line) {
  join();
  std::vector<float> values(4);
  const HandleId handle = submit("w", values);
  const auto push = transport_.take(Kind::kPush);
  ASSERT_TRUE(push);
  log_lines_.clear();
  wire::Header answer = push->header;
  answer.kind = Kind::kAnswer;
  transport_.say(push->peer, answer, std::vector<std::byte>(3));
  transport_.say(push->peer, answer, std::vector<std::byte>(5));
  turn();
  ASSERT_EQ(transport_.closed.size(), 1u);
  EXPECT_TRUE(transport_.closed.contains(push->peer));
  EXPECT_EQ(std::count_if(log_lines_.begin(), log_lines_.end(),
                          [](const std::string& line) {
                            return line.find("wrong size") != std::string::npos;
                          }),
            1);
  EXPECT_TRUE(result(handle).is(Code::kAgain)) << "it is pushed again on the next connection";
  EXPECT_TRUE(door_.membership().state().is_ok());
}

TEST_F(WorkerTest, nonsense_from_a_shard_ends_only_its_connection) {
  join();
  transport_.say(shard(0), std::vector<std::byte>(7));
  wire::Header header;
  header.kind = Kind::kJoin;
  transport_.say(shard(1), header);
  turn();
  EXPECT_EQ(transport_.closed.size(), 2u);
  EXPECT_TRUE(door_.membership().state().is_ok());
}

TEST_F(WorkerTest, a_mismatch_in_memory_that_the_shard_can_still_change_is_not_read) {
  join();
  std::vector<float> values(4);
  const HandleId handle = submit("w", values);
  const PeerId peer = say_mismatch_of_w(true);
  EXPECT_TRUE(transport_.closed.contains(peer));
  EXPECT_TRUE(result(handle).is(Code::kAgain));
}

TEST_F(WorkerTest, a_mismatch_ends_the_operation_with_the_shards_text) {
  join();
  std::vector<float> values(4);
  const HandleId handle = submit("w", values);
  say_mismatch_of_w(false);
  const Status status = result(handle);
  EXPECT_TRUE(status.is(Code::kMismatch));
  EXPECT_EQ(status.message(), "tensor 'w': rank 1 has float64");
  EXPECT_EQ(status.cause().detail, "w") << "whatever the text says";
}

TEST_F(WorkerTest, a_server_without_memory_for_a_tensor_is_named_in_the_cause) {
  join();
  std::vector<float> values(4);
  const HandleId handle = submit("w", values);
  const auto push = transport_.take(Kind::kPush);
  wire::Header header;
  header.kind = Kind::kMismatch;
  header.epoch = Epoch(1);
  header.key = key_of("w");
  wire::Text text{"no memory for 1 more byte", static_cast<std::uint32_t>(Code::kSystem)};
  text.cause = {.kind = CauseKind::kNoMemory, .who = {.role = Role::kWorker, .rank = 0}};
  transport_.say(push->peer, header, wire::encode(text));
  turn();
  const Status status = result(handle);
  EXPECT_TRUE(status.is_because_of(CauseKind::kNoMemory));
  EXPECT_EQ(status.cause().who.role, Role::kServer) << "the one that says it";
  EXPECT_EQ(status.cause().detail, "w");
}

TEST_F(WorkerTest, what_waits_for_a_worker_that_left_fails_when_its_shard_says_so) {
  join();
  std::vector<float> values(4);
  const HandleId handle = submit("w", values);
  say(Kind::kLeave, wire::encode(wire::Leave{.final = true}), 1);
  pass_with_heartbeats(10 * kSecond);
  EXPECT_TRUE(result(handle).is(Code::kAgain)) << "no shard has said that it misses that worker";
  const auto push = transport_.take(Kind::kPush);
  ASSERT_TRUE(push);
  wire::Header missing = push->header;
  missing.kind = Kind::kMissing;
  transport_.say(push->peer, missing,
                 wire::encode(wire::Missing{Members(std::vector<std::uint32_t>{1})}));
  pass_with_heartbeats(kSecond);
  const Status status = result(handle);
  EXPECT_TRUE(status.is(Code::kDisconnected));
  EXPECT_THAT(status.message(), HasSubstr("'w' waits for worker 1"));
  const Cause expected{
      .kind = CauseKind::kLeft, .who = {.role = Role::kWorker, .rank = 1}, .detail = "w"};
  EXPECT_EQ(status.cause(), expected);
}

TEST_F(WorkerTest, a_job_without_servers_is_refused) {
  reach_scheduler();
  wire::Roster roster = roster_of_two();
  roster.members.resize(2);
  roster.slots.clear();
  say(Kind::kRoster, wire::encode(roster));
  turn();
  EXPECT_TRUE(door_.membership().state().is(Code::kInvalidArgument));
  EXPECT_THAT(door_.membership().state().message(), HasSubstr("DMLC_NUM_SERVER"));
}

TEST_F(WorkerTest, a_roster_that_wants_a_relay_of_a_worker_without_one_is_refused) {
  reach_scheduler();
  wire::Roster roster = roster_of_two();
  roster.summing = wire::Summing::kRelays;
  say(Kind::kRoster, wire::encode(roster));
  turn();
  EXPECT_TRUE(door_.membership().state().is(Code::kUnsupported));
}

// ---- where the workers of a machine sum first

// Workers 0 and 1 are on one machine, with relays at 7100 and 7101.
class RelayedWorkerTest : public WorkerTest {
 protected:
  RelayedWorkerTest() : WorkerTest(two_workers(), true) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      Hello& relay = transport_.answers[place(rank).text()];
      relay.role = Role::kWorker;
      relay.rank = rank;
      relay.epoch = Epoch(1);
      relay.incarnation = kJob;
    }
  }
  static Endpoint place(std::uint32_t rank) {
    return {"127.0.0.1", static_cast<std::uint16_t>(7100 + rank)};
  }
  static wire::Roster roster(wire::Summing summing) {
    wire::Roster roster = roster_of_two();
    roster.summing = summing;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      roster.members[rank].machine = 5;
      roster.members[rank].relay_port = place(rank).port;
    }
    if (summing != wire::Summing::kAlone) return roster;
    roster.members.resize(2);
    roster.slots.clear();
    return roster;
  }
  void get_roster(wire::Summing summing) {
    reach_scheduler();
    say(Kind::kRoster, wire::encode(roster(summing)));
    turn();
  }
  PeerId relay(std::uint32_t rank) { return transport_.peer_at(place(rank)); }
  void relay_says(RelayNotice::Kind kind, const Status& why = {}) {
    ASSERT_TRUE(relay_notices_.post({.kind = kind, .why = why}).is_ok());
    turn();
  }
  void join_relays(wire::Summing summing = wire::Summing::kRelays) {
    get_roster(summing);
    for (const std::uint32_t rank : {0U, 1U}) transport_.up(relay(rank));
    relay_says(RelayNotice::Kind::kReady);
    ASSERT_TRUE(door_.membership().state().is_ok()) << door_.membership().state().text();
  }
  // But pings.
  std::vector<RelayCommand> commands() {
    std::vector<RelayCommand> commands;
    relay_commands_.drain(commands);
    pings_ += std::erase_if(
        commands, [](const RelayCommand& each) { return each.kind == RelayCommand::Kind::kPing; });
    return commands;
  }
  // The scheduler lives, and the relay's thread comes round, or not.
  void pass_with_relay(TimeNs duration, bool relay_lives = true) {
    for (const TimeNs end = now_ + duration; now_ < end && !worker_.finished();) {
      pass_with_heartbeats(50 * kMillisecond);
      if (!relay_lives) continue;
      pings_ = 0;
      commands();
      if (pings_ > 0) relay_says(RelayNotice::Kind::kAlive);
    }
  }
  Status state() const { return door_.membership().state(); }

  const TimeNs failure_ns_ = TimeoutConfig().failure_ns;
  std::size_t pings_ = 0;
};

TEST_F(RelayedWorkerTest, says_where_its_relay_is_when_it_joins) {
  reach_scheduler();
  const auto join_message = transport_.take(Kind::kJoin);
  ASSERT_TRUE(join_message);
  EXPECT_EQ(wire::decode_join(join_message->payload).value().relay_port, 7100);
}

TEST_F(RelayedWorkerTest, reaches_the_relays_of_its_machine_and_lets_its_own_begin) {
  get_roster(wire::Summing::kRelays);
  ASSERT_EQ(transport_.attempts.size(), 3u);
  EXPECT_EQ(transport_.attempts[1].to, place(0)) << "no server";
  EXPECT_EQ(transport_.attempts[2].to, place(1));
  const std::vector<RelayCommand> told = commands();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].kind, RelayCommand::Kind::kBegin);
  EXPECT_EQ(told[0].roster, roster(wire::Summing::kRelays));
  EXPECT_EQ(told[0].incarnation, kJob);
  EXPECT_EQ(told[0].failure_ns, TimeoutConfig().failure_ns);
}

TEST_F(RelayedWorkerTest, has_joined_when_the_relays_are_reached_and_its_own_has_the_servers) {
  get_roster(wire::Summing::kRelays);
  transport_.up(relay(0));
  transport_.up(relay(1));
  turn();
  EXPECT_TRUE(door_.membership().state().is(Code::kAgain)) << "its relay is not ready";
  relay_says(RelayNotice::Kind::kReady);
  EXPECT_TRUE(door_.membership().state().is_ok());
}

TEST_F(RelayedWorkerTest, tensors_go_to_relays_and_their_sums_come_from_there) {
  join_relays();
  std::vector<float> values(40, 2.5F);
  const HandleId handle = submit("w", values);
  std::vector<PeerId> peers;
  for (const auto& each : transport_.sent) {
    if (each.header.kind == Kind::kPush) peers.push_back(each.peer);
  }
  EXPECT_THAT(peers, ::testing::Contains(relay(0)));
  EXPECT_THAT(peers, ::testing::Contains(relay(1)));
  answer_all();
  EXPECT_TRUE(result(handle).is_ok());
}

TEST_F(RelayedWorkerTest, a_relay_that_fails_is_the_end_of_the_job) {
  join_relays();
  relay_says(RelayNotice::Kind::kFailed, {Code::kDisconnected, "server 0 cannot be reached"});
  EXPECT_TRUE(door_.membership().state().is(Code::kDisconnected));
  EXPECT_EQ(door_.membership().state().message(), "server 0 cannot be reached");
}

TEST_F(RelayedWorkerTest, its_relay_ends_when_it_does_and_for_the_same_reason) {
  join_relays();
  commands();
  std::vector<float> values(4);
  submit("w", values);
  say(Kind::kFail,
      wire::encode(wire::Text{.text = "worker 1 is lost",
                              .code = static_cast<std::uint32_t>(Code::kDisconnected)}));
  turn();
  const std::vector<RelayCommand> told = commands();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].kind, RelayCommand::Kind::kEnd);
  EXPECT_EQ(told[0].why.message(), "worker 1 is lost");
}

TEST_F(RelayedWorkerTest, leaves_when_its_relay_has_no_sum_that_others_may_lack) {
  join_relays();
  commands();
  door_.leave(true);
  turn();
  std::vector<RelayCommand> told = commands();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].kind, RelayCommand::Kind::kLeave);
  turn();
  EXPECT_TRUE(commands().empty()) << "it is asked once";
  EXPECT_FALSE(transport_.take(Kind::kLeave));
  relay_says(RelayNotice::Kind::kSettled);
  EXPECT_TRUE(transport_.take(Kind::kLeave));
}

TEST_F(RelayedWorkerTest, leaves_without_its_relay_when_that_fails) {
  join_relays();
  door_.leave(true);
  pass_with_relay(failure_ns_);
  EXPECT_FALSE(transport_.take(Kind::kLeave)) << "its relay waits for a server";
  relay_says(RelayNotice::Kind::kFailed, {Code::kDisconnected, "server 0 cannot be reached"});
  EXPECT_TRUE(transport_.take(Kind::kLeave));
  EXPECT_TRUE(state().is(Code::kCancelled));
}

TEST_F(RelayedWorkerTest, a_relay_that_has_left_with_its_worker_is_not_missed) {
  join_relays();
  say(Kind::kLeave, wire::encode(wire::Leave{.final = true}), 1);
  transport_.end(relay(1));
  pass_with_relay(20 * kSecond);
  EXPECT_TRUE(state().is_ok()) << state().text();
}

TEST_F(RelayedWorkerTest, the_relay_of_a_worker_that_left_is_given_up_when_it_does_not_end) {
  join_relays();
  const PeerId stuck = relay(1);
  say(Kind::kLeave, wire::encode(wire::Leave{.final = true}), 1);
  pass_with_relay(2 * failure_ns_ - kSecond);
  EXPECT_FALSE(transport_.closed.contains(stuck)) << "it may still have something to send";
  pass_with_relay(2 * kSecond);
  EXPECT_TRUE(transport_.closed.contains(stuck));
  EXPECT_TRUE(state().is_ok()) << state().text();
}

// ---- a relay that stands still

TEST_F(RelayedWorkerTest, a_relay_that_comes_round_is_asked_for_ever_and_nothing_happens) {
  join_relays();
  pass_with_relay(10 * failure_ns_);
  EXPECT_TRUE(state().is_ok()) << state().text();
}

TEST_F(RelayedWorkerTest, a_relay_that_stands_still_for_the_failure_timeout_fails_the_job_by_name) {
  join_relays();
  pass_with_relay(failure_ns_);
  pass_with_relay(failure_ns_ / 2, false);
  EXPECT_TRUE(state().is_ok()) << "it may still come back";
  EXPECT_GT(worker_.relay_patience_ns(), 0);
  pass_with_relay(failure_ns_, false);
  EXPECT_THAT(state().message(), HasSubstr("the relay of worker 0 stands still for 3 s: its "
                                           "thread, byteps-relay, neither sums nor answers"));
  EXPECT_EQ(state().cause().kind, CauseKind::kStandsStill);
  const auto told = transport_.take(Kind::kFail);
  ASSERT_TRUE(told);
  EXPECT_THAT(wire::decode_text(told->payload).value().text, HasSubstr("the relay of worker 0"));
  EXPECT_EQ(worker_.relay_patience_ns(), 0) << "nobody waits for it any more";
}

TEST_F(RelayedWorkerTest, a_relay_that_never_begins_is_missed_as_well) {
  get_roster(wire::Summing::kRelays);
  pass_with_relay(failure_ns_ * 3 / 2, false);
  EXPECT_THAT(state().message(), HasSubstr("the relay of worker 0 stands still"));
}

TEST_F(RelayedWorkerTest, a_pause_of_the_whole_process_is_no_silence_of_its_relay) {
  join_relays();
  for (int i = 0; i < 10; ++i) {
    pass_with_relay(failure_ns_ / 3);
    pass_with_relay(failure_ns_ / 6 + 50 * kMillisecond, false);  // it owes an answer
    say(Kind::kHeartbeat);
    turn(failure_ns_ * 9 / 10);  // before the relay got the processor
    relay_says(RelayNotice::Kind::kAlive);
  }
  EXPECT_TRUE(state().is_ok()) << state().text();
}

TEST_F(RelayedWorkerTest, nothing_is_asked_of_a_relay_that_is_not_used) {
  join();
  pass_with_heartbeats(failure_ns_ * 2);
  EXPECT_TRUE(state().is_ok()) << state().text();
  EXPECT_THAT(commands(), ::testing::IsEmpty());
  EXPECT_EQ(pings_, 0U);
}

// ---- what is counted there

TEST_F(RelayedWorkerTest,
       what_goes_to_relays_is_counted_apart_from_what_they_exchange_with_servers) {
  join_relays();
  std::vector<float> values(40, 2.5F);
  submit("w", values);
  answer_all();
  door_.relay_counters().pushed_bytes = 80;
  door_.relay_counters().pulled_bytes = 90;
  turn();
  const WorkerMetrics metrics = door_.metrics();
  EXPECT_EQ(metrics.pushed_bytes, 80U);
  EXPECT_EQ(metrics.pulled_bytes, 90U);
  EXPECT_EQ(metrics.local_pushed_bytes, 160U);
  EXPECT_EQ(metrics.local_pulled_bytes, 160U);
  EXPECT_EQ(metrics.finished_bytes, 160U);
}

TEST_F(RelayedWorkerTest, one_machine_needs_no_servers) {
  join_relays(wire::Summing::kAlone);
  EXPECT_EQ(door_.membership().server_count(), 0u);
  std::vector<float> values(40, 2.5F);
  const HandleId handle = submit("w", values);
  answer_all();
  EXPECT_TRUE(result(handle).is_ok());
}

// ---- the door alone

// A tensor that may be submitted.
class Submitted : public ::testing::Test {
 protected:
  float values_[4] = {1, 2, 3, 4};
  float out_[4] = {};
  Submission good() {
    Submission one;
    one.name = "w";
    one.input = values_;
    one.output = out_;
    one.element_count = 4;
    return one;
  }
};

class DoorTest : public Submitted {
 protected:
  WorkerDoor door_{Config{}, nullptr};
  std::string refusal(const Submission& one) {
    const Result<HandleId> handle = door_.submit(one);
    EXPECT_FALSE(handle.is_ok());
    EXPECT_TRUE(handle.status().is(Code::kInvalidArgument)) << handle.status().text();
    return handle.status().message();
  }
};

TEST_F(DoorTest, a_job_of_one_copies_at_once) {
  ASSERT_TRUE(door_.is_job_of_one());
  EXPECT_TRUE(door_.membership().wait(-1).is_ok());
  EXPECT_EQ(door_.membership().rank(), 0u);
  EXPECT_EQ(door_.membership().size(), 1u);
  EXPECT_EQ(door_.membership().server_count(), 0u);
  for (std::uint32_t operation = 0; operation < kOperationCount; ++operation) {
    Submission one = good();
    const std::string name = "w" + std::to_string(operation);
    one.name = name;
    one.operation = operation;
    std::fill(std::begin(out_), std::end(out_), 0.F);
    const HandleId handle = door_.submit(one).value();
    EXPECT_TRUE(door_.poll(handle).value());
    EXPECT_TRUE(door_.wait(handle, -1).is_ok());
    EXPECT_THAT(out_, ::testing::ElementsAre(1, 2, 3, 4));
  }
  EXPECT_TRUE(door_.wait(door_.begin_barrier().value(), -1).is_ok());
  EXPECT_EQ(door_.metrics().finished_bytes, 16u * kOperationCount);
}

TEST_F(DoorTest, a_job_of_one_scales_in_the_accumulators_precision) {
  Submission one = good();
  one.scale = 0.5;
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
  EXPECT_THAT(out_, ::testing::ElementsAre(0.5, 1, 1.5, 2));
  EXPECT_THAT(values_, ::testing::ElementsAre(1, 2, 3, 4));
  one.output = values_;
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
  EXPECT_THAT(values_, ::testing::ElementsAre(0.5, 1, 1.5, 2)) << "in place";
  one.scale = 0.25;
  EXPECT_THAT(door_.wait(door_.submit(one).value(), -1).message(),
              ::testing::AllOf(HasSubstr("sum times 0.5"), HasSubstr("sum times 0.25")));
  one.scale = 1;
  EXPECT_THAT(door_.wait(door_.submit(one).value(), -1).message(), HasSubstr("before"));
  std::uint16_t half[] = {0x7bff, 0x3c00};  // 65504, 1
  one = good();
  one.name = "half";
  one.input = one.output = half;
  one.element_count = 2;
  one.dtype = static_cast<std::uint32_t>(DType::kFloat16);
  one.scale = 1.0 / 4;
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
  EXPECT_THAT(half, ::testing::ElementsAre(0x73ff, 0x3400));
}

TEST_F(DoorTest, a_scale_that_cannot_be_is_refused_with_the_tensors_name) {
  const auto refusal_of = [this](Operation operation, double scale, DType dtype) {
    Submission one = good();
    one.operation = static_cast<std::uint32_t>(operation);
    one.scale = scale;
    one.dtype = static_cast<std::uint32_t>(dtype);
    return refusal(one);
  };
  for (const Operation operation :
       {Operation::kMin, Operation::kMax, Operation::kProduct, Operation::kBroadcast}) {
    EXPECT_EQ(refusal_of(operation, 2, DType::kFloat32),
              "tensor 'w': only sums and averages have a scale");
  }
  EXPECT_THAT(refusal_of(Operation::kSum, NAN, DType::kFloat32), HasSubstr("finite"));
  EXPECT_THAT(refusal_of(Operation::kSum, INFINITY, DType::kInt32), HasSubstr("finite"));
  EXPECT_THAT(refusal_of(Operation::kSum, 1e300, DType::kFloat16), HasSubstr("float32"));
  EXPECT_THAT(refusal_of(Operation::kSum, 2, DType::kBool), HasSubstr("booleans"));
}

TEST_F(DoorTest, members_of_a_job_of_one_are_its_one_rank) {
  Submission one = good();
  const std::uint32_t ranks[] = {0, 1};
  one.members = ranks;
  one.member_count = 2;
  EXPECT_THAT(refusal(one), HasSubstr("member 1 is not a rank of a job of 1"));
  one.members = ranks + 1;
  one.member_count = 1;
  EXPECT_THAT(refusal(one), HasSubstr("member 1"));
  one.member_count = 0;
  EXPECT_THAT(refusal(one), HasSubstr("empty"));
  one.members = nullptr;
  one.member_count = 1;
  EXPECT_THAT(refusal(one), HasSubstr("NULL"));
  one.members = ranks;
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
  one.members = nullptr;
  one.member_count = 0;
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok()) << "all are the same";
}

TEST_F(DoorTest, for_the_root_alone_the_root_has_an_output) {
  Submission one = good();
  one.root_only = true;
  one.root = 1;
  EXPECT_THAT(refusal(one), HasSubstr("root 1 is not a rank"));
  one.root = 0;
  one.output = nullptr;
  EXPECT_THAT(refusal(one), HasSubstr("output is NULL"));
  one.output = out_;
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
  EXPECT_THAT(out_, ::testing::ElementsAre(1, 2, 3, 4));
  one.operation = static_cast<std::uint32_t>(Operation::kBroadcast);
  EXPECT_THAT(refusal(one), HasSubstr("broadcast"));
}

TEST_F(DoorTest, a_job_of_one_in_place_and_empty_tensors_work) {
  Submission one = good();
  one.output = values_;
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
  one.name = "empty";
  one.input = nullptr;
  one.output = nullptr;
  one.element_count = 0;
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
}

TEST_F(DoorTest, a_job_of_one_remembers_names_like_a_larger_one) {
  Submission one = good();
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
  one.element_count = 3;
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is(Code::kInvalidArgument));
  one = good();
  one.name = "once";
  one.once = true;
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is(Code::kInvalidArgument));
}

TEST_F(DoorTest, a_name_keeps_its_shape) {
  const std::vector<std::uint64_t> square = {2, 2};
  const std::vector<std::uint64_t> flat = {4};
  const std::vector<std::uint64_t> deep = {1, 2, 1, 2, 1};
  Submission one = good();
  one.shape = square;
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
  one.shape = flat;
  const Status status = door_.wait(door_.submit(one).value(), -1);
  EXPECT_TRUE(status.is(Code::kInvalidArgument));
  EXPECT_THAT(status.message(), HasSubstr("was float32, shape 2x2, 16 bytes, sum before"));
  one.name = "flat";
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
  one.shape = {};
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok()) << "one dimension is no shape";
  one.name = "deep";
  one.shape = deep;
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
}

TEST_F(DoorTest, a_shape_that_cannot_be_is_refused_with_both_values) {
  const auto refusal_of = [this](std::vector<std::uint64_t> dimensions, std::uint64_t count) {
    Submission one = good();
    one.element_count = count;
    one.shape = dimensions;
    return refusal(one);
  };
  EXPECT_THAT(refusal_of({2, 3}, 4), HasSubstr("shape 2x3 has 6 elements, but element_count is 4"));
  EXPECT_THAT(refusal_of({5}, 4), HasSubstr("shape 5 has 5 elements, but element_count is 4"));
  EXPECT_THAT(refusal_of({0, 3}, 4), HasSubstr("shape 0x3 has 0 elements"));
  const std::uint64_t large = std::uint64_t{1} << 32;
  EXPECT_THAT(refusal_of({large, large}, 0), HasSubstr("more elements than memory"));
  EXPECT_THAT(refusal_of({0, large, large}, 0), HasSubstr("more elements than memory"));
  EXPECT_THAT(refusal_of(std::vector<std::uint64_t>(65, 1), 1), HasSubstr("65 dimensions"));
  Submission most = good();
  const std::vector<std::uint64_t> ones(64, 1);
  most.element_count = 1;
  most.shape = ones;
  EXPECT_TRUE(door_.wait(door_.submit(most).value(), -1).is_ok());
}

TEST_F(DoorTest, wrong_calls_are_refused_and_say_why) {
  Submission one = good();
  one.name = "";
  EXPECT_THAT(refusal(one), HasSubstr("name"));
  const std::string long_name(1025, 'n');
  one.name = long_name;
  EXPECT_THAT(refusal(one), HasSubstr("1025 bytes"));
  one = good();
  one.dtype = 13;
  EXPECT_THAT(refusal(one), HasSubstr("dtype"));
  one = good();
  one.operation = 6;
  EXPECT_THAT(refusal(one), HasSubstr("operation"));
  one = good();
  one.dtype = static_cast<std::uint32_t>(DType::kBool);
  one.operation = static_cast<std::uint32_t>(Operation::kAverage);
  EXPECT_THAT(refusal(one), HasSubstr("average"));
  one = good();
  one.operation = static_cast<std::uint32_t>(Operation::kBroadcast);
  one.root = 1;
  EXPECT_THAT(refusal(one), HasSubstr("root 1"));
  one = good();
  one.input = nullptr;
  EXPECT_THAT(refusal(one), HasSubstr("input is NULL"));
  one = good();
  one.output = nullptr;
  EXPECT_THAT(refusal(one), HasSubstr("output is NULL"));
  one = good();
  one.element_count = ~std::uint64_t{0} / 2;
  EXPECT_THAT(refusal(one), HasSubstr("more than memory"));
  one = good();
  one.output = values_ + 1;
  one.element_count = 3;
  EXPECT_THAT(refusal(one), HasSubstr("overlap"));
  one.input = values_ + 1;
  one.output = values_;
  EXPECT_THAT(refusal(one), HasSubstr("overlap"));
  one.input = values_ + 2;
  one.element_count = 2;
  EXPECT_TRUE(door_.submit(one).is_ok()) << "side by side is fine";
  EXPECT_EQ(door_.pending_handles(), 0u);
}

TEST_F(DoorTest, a_name_of_1024_bytes_is_allowed) {
  const std::string long_name(1024, 'n');
  Submission one = good();
  one.name = long_name;
  EXPECT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
}

TEST_F(DoorTest, nothing_is_taken_after_leaving) {
  door_.leave(true);
  door_.leave(true);
  EXPECT_TRUE(door_.submit(good()).status().is(Code::kCancelled));
  EXPECT_TRUE(door_.begin_barrier().status().is(Code::kCancelled));
}

TEST_F(DoorTest, four_threads_submit_to_a_job_of_one) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      std::vector<float> in(16, static_cast<float>(t));
      std::vector<float> out(16);
      const std::string name = "thread " + std::to_string(t);
      for (int i = 0; i < 500; ++i) {
        Submission one;
        one.name = name;
        one.input = in.data();
        one.output = out.data();
        one.element_count = 16;
        ASSERT_TRUE(door_.wait(door_.submit(one).value(), -1).is_ok());
        ASSERT_EQ(out, in);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(door_.metrics().finished_operations, 2000u);
}

// ---- names that take long

TEST_F(WorkerTest, a_shard_whose_name_is_still_looked_up_is_not_given_up) {
  reach_scheduler();
  transport_.is_slow_to_name = true;
  say(Kind::kRoster, wire::encode(roster_of_two()));
  turn();
  pass_with_heartbeats(5 * kSecond);
  EXPECT_TRUE(door_.membership().state().is(Code::kAgain)) << door_.membership().state().text();
  transport_.is_slow_to_name = false;
  pass_with_heartbeats(config_.timeout.failure_ns / 2);  // from now on it is a host that is missed
  EXPECT_TRUE(door_.membership().state().is(Code::kAgain)) << door_.membership().state().text();
  for (std::size_t i = 0; i < 2; ++i) transport_.up(shard(i));
  turn();
  EXPECT_TRUE(door_.membership().state().is_ok()) << door_.membership().state().text();
}

TEST_F(WorkerTest, a_name_that_is_looked_up_for_ever_is_an_end_all_the_same) {
  reach_scheduler();
  transport_.is_slow_to_name = true;
  say(Kind::kRoster, wire::encode(roster_of_two()));
  turn();
  pass_with_heartbeats(Transport::kLookUpNs);
  EXPECT_TRUE(door_.membership().state().is(Code::kAgain)) << door_.membership().state().text();
  pass_with_heartbeats(config_.timeout.failure_ns + kSecond);
  EXPECT_THAT(door_.membership().state().message(),
              AllOf(HasSubstr("server 0"), HasSubstr("cannot be reached")));
}

// ---- no memory

TEST_F(WorkerTest, a_turn_that_throws_ends_the_job_with_a_name_and_nobody_waits_for_ever) {
  join();
  std::vector<float> values(16);
  const HandleId handle = submit("a", values);
  transport_.no_memory = 3;
  TimeNs now = now_;
  class Ticking final : public Clock {
   public:
    explicit Ticking(TimeNs& now) : now_(now) {}
    TimeNs now() override { return now_ += kMillisecond; }

   private:
    TimeNs& now_;
  } clock(now);
  class NoWaiting final : public Waiter {
   public:
    explicit NoWaiting(std::function<void()> each) : each_(std::move(each)) {}
    void wait(TimeNs /*timeout_ns*/) override { each_(); }
    void wake() override {}

   private:
    std::function<void()> each_;
  };
  const PeerId peer = scheduler();
  bool told = false;
  NoWaiting waiter([&] {
    // What the others do: the scheduler ends the job, and connections that were closed end.
    if (!told && transport_.take(Kind::kFail)) {
      told = true;
      wire::Header header;
      header.kind = Kind::kFail;
      header.epoch = Epoch(1);
      transport_.say(peer, header, wire::encode(wire::Text{"ended", 1}));
    }
  });
  const std::atomic<bool> stop{false};
  run_actor(worker_, waiter, clock, stop);
  EXPECT_TRUE(told) << "the scheduler was told";
  EXPECT_TRUE(worker_.finished());
  EXPECT_TRUE(result(handle).is(Code::kSystem));
  EXPECT_THAT(door_.membership().state().message(), HasSubstr("out of memory"));
}

// ---- the door and devices

// What a door has of its process's devices; the test plays them.
class PlayedPlaces final : public device::Places {
 public:
  Result<device::Place> place(int ordinal, device::abi::Stream stream, const void* input,
                              const void* output) override {
    asked.push_back({ordinal, stream, input, output});
    if (!refusal.is_ok()) return refusal;
    return device::Place{};
  }
  Status post(device::Alone&& alone) override {
    if (!no_room.is_ok()) return no_room;
    posted.push_back(std::move(alone));
    return Status::ok();
  }

  struct Asked {
    int ordinal;
    device::abi::Stream stream;
    const void* input;
    const void* output;
  };
  Status refusal = Status::ok();
  Status no_room = Status::ok();
  std::vector<Asked> asked;
  std::vector<device::Alone> posted;
};

class DeviceDoorTest : public Submitted {
 protected:
  // On device 1. The door does not touch its memory.
  Submission good() {
    Submission one = Submitted::good();
    one.device = Submission::OnDevice{.ordinal = 1, .stream = stream_};
    return one;
  }
  PlayedPlaces places_;
  WorkerDoor door_{Config{}, nullptr, &places_};
  int place_ = 0;
  const device::abi::Stream stream_ = reinterpret_cast<device::abi::Stream>(&place_);
};

TEST_F(DeviceDoorTest, a_job_of_one_has_the_device_copy_and_ends_when_it_says_so) {
  const HandleId handle = door_.submit(good()).value();
  ASSERT_EQ(places_.asked.size(), 1U);
  EXPECT_EQ(places_.asked[0].ordinal, 1);
  EXPECT_EQ(places_.asked[0].stream, stream_);
  EXPECT_EQ(places_.asked[0].input, values_);
  EXPECT_EQ(places_.asked[0].output, out_);
  ASSERT_EQ(places_.posted.size(), 1U);
  device::Alone& alone = places_.posted[0];
  EXPECT_EQ(alone.input, reinterpret_cast<std::uintptr_t>(values_));
  EXPECT_EQ(alone.output, reinterpret_cast<std::uintptr_t>(out_));
  EXPECT_EQ(alone.bytes, sizeof values_);
  EXPECT_FALSE(alone.finish) << "nothing is done with the values";
  EXPECT_FALSE(door_.poll(handle).value());
  alone.ended(Status::ok());
  EXPECT_TRUE(door_.wait(handle, -1).is_ok());
  EXPECT_EQ(door_.metrics().finished_bytes, sizeof values_);
  EXPECT_EQ(door_.metrics().finished_operations, 1U);
}

TEST_F(DeviceDoorTest, a_scale_is_applied_in_host_memory) {
  Submission one = good();
  one.scale = 0.5;
  const HandleId handle = door_.submit(one).value();
  ASSERT_TRUE(places_.posted[0].finish);
  places_.posted[0].finish(std::as_writable_bytes(std::span(values_)));
  EXPECT_THAT(values_, ::testing::ElementsAre(0.5, 1, 1.5, 2));
  places_.posted[0].ended(Status::ok());
  EXPECT_TRUE(door_.wait(handle, -1).is_ok());
}

TEST_F(DeviceDoorTest, what_a_device_says_comes_with_the_tensors_name) {
  places_.refusal = {Code::kUnsupported, "no driver"};
  const Result<HandleId> refused = door_.submit(good());
  ASSERT_FALSE(refused.is_ok());
  EXPECT_TRUE(refused.status().is(Code::kUnsupported));
  EXPECT_EQ(refused.status().message(), "tensor 'w': no driver");

  places_.refusal = Status::ok();
  const HandleId handle = door_.submit(good()).value();
  places_.posted[0].ended({Code::kSystem, "the bus is gone"});
  const Status ended = door_.wait(handle, -1);
  EXPECT_TRUE(ended.is(Code::kSystem));
  EXPECT_EQ(ended.message(), "tensor 'w': the bus is gone");
  EXPECT_EQ(door_.metrics().failed_operations, 1U);
  EXPECT_EQ(door_.metrics().finished_bytes, 0U);
}

TEST_F(DeviceDoorTest, a_copy_that_finds_no_room_leaves_no_handle) {
  places_.no_room = {Code::kAgain, "full"};
  EXPECT_TRUE(door_.submit(good()).status().is(Code::kAgain));
  EXPECT_FALSE(door_.poll(HandleId(1)).is_ok());
}

TEST_F(DeviceDoorTest, a_name_keeps_its_shape_there_too) {
  EXPECT_TRUE(door_.submit(good()).is_ok());
  Submission other = good();
  other.element_count = 2;
  const HandleId handle = door_.submit(other).value();
  EXPECT_THAT(door_.wait(handle, -1).message(), HasSubstr("tensor 'w'"));
  EXPECT_EQ(places_.posted.size(), 1U);
}

TEST_F(DeviceDoorTest, of_no_elements_no_address_is_looked_at) {
  Submission one = good();
  one.element_count = 0;
  EXPECT_TRUE(door_.submit(one).is_ok());
  EXPECT_EQ(places_.asked[0].input, nullptr);
  EXPECT_EQ(places_.asked[0].output, nullptr);
}

TEST(DoorWithoutDevices, refuses_tensors_on_them) {
  WorkerDoor door(Config{}, nullptr);
  float value = 1;
  Submission one;
  one.name = "w";
  one.input = one.output = &value;
  one.element_count = 1;
  one.device = Submission::OnDevice{};
  EXPECT_TRUE(door.submit(one).status().is(Code::kUnsupported));
}

}  // namespace
}  // namespace byteps
