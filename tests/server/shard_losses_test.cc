// The shard in a job that goes on without a worker that is lost, on a network that the test plays: what it says because
// of that goes to those to whom it was due, and who is served afterwards.
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/shard.h"
#include "tests/net/scripted_transport.h"
#include "tests/server/shelf_world.h"

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Kind;

// Four workers: 0 and 1 of one machine, 2 and 3 each of its own. Relays sum first.
class ShardLossesTest : public testing::Test {
 protected:
  ShardLossesTest() : shard_({}, ShardIndex(3), transport_, inbox_, outbox_, log_) {
    x_.name = "x";
    while (leader_of({WorkerRank(0), WorkerRank(1)}, key_of(x_.name), 0, 1) != WorkerRank(0)) {
      x_.name += "x";
    }
  }
  static ShardCommand beginning() {
    ShardCommand command;
    command.kind = ShardCommand::Kind::kBeginEpoch;
    command.facts = {
        .epoch = Epoch(1),
        .worker_count = 4,
        .placement = placed(256, 64),
        .groups = std::make_shared<const Groups>(std::vector<std::uint64_t>{1, 1, 2, 3}),
        .recovers = true};
    return command;
  }
  void command(ShardCommand command) { ASSERT_TRUE(inbox_.post(std::move(command)).is_ok()); }
  void tell(ShardCommand::Kind kind, std::uint32_t worker, const StandIns& stand_ins) {
    ShardCommand about;
    about.kind = kind;
    about.worker = WorkerRank(worker);
    about.stand_ins = stand_ins;
    command(std::move(about));
  }
  void lose(std::uint32_t worker, const StandIns& stand_ins = {}) {
    tell(ShardCommand::Kind::kWorkerLost, worker, stand_ins);
  }
  void leave(std::uint32_t worker) { tell(ShardCommand::Kind::kWorkerLeft, worker, {}); }
  void turn() {
    while (shard_.turn(0) > 0) {
    }
  }
  PeerId arrive(std::uint32_t rank, std::uint32_t stands_since = 0) {
    Hello hello;
    hello.rank = rank;
    hello.epoch = Epoch(1);
    hello.stands_since = stands_since;
    return transport_.arrive(hello);
  }
  void begin() {
    command(beginning());
    for (std::uint32_t rank = 0; rank < 4; ++rank) peers_[rank] = arrive(rank);
    turn();
  }
  wire::Header about(std::uint32_t worker, Kind kind) const {
    wire::Header header;
    header.kind = kind;
    header.epoch = Epoch(1);
    header.key = key_of(x_.name);
    header.worker = WorkerRank(worker);
    return header;
  }
  // As a relay, for its crew.
  void push(std::uint32_t worker, std::uint16_t lost = 0, std::uint32_t round = 0) {
    transport_.say(peers_[worker], about(worker, Kind::kDeclare), wire::encode(x_));
    wire::Header header = about(worker, Kind::kPush);
    header.round = Round(round);
    header.lost = lost;
    transport_.say(peers_[worker], header, filled(64, 1));
  }
  void ack(std::uint32_t worker, std::uint32_t count) {
    wire::Header header = about(worker, Kind::kAck);
    header.key = Key();
    header.count = count;
    transport_.say(peers_[worker], header);
  }
  std::vector<PeerId> answered() {
    std::vector<PeerId> peers;
    for (const auto& sent : transport_.take_sent()) {
      if (sent.header.kind == Kind::kAnswer) peers.push_back(sent.peer);
    }
    std::sort(peers.begin(), peers.end());
    return peers;
  }
  bool is_closed(PeerId peer) const { return transport_.closed.contains(peer); }

  wire::Declare x_ = declaration("x", DType::kUint8, 64);  // worker 0 leads it
  std::vector<std::string> lines_;
  const Log log_{"server", LogLevel::kWarning,
                 [this](std::string_view line) { lines_.emplace_back(line); }};
  ScriptedTransport transport_;
  Mailbox<ShardCommand> inbox_{16, nullptr};
  Mailbox<ShardNotice> outbox_{16, nullptr};
  Shard shard_;
  std::map<std::uint32_t, PeerId> peers_;
};

TEST_F(ShardLossesTest, what_a_loss_finishes_is_answered_on_the_connections_that_were_there) {
  begin();
  push(0);
  push(2);
  turn();
  const PeerId before = peers_[2];
  lose(3);
  peers_[2] = arrive(2);  // in the same turn
  shard_.turn(0);
  EXPECT_THAT(answered(), ElementsAre(peers_[0], before));
  turn();
  push(2);  // it does not know
  turn();
  EXPECT_THAT(answered(), ElementsAre(peers_[2]));
  ack(2, 1);
  turn();
  EXPECT_FALSE(is_closed(peers_[2]));
  EXPECT_THAT(lines_, IsEmpty()) << "it counts what came on this connection";
}

TEST_F(ShardLossesTest, so_is_what_a_worker_that_leaves_had_for_itself_alone) {
  x_.root = WorkerRank(3);
  x_.root_only = true;
  begin();
  for (const std::uint32_t worker : {0U, 2U, 3U}) push(worker);
  turn();
  EXPECT_THAT(answered(), ElementsAre(peers_[3]));
  const PeerId before = peers_[2];
  leave(3);
  peers_[2] = arrive(2);
  shard_.turn(0);
  EXPECT_THAT(answered(), ElementsAre(peers_[0], before));
  turn();
  push(2);
  turn();
  ack(2, 1);
  turn();
  EXPECT_FALSE(is_closed(peers_[2]));
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(ShardLossesTest, what_stands_in_for_a_lost_worker_is_served_in_its_place) {
  begin();
  lose(0, {{WorkerRank(0), 2}});
  turn();
  EXPECT_TRUE(is_closed(peers_[0]));
  const PeerId back = arrive(0);
  peers_[0] = arrive(0, 2);
  turn();
  EXPECT_TRUE(is_closed(back));
  EXPECT_FALSE(is_closed(peers_[0]));
  push(0, 0b01);
  push(2);
  push(3);
  turn();
  EXPECT_THAT(answered(), ElementsAre(peers_[2], peers_[3], peers_[0]));
}

// Seed 5913647: it was answered at once, and ended the connection, for it had not pushed that.
TEST_F(ShardLossesTest, what_the_former_relay_has_brought_is_answered_to_the_one_that_stands_in) {
  begin();
  push(0);
  push(2);
  turn();
  lose(0, {{WorkerRank(0), 2}});
  peers_[0] = arrive(0, 2);
  turn();
  push(3);
  turn();
  EXPECT_THAT(answered(), ElementsAre(peers_[2], peers_[3])) << "it knows of no push";
  push(0);
  turn();
  const auto sent = transport_.take_sent();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].payload, filled(64, 3)) << "what it had counts, once";
  EXPECT_EQ(sent[0].peer, peers_[0]);
  ack(0, 1);
  turn();
  EXPECT_FALSE(is_closed(peers_[0]));
}

TEST_F(ShardLossesTest, a_former_one_that_stood_in_is_served_no_more_when_another_does) {
  begin();
  lose(0, {{WorkerRank(0), 2}});
  peers_[0] = arrive(0, 2);
  turn();
  lose(1, {});  // none is left of the machine
  turn();
  EXPECT_TRUE(is_closed(peers_[0]));
  EXPECT_FALSE(is_closed(peers_[2]));
}

TEST_F(ShardLossesTest, a_shard_that_begins_later_knows_who_stands_in) {
  ShardCommand late = beginning();
  late.facts.lost = {WorkerRank(0)};
  late.facts.takes_over = true;
  late.stand_ins = {{WorkerRank(0), 2}};
  command(late);
  const PeerId back = arrive(0);
  const PeerId guest = arrive(0, 2);
  turn();
  ASSERT_TRUE(is_closed(back));
  EXPECT_THAT(transport_.closed.at(back).message(), HasSubstr("one since 2"));
  EXPECT_FALSE(is_closed(guest));
}

}  // namespace
}  // namespace byteps
