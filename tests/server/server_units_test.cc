// The units of one server process: who is told to leave, when, and how the process ends.
#include "server/server_units.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/net/scripted_transport.h"

namespace byteps {
namespace {

class NobodyWaits : public Waiter {
 public:
  void wait(TimeNs /*timeout_ns*/) override {}
  void wake() override { ++wakes; }
  int wakes = 0;
};

// One member without shards to speak of; the test is its scheduler.
struct Unit {
  Unit()
      : member(config, transport, "host:1", {{"10.0.0.2", 1000}}, {&inbox}, notices,
               Log("server", LogLevel::kSilent, nullptr)) {
    turn();
    Hello scheduler;
    scheduler.role = Role::kScheduler;
    transport.up(transport.attempts.back().peer, scheduler);
    turn();
  }
  static Config settings() {
    Config config;
    config.job.scheduler_host = "10.0.0.1";
    config.job.scheduler_port = 9000;
    config.recovers = true;
    return config;
  }
  void turn() {
    std::vector<ShardCommand> taken;
    do {
      inbox.drain(taken);
    } while (member.turn(0) > 0 || !taken.empty());
  }
  void hear(wire::Kind kind, const std::vector<std::byte>& payload) {
    wire::Header header;
    header.kind = kind;
    header.epoch = Epoch(1);
    transport.say(transport.attempts.back().peer, header, payload);
    turn();
  }
  void get_a_place() {
    wire::Roster roster;
    roster.epoch = Epoch(1);
    roster.partition_bytes = roster.frame_bytes = 4096;
    roster.members = {{Role::kWorker, 0, "w", {}}, {Role::kServer, 0, "s", {{"10.0.0.2", 1000}}}};
    roster.slots = {{.server = 0, .shard = 0, .weight = 256}};
    roster.recovers = true;
    hear(wire::Kind::kRoster, wire::encode(roster));
  }
  void be_replaced() {
    hear(wire::Kind::kFail, wire::encode(wire::Text{"another has its place",
                                                    static_cast<std::uint32_t>(Code::kDisconnected),
                                                    {.kind = CauseKind::kReplaced}}));
  }
  void hear_the_end() { hear(wire::Kind::kLeave, wire::encode(wire::Leave{})); }
  bool has_said_leave() {
    bool found = false;
    for (const auto& sent : transport.take_sent()) found |= sent.header.kind == wire::Kind::kLeave;
    turn();
    return found;
  }

  const Config config = settings();
  ScriptedTransport transport;
  Mailbox<ShardCommand> inbox{16, nullptr};
  Mailbox<ShardNotice> notices{16, nullptr};
  ServerMember member;
  NobodyWaits waiter;
};

class ServerUnitsTest : public testing::Test {
 protected:
  Unit& add() {
    all_.push_back(std::make_unique<Unit>());
    units_.add(all_.back()->member, all_.back()->waiter);
    return *all_.back();
  }
  // As the process does after each turn of one of them.
  void look() {
    for (const auto& unit : all_) unit->turn();
    units_.look();
    for (const auto& unit : all_) unit->turn();
    units_.look();
  }
  std::vector<std::unique_ptr<Unit>> all_;
  ServerUnits units_;
};

TEST_F(ServerUnitsTest, told_to_leave_all_say_so_and_the_process_has_left_when_all_are_replaced) {
  Unit& first = add();
  Unit& second = add();
  first.get_a_place();
  second.get_a_place();
  units_.request_leave();
  look();
  EXPECT_TRUE(first.has_said_leave());
  EXPECT_TRUE(second.has_said_leave());
  EXPECT_GT(second.waiter.wakes, 0);
  first.be_replaced();
  look();
  EXPECT_FALSE(units_.all_ended());
  second.be_replaced();
  look();
  EXPECT_TRUE(units_.all_ended());
  EXPECT_TRUE(units_.outcome().is_ok());
  EXPECT_TRUE(units_.have_left());
}

TEST_F(ServerUnitsTest, what_is_opened_while_it_leaves_gets_its_place_first_and_then_leaves_too) {
  Unit& first = add();
  first.get_a_place();
  units_.request_leave();
  look();
  ASSERT_TRUE(units_.may_open());
  Unit& second = add();
  look();
  EXPECT_FALSE(second.has_said_leave());
  second.get_a_place();
  look();
  EXPECT_TRUE(second.has_said_leave());
}

TEST_F(ServerUnitsTest, a_unit_without_a_place_goes_with_the_last_that_has_one) {
  Unit& first = add();
  first.get_a_place();
  units_.request_leave();
  look();
  Unit& second = add();
  first.be_replaced();
  look();
  EXPECT_TRUE(second.has_said_leave());
  second.hear_the_end();
  look();
  EXPECT_TRUE(units_.have_left());
}

TEST_F(ServerUnitsTest, when_the_job_is_over_for_one_those_without_a_place_go_too) {
  Unit& first = add();
  Unit& second = add();
  first.get_a_place();
  first.hear_the_end();
  look();
  EXPECT_TRUE(second.has_said_leave());
  EXPECT_FALSE(units_.may_open());
}

TEST_F(ServerUnitsTest, one_that_was_replaced_without_being_told_to_leave_is_no_end_of_the_others) {
  Unit& first = add();
  Unit& second = add();
  first.get_a_place();
  second.get_a_place();
  first.be_replaced();
  look();
  EXPECT_FALSE(second.has_said_leave());
  EXPECT_TRUE(units_.may_open());
  second.hear_the_end();
  look();
  EXPECT_TRUE(units_.all_ended());
  EXPECT_TRUE(units_.outcome().is_ok());
  EXPECT_FALSE(units_.have_left());
}

}  // namespace
}  // namespace byteps
