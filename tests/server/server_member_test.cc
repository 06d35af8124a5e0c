// The server's side of joining, with the scheduler and the shards played by the test.
#include "server/server_member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/net/scripted_transport.h"

namespace byteps {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

Config config() {
  Config config;
  config.recovers = false;
  config.job.scheduler_host = "10.0.0.1";
  config.job.scheduler_port = 9000;
  return config;
}

class ServerMemberTest : public testing::Test {
 protected:
  ServerMemberTest()
      : config_(config()),
        inbox_0_(1, nullptr),
        inbox_1_(1, nullptr),
        notices_(16, nullptr),
        orders_(1, nullptr),
        member_(config_, transport_, "host:1", {{"10.0.0.2", 1000}, {"10.0.0.2", 1001}},
                {&inbox_0_, &inbox_1_}, notices_, Log("server", LogLevel::kSilent, nullptr),
                &orders_) {}

  void TearDown() override { EXPECT_EQ(transport_.vain_closes, 0U); }

  void turn() {
    while (member_.turn(now_) > 0) {
    }
  }
  void connect() {
    turn();
    ASSERT_THAT(transport_.attempts, SizeIs(1));
    Hello scheduler;
    scheduler.role = Role::kScheduler;
    transport_.up(transport_.attempts.back().peer, scheduler);
    turn();
  }
  void say(wire::Kind kind, const std::vector<std::byte>& payload, std::uint32_t epoch = 1) {
    wire::Header header;
    header.kind = kind;
    header.epoch = Epoch(epoch);
    transport_.say(transport_.attempts.back().peer, header, payload);
    turn();
  }
  void say_roster(std::uint32_t epoch, std::uint32_t worker_count, bool recovers = false) {
    wire::Roster roster;
    roster.recovers = recovers;
    roster.epoch = Epoch(epoch);
    roster.partition_bytes = 4'096'000;
    roster.frame_bytes = 32768;
    for (std::uint32_t rank = 0; rank < worker_count; ++rank) {
      roster.members.push_back({Role::kWorker, rank, "w", {}});
    }
    roster.members.push_back({Role::kServer, 0, "s", {{"10.0.0.2", 1000}}});
    roster.slots = {{.server = 0, .shard = 0, .weight = 256}};
    say(wire::Kind::kRoster, wire::encode(roster), epoch);
  }
  void applied(std::uint32_t shard, std::uint32_t epoch) {
    ShardNotice notice;
    notice.shard = ShardIndex(shard);
    notice.epoch = Epoch(epoch);
    ASSERT_TRUE(notices_.post(std::move(notice)).is_ok());
    turn();
  }
  std::vector<ShardCommand> commands(Mailbox<ShardCommand>& inbox) {
    std::vector<ShardCommand> taken;
    inbox.drain(taken);
    turn();
    return taken;
  }
  // Epochs that were confirmed since the last call.
  std::vector<std::uint32_t> confirmed() {
    std::vector<std::uint32_t> epochs;
    for (const auto& sent : transport_.take_sent()) {
      if (sent.header.kind == wire::Kind::kHeartbeat) epochs.push_back(sent.header.epoch.value);
    }
    turn();
    return epochs;
  }

  const Config config_;
  ScriptedTransport transport_;
  Mailbox<ShardCommand> inbox_0_;
  Mailbox<ShardCommand> inbox_1_;
  Mailbox<ShardNotice> notices_;
  Mailbox<UnitOrder> orders_;
  ServerMember member_;
  TimeNs now_ = 0;
};

TEST_F(ServerMemberTest, joins_with_an_endpoint_per_shard) {
  connect();
  EXPECT_EQ(transport_.attempts[0].to, (Endpoint{"10.0.0.1", 9000}));
  const auto sent = transport_.take_sent();
  ASSERT_THAT(sent, SizeIs(1));
  ASSERT_EQ(sent[0].header.kind, wire::Kind::kJoin);
  const wire::Join join = wire::decode_join(sent[0].payload).value();
  EXPECT_EQ(join.role, Role::kServer);
  EXPECT_EQ(join.host, "host:1");
  EXPECT_THAT(join.endpoints,
              testing::ElementsAre(Endpoint{"10.0.0.2", 1000}, Endpoint{"10.0.0.2", 1001}));
}

TEST_F(ServerMemberTest, confirms_an_epoch_only_when_every_shard_has_applied_it) {
  connect();
  say_roster(4, 3);
  for (Mailbox<ShardCommand>* inbox : {&inbox_0_, &inbox_1_}) {
    const auto taken = commands(*inbox);
    ASSERT_THAT(taken, SizeIs(1));
    EXPECT_EQ(taken[0].kind, ShardCommand::Kind::kBeginEpoch);
    EXPECT_EQ(taken[0].facts.epoch, Epoch(4));
    EXPECT_EQ(taken[0].facts.worker_count, 3U);
    EXPECT_EQ(taken[0].facts.placement->partition_bytes(), 4'096'000U);
    EXPECT_EQ(taken[0].facts.placement->frame_bytes(), 32768U);
  }
  EXPECT_THAT(confirmed(), SizeIs(0));
  applied(1, 4);
  applied(1, 4);
  EXPECT_THAT(confirmed(), SizeIs(0));
  applied(0, 4);
  EXPECT_THAT(confirmed(), testing::ElementsAre(4));
}

TEST_F(ServerMemberTest, a_late_word_about_a_former_epoch_confirms_nothing) {
  connect();
  say_roster(4, 3);
  say_roster(5, 2);  // the inboxes are full of the first one: kept until there is room
  EXPECT_EQ(commands(inbox_0_).at(0).facts.epoch, Epoch(4));
  EXPECT_EQ(commands(inbox_0_).at(0).facts.epoch, Epoch(5));
  applied(0, 4);
  applied(1, 4);
  EXPECT_THAT(confirmed(), SizeIs(0));
  applied(0, 5);
  applied(1, 5);
  EXPECT_THAT(confirmed(), testing::ElementsAre(5));
}

TEST_F(ServerMemberTest, when_the_job_is_over_the_shards_are_stopped_and_it_ends_well) {
  connect();
  say_roster(1, 1);
  say(wire::Kind::kLeave, wire::encode(wire::Leave{}));
  EXPECT_FALSE(member_.finished()) << "the shards' inboxes are full";
  for (Mailbox<ShardCommand>* inbox : {&inbox_0_, &inbox_1_}) {
    EXPECT_EQ(commands(*inbox).at(0).kind, ShardCommand::Kind::kBeginEpoch);
    EXPECT_EQ(commands(*inbox).at(0).kind, ShardCommand::Kind::kStop);
  }
  EXPECT_TRUE(member_.finished());
  EXPECT_TRUE(member_.outcome().is_ok());
}

TEST_F(ServerMemberTest, a_failure_of_the_job_ends_it_with_the_reason) {
  connect();
  say(wire::Kind::kFail, wire::encode(wire::Text{"worker 1 is gone",
                                                 static_cast<std::uint32_t>(Code::kDisconnected)}));
  EXPECT_EQ(commands(inbox_0_).at(0).kind, ShardCommand::Kind::kStop);
  EXPECT_EQ(commands(inbox_1_).at(0).kind, ShardCommand::Kind::kStop);
  EXPECT_TRUE(member_.finished());
  EXPECT_EQ(member_.outcome().code(), Code::kDisconnected);
  EXPECT_THAT(member_.outcome().message(), HasSubstr("worker 1 is gone"));
}

TEST_F(ServerMemberTest, a_shard_that_cannot_go_on_fails_the_job) {
  connect();
  say_roster(1, 1);
  transport_.take_sent();
  ShardNotice notice;
  notice.kind = ShardNotice::Kind::kFailed;
  notice.why = Status(Code::kSystem, "no memory");
  ASSERT_TRUE(notices_.post(std::move(notice)).is_ok());
  turn();
  const auto sent = transport_.take_sent();
  ASSERT_THAT(sent, SizeIs(1));
  ASSERT_EQ(sent[0].header.kind, wire::Kind::kFail);
  EXPECT_THAT(wire::decode_text(sent[0].payload).value().text, HasSubstr("no memory"));
}

TEST_F(ServerMemberTest, told_to_stop_it_tells_the_scheduler_and_ends_even_without_an_answer) {
  connect();
  say_roster(1, 1);
  transport_.take_sent();
  member_.request_stop();
  turn();
  const auto sent = transport_.take_sent();
  ASSERT_FALSE(sent.empty());
  EXPECT_EQ(sent[0].header.kind, wire::Kind::kFail);
  EXPECT_FALSE(member_.finished());
  now_ = config_.timeout.failure_ns;
  turn();
  for (Mailbox<ShardCommand>* inbox : {&inbox_0_, &inbox_1_}) {
    commands(*inbox);
    EXPECT_EQ(commands(*inbox).at(0).kind, ShardCommand::Kind::kStop);
  }
  transport_.give_back_all();
  turn();
  EXPECT_TRUE(member_.finished());
  EXPECT_EQ(member_.outcome().code(), Code::kCancelled);
}

// ---- where a server that is lost gets a successor

TEST_F(ServerMemberTest, told_to_leave_it_serves_until_another_has_its_place_and_ends_well) {
  connect();
  say_roster(1, 1, true);
  commands(inbox_0_);
  commands(inbox_1_);
  transport_.take_sent();
  EXPECT_EQ(member_.state(), ServerMember::State::kServes);
  member_.request_leave();
  turn();
  const auto sent = transport_.take_sent();
  ASSERT_FALSE(sent.empty());
  EXPECT_EQ(sent[0].header.kind, wire::Kind::kLeave);
  EXPECT_THAT(commands(inbox_0_), SizeIs(0)) << "the shards serve";
  EXPECT_EQ(member_.state(), ServerMember::State::kServes);
  say(wire::Kind::kFail, wire::encode(wire::Text{"server 0 (other:2) has its place",
                                                 static_cast<std::uint32_t>(Code::kDisconnected),
                                                 {.kind = CauseKind::kReplaced}}));
  EXPECT_EQ(commands(inbox_0_).at(0).kind, ShardCommand::Kind::kStop);
  EXPECT_EQ(commands(inbox_1_).at(0).kind, ShardCommand::Kind::kStop);
  EXPECT_EQ(member_.state(), ServerMember::State::kEnded);
  EXPECT_TRUE(member_.outcome().is_ok());
  EXPECT_TRUE(member_.has_left());
  EXPECT_TRUE(member_.has_handed_over());
}

TEST_F(ServerMemberTest, told_to_leave_where_nobody_gets_a_successor_it_ends_the_job_as_ever) {
  connect();
  say_roster(1, 1);
  transport_.take_sent();
  member_.request_leave();
  turn();
  const auto sent = transport_.take_sent();
  ASSERT_FALSE(sent.empty());
  EXPECT_EQ(sent[0].header.kind, wire::Kind::kFail);
}

TEST_F(ServerMemberTest, a_place_to_take_is_told_to_who_opens_units_with_the_number_of_workers) {
  connect();
  say_roster(1, 3, true);
  say(wire::Kind::kAdopt, wire::encode(wire::Adopt{.rank = 4, .shards = 2}));
  std::vector<UnitOrder> ordered;
  orders_.drain(ordered);
  ASSERT_THAT(ordered, SizeIs(1));
  EXPECT_EQ(ordered[0].wanted, (wire::Adopt{.rank = 4, .shards = 2}));
  EXPECT_EQ(ordered[0].worker_count, 3U);
}

// ---- shards that stand still

class ServerMemberWatch : public ServerMemberTest {
 protected:
  void begin() {
    connect();
    say_roster(1, 1);
    answer(inbox_0_, 0);
    answer(inbox_1_, 1);
    transport_.take_sent();
  }
  // A shard's thread comes round.
  void answer(Mailbox<ShardCommand>& inbox, std::uint32_t shard) {
    for (const ShardCommand& command : commands(inbox)) {
      ShardNotice notice;
      notice.kind = command.kind == ShardCommand::Kind::kPing ? ShardNotice::Kind::kAlive
                                                              : ShardNotice::Kind::kEpochApplied;
      notice.shard = ShardIndex(shard);
      notice.epoch = Epoch(1);
      ASSERT_TRUE(notices_.post(std::move(notice)).is_ok());
      turn();
    }
  }
  // Time passes as a runner would make it pass; the scheduler lives.
  void pass(TimeNs duration, bool shard_1_lives) {
    for (const TimeNs end = now_ + duration; now_ < end;) {
      now_ = std::min(end, std::max(now_ + 1, member_.next_deadline()));
      say(wire::Kind::kHeartbeat, {});
      answer(inbox_0_, 0);
      if (shard_1_lives) answer(inbox_1_, 1);
    }
  }
  wire::Text failure() {
    for (const auto& sent : transport_.take_sent()) {
      if (sent.header.kind == wire::Kind::kFail) return wire::decode_text(sent.payload).value();
    }
    return {};
  }
  const TimeNs failure_ns_ = config_.timeout.failure_ns;
};

TEST_F(ServerMemberWatch, shards_that_come_round_are_asked_for_ever_and_nothing_happens) {
  begin();
  pass(10 * failure_ns_, true);
  EXPECT_EQ(failure().text, "");
}

TEST_F(ServerMemberWatch, a_shard_that_stands_still_for_the_failure_timeout_fails_the_job_by_name) {
  begin();
  pass(failure_ns_, true);
  pass(failure_ns_ / 2, false);
  EXPECT_EQ(failure().text, "") << "it may still come back";
  pass(failure_ns_, false);
  const wire::Text said = failure();
  EXPECT_THAT(said.text, HasSubstr("shard 1 stands still for 3 s"));
  EXPECT_EQ(said.cause.kind, CauseKind::kStandsStill);
  EXPECT_GE(said.cause.for_ns, 3 * kSecond);
}

TEST_F(ServerMemberWatch, a_shard_that_never_applies_its_epoch_is_missed_as_well) {
  connect();
  say_roster(1, 1);
  answer(inbox_0_, 0);
  transport_.take_sent();
  pass(failure_ns_ * 3 / 2, false);
  EXPECT_THAT(failure().text, HasSubstr("shard 1 stands still"));
}

TEST_F(ServerMemberWatch, a_pause_of_the_whole_process_is_no_silence_of_its_shards) {
  begin();
  for (int i = 0; i < 10; ++i) {
    pass(failure_ns_ / 3, true);
    now_ += failure_ns_ * 9 / 10;
    turn();  // before the shards got the processor
    answer(inbox_0_, 0);
    answer(inbox_1_, 1);
    say(wire::Kind::kHeartbeat, {});
  }
  EXPECT_EQ(failure().text, "");
}

}  // namespace
}  // namespace byteps
