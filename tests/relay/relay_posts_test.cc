// The relays of one process: its own, and those that stand in for others of lost workers. The test plays the worker
// beside them, the others of the machine and a server on a scripted transport, and is the clock.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "relay/relay_loop.h"
#include "tests/net/scripted_transport.h"

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Kind;

using Bytes = std::vector<std::byte>;

constexpr Incarnation kJob = {std::byte{9}};
constexpr TimeNs kFailure = 3 * kSecond;
const Endpoint kServer{"10.0.0.1", 9000};
constexpr std::size_t kFrameBytes = 64;

Bytes filled(int value) {
  return Bytes(kFrameBytes, static_cast<std::byte>(value));
}

// While it is polled something may happen on another thread.
class ConcurrentTransport final : public ScriptedTransport {
 public:
  std::function<void()> meanwhile;
  std::size_t poll(TimeNs now, std::span<Event> events) override {
    if (auto happens = std::exchange(meanwhile, nullptr)) happens();
    return ScriptedTransport::poll(now, events);
  }
};

// The relays of worker 1's process. Workers 0 and 2 are on its machine, worker 3 on another, and there is a server;
// or the three of the machine are alone.
class RelayPostsTest : public testing::Test {
 protected:
  explicit RelayPostsTest(bool is_alone = false) : is_alone_(is_alone) {
    Hello& server = transport_.answers[kServer.text()];
    server.role = Role::kServer;
    server.rank = 0;
    server.epoch = Epoch(1);
    server.incarnation = kJob;
    for (const std::uint32_t leader : {0U, 1U}) {
      wire::Declare tensor;
      tensor.name = leader == 0 ? "x" : "y";
      while (leader_of({WorkerRank(0), WorkerRank(1), WorkerRank(2)}, key_of(tensor.name), 0, 1) !=
             WorkerRank(leader)) {
        tensor.name += "z";
      }
      tensor.dtype = DType::kUint8;
      tensor.total_bytes = kFrameBytes;
      (leader == 0 ? x_ : y_) = tensor;
    }
  }
  wire::Roster first_roster() const {
    wire::Roster roster;
    roster.epoch = Epoch(1);
    roster.your_rank = 1;
    roster.partition_bytes = 256;
    roster.frame_bytes = kFrameBytes;
    roster.summing = is_alone_ ? wire::Summing::kAlone : wire::Summing::kRelays;
    roster.recovers = roster.continues = true;
    for (std::uint32_t rank = 0; rank < (is_alone_ ? 3U : 4U); ++rank) {
      roster.members.push_back({.role = Role::kWorker,
                                .rank = rank,
                                .host = "w",
                                .endpoints = {},
                                .machine = rank < 3 ? 1U : 2U,
                                .relay_port = static_cast<std::uint16_t>(7000 + rank)});
    }
    roster.members.push_back(
        {.role = Role::kServer, .rank = 0, .host = "s:1", .endpoints = {kServer}});
    roster.slots.push_back({.server = 0, .shard = 0, .weight = 256});
    return roster;
  }
  void turn(TimeNs after = kMillisecond) {
    now_ += after;
    for (int i = 0; i < 1000 && loop_.turn(now_) > 0; ++i) {
    }
  }
  void pass(TimeNs duration) {
    for (const TimeNs end = now_ + duration; now_ < end && !loop_.finished();) {
      turn(50 * kMillisecond);
    }
  }
  void tell(RelayCommand command) { ASSERT_TRUE(commands_.post(std::move(command)).is_ok()); }
  void tell_begin() {
    tell({.kind = RelayCommand::Kind::kBegin,
          .roster = roster_,
          .incarnation = kJob,
          .failure_ns = kFailure});
  }
  void begin() {
    tell_begin();
    turn();
    if (!is_alone_) transport_.up(to_server(1));
    turn();
  }
  // Since this revision the rank is vacant.
  void tell_lost(std::uint32_t rank, std::uint32_t revision) {
    roster_.revision = revision;
    roster_.members[rank].vacant_since = revision;
    tell({.kind = RelayCommand::Kind::kAmend, .roster = roster_});
  }
  void lose(std::uint32_t rank, std::uint32_t revision) {
    tell_lost(rank, revision);
    turn();
  }
  void leave(std::uint32_t rank) {
    tell({.kind = RelayCommand::Kind::kLeft, .left = WorkerRank(rank)});
    turn();
  }
  void end() {
    tell({.kind = RelayCommand::Kind::kEnd, .why = {Code::kCancelled, "the worker has left"}});
    turn();
  }
  // A worker looks for the relay of another, which stands there since this revision; 0: its own.
  PeerId arrive(std::uint32_t rank, std::uint32_t relay_of, std::uint32_t since) {
    Hello hello;
    hello.rank = rank;
    hello.epoch = Epoch(1);
    hello.incarnation = kJob;
    hello.relay_of = relay_of + 1;
    hello.since = since;
    return transport_.arrive(hello);
  }
  bool is_served(std::uint32_t rank, std::uint32_t relay_of, std::uint32_t since) {
    const PeerId peer = arrive(rank, relay_of, since);
    turn();
    return !transport_.closed.contains(peer);
  }
  // The newest connection to the server in the place of this worker.
  PeerId to_server(std::uint32_t rank) const {
    const auto found =
        std::find_if(transport_.attempts.rbegin(), transport_.attempts.rend(),
                     [&](const auto& attempt) { return attempt.hello.rank == rank; });
    EXPECT_NE(found, transport_.attempts.rend()) << "nobody is there for worker " << rank;
    return found == transport_.attempts.rend() ? PeerId() : found->peer;
  }
  static wire::Header about(std::uint32_t rank, Kind kind, const wire::Declare& tensor) {
    wire::Header header;
    header.kind = kind;
    header.epoch = Epoch(1);
    header.key = key_of(tensor.name);
    header.worker = WorkerRank(rank);
    return header;
  }
  void push(PeerId peer, std::uint32_t rank, const wire::Declare& tensor, std::uint32_t round = 0) {
    transport_.say(peer, about(rank, Kind::kDeclare, tensor), wire::encode(tensor));
    wire::Header header = about(rank, Kind::kPush, tensor);
    header.round = Round(round);
    transport_.say(peer, header, filled(static_cast<int>(rank) + 1));
    turn();
  }
  void say_all(PeerId peer, std::uint32_t rank) {
    wire::Header header = about(rank, Kind::kHave, x_);
    header.key = Key();
    header.flags = wire::kAll;
    transport_.say(peer, header);
    turn();
  }
  void ack(PeerId peer, std::uint32_t rank, std::uint32_t count) {
    wire::Header header = about(rank, Kind::kAck, x_);
    header.key = Key();
    header.count = count;
    transport_.say(peer, header);
    turn();
  }
  // The server answers the oldest push.
  void answer() {
    const auto pushed = transport_.take(Kind::kPush);
    ASSERT_TRUE(pushed);
    wire::Header header = pushed->header;
    header.kind = Kind::kAnswer;
    header.count = 0;
    transport_.say(pushed->peer, header, filled(9));
    turn();
    transport_.give_back_all();
    turn();
  }
  // Who gets an answer.
  std::vector<PeerId> answered() {
    std::vector<PeerId> peers;
    while (const auto sent = transport_.take(Kind::kAnswer)) peers.push_back(sent->peer);
    std::sort(peers.begin(), peers.end());
    return peers;
  }
  bool has_told_all(PeerId server) {
    bool found = false;
    for (const auto& sent : transport_.take_sent()) {
      found |=
          sent.peer == server && sent.header.kind == Kind::kHave && sent.header.flags == wire::kAll;
    }
    turn();
    return found;
  }

  const bool is_alone_;
  const Config config_;
  ConcurrentTransport transport_;
  Mailbox<RelayCommand> commands_{16, nullptr};
  Mailbox<RelayNotice> notices_{16, nullptr};
  TrafficCounters counters_;
  const Log log_{"worker 1", LogLevel::kSilent, nullptr};
  std::vector<ShelfOutput::Absence> absences_;
  RelayLoop loop_{config_,
                  transport_,
                  {&commands_, &notices_},
                  counters_,
                  log_,
                  [this](Epoch, const ShelfOutput::Absence& each) { absences_.push_back(each); }};
  wire::Declare x_;  // worker 0's relay leads it
  wire::Declare y_;  // worker 1's
  wire::Roster roster_ = first_roster();
  TimeNs now_ = kSecond;
};

class AlonePostsTest : public RelayPostsTest {
 protected:
  AlonePostsTest() : RelayPostsTest(true) {}
};

// ---- who stands in, and is found

TEST_F(AlonePostsTest, stands_in_where_it_is_the_next_of_the_machine_that_is_not_lost) {
  begin();
  EXPECT_FALSE(is_served(2, 0, 4)) << "nobody is lost";
  lose(2, 3);
  EXPECT_FALSE(is_served(0, 2, 3)) << "worker 0 is next, in a circle";
  lose(0, 4);
  const PeerId first = arrive(1, 0, 4);
  const PeerId second = arrive(1, 2, 4);
  turn();
  EXPECT_FALSE(transport_.closed.contains(first));
  EXPECT_FALSE(transport_.closed.contains(second)) << "and for worker 2, which worker 0 did";
}

TEST_F(AlonePostsTest, who_looks_for_another_revision_of_it_is_refused) {
  begin();
  lose(0, 4);
  for (const std::uint32_t since : {3U, 5U}) {
    const PeerId stranger = arrive(2, 0, since);
    turn();
    ASSERT_TRUE(transport_.closed.contains(stranger)) << since;
    EXPECT_THAT(transport_.closed.at(stranger).message(), HasSubstr("it looks for who serves"));
  }
  EXPECT_TRUE(is_served(2, 0, 4));
}

TEST_F(AlonePostsTest, also_of_those_who_were_lost_before_it_began) {
  roster_.revision = roster_.members[0].vacant_since = 4;
  begin();
  EXPECT_TRUE(is_served(2, 0, 4));
}

TEST_F(AlonePostsTest, a_worker_that_has_heard_of_the_loss_first_is_served) {
  begin();
  transport_.meanwhile = [this] { tell_lost(0, 4); };
  const PeerId peer = arrive(2, 0, 4);
  loop_.turn(++now_);
  turn();
  EXPECT_FALSE(transport_.closed.contains(peer));
}

TEST_F(AlonePostsTest, an_amendment_that_says_it_again_begins_nothing) {
  begin();
  lose(0, 4);
  const PeerId peer = arrive(2, 0, 4);
  turn();
  lose(0, 4);
  say_all(peer, 2);
  push(peer, 2, x_);
  const PeerId own = arrive(1, 0, 4);
  turn();
  say_all(own, 1);
  push(own, 1, x_);
  EXPECT_THAT(answered(), ElementsAre(peer, own)) << "both are with the same relay";
}

TEST_F(AlonePostsTest, the_process_goes_on_to_say_that_it_is_its_workers) {
  begin();
  lose(0, 4);
  ASSERT_TRUE(transport_.told);
  EXPECT_EQ(transport_.told->rank, 1U);
  EXPECT_EQ(transport_.told->since, 0U);
}

// ---- what it does

TEST_F(AlonePostsTest, its_crew_get_the_sums_of_what_it_leads_and_the_record_is_without_the_lost) {
  begin();
  lose(0, 4);
  const PeerId one = arrive(1, 0, 4);
  const PeerId two = arrive(2, 0, 4);
  turn();
  say_all(one, 1);
  say_all(two, 2);
  push(one, 1, x_, 5);
  EXPECT_THAT(answered(), IsEmpty());
  push(two, 2, x_, 5);
  for (int i = 0; i < 2; ++i) {
    const auto sent = transport_.take(Kind::kAnswer);
    ASSERT_TRUE(sent);
    EXPECT_TRUE(sent->peer == one || sent->peer == two);
    EXPECT_EQ(sent->header.round, Round(5));
    EXPECT_EQ(sent->payload, filled(2 + 3));
  }
  ASSERT_THAT(absences_, SizeIs(1));
  EXPECT_EQ(absences_[0].worker, WorkerRank(0));
  EXPECT_EQ(absences_[0].name, x_.name);
  EXPECT_EQ(absences_[0].since, Round(5));
}

TEST_F(AlonePostsTest, what_is_said_to_it_and_to_the_workers_own_are_two_things) {
  begin();
  lose(0, 4);
  std::vector<PeerId> own, others;
  for (const std::uint32_t rank : {1U, 2U}) {
    own.push_back(arrive(rank, 1, 0));
    others.push_back(arrive(rank, 0, 4));
  }
  turn();
  for (const std::uint32_t rank : {1U, 2U}) say_all(others[rank - 1], rank);
  push(own[0], 1, x_);
  push(others[1], 2, x_);
  EXPECT_THAT(answered(), IsEmpty()) << "each has one contribution";
  transport_.end(own[1]);
  push(others[0], 1, x_);
  EXPECT_THAT(answered(), ElementsAre(others[0], others[1]));
}

TEST_F(RelayPostsTest, to_the_servers_it_is_the_lost_worker_since_that_revision) {
  begin();
  ASSERT_THAT(transport_.attempts, SizeIs(1));
  EXPECT_EQ(transport_.attempts[0].hello.stands_since, 0U);
  lose(0, 4);
  ASSERT_THAT(transport_.attempts, SizeIs(2));
  EXPECT_EQ(transport_.attempts[1].to, kServer);
  EXPECT_EQ(transport_.attempts[1].hello.rank, 0U);
  EXPECT_EQ(transport_.attempts[1].hello.stands_since, 4U);
  EXPECT_EQ(transport_.attempts[1].hello.incarnation, kJob);
  lose(2, 5);
  ASSERT_THAT(transport_.attempts, SizeIs(3));
  EXPECT_EQ(transport_.attempts[2].hello.rank, 2U);
  EXPECT_EQ(transport_.attempts[2].hello.stands_since, 5U);
}

TEST_F(RelayPostsTest, what_its_crew_have_goes_to_the_servers_without_the_lost_and_back_to_them) {
  begin();
  lose(0, 4);
  transport_.up(to_server(0));
  const PeerId one = arrive(1, 0, 4);
  const PeerId two = arrive(2, 0, 4);
  turn();
  say_all(one, 1);
  say_all(two, 2);
  push(one, 1, x_, 5);
  EXPECT_FALSE(transport_.take(Kind::kPush));
  push(two, 2, x_, 5);
  transport_.give_back_all();
  const auto pushed = transport_.take(Kind::kPush);
  ASSERT_TRUE(pushed);
  EXPECT_EQ(pushed->peer, to_server(0));
  EXPECT_EQ(pushed->header.worker, WorkerRank(0));
  EXPECT_EQ(pushed->header.round, Round(5));
  EXPECT_EQ(pushed->header.lost, 0b1) << "the first of its crew";
  EXPECT_EQ(pushed->payload, filled(2 + 3));
  wire::Header header = pushed->header;
  header.kind = Kind::kAnswer;
  transport_.say(pushed->peer, header, filled(9));
  turn();
  EXPECT_THAT(answered(), ElementsAre(one, two));
  EXPECT_EQ(counters_.pushed_bytes, pushed->payload.size()) << "of the process";
  EXPECT_EQ(counters_.pulled_bytes, pushed->payload.size());
}

TEST_F(RelayPostsTest, its_own_goes_on_beside_it) {
  begin();
  lose(0, 4);
  transport_.up(to_server(0));
  const PeerId one = arrive(1, 1, 0);
  const PeerId two = arrive(2, 1, 0);
  turn();
  push(one, 1, y_);
  push(two, 2, y_);
  const auto pushed = transport_.take(Kind::kPush);
  ASSERT_TRUE(pushed);
  EXPECT_EQ(pushed->peer, to_server(1));
  EXPECT_EQ(pushed->header.worker, WorkerRank(1));
  EXPECT_EQ(pushed->header.lost, 0b1);
}

TEST_F(RelayPostsTest, that_a_server_cannot_be_reached_by_it_is_said) {
  begin();
  lose(0, 4);
  Hello stranger = transport_.answers[kServer.text()];
  stranger.incarnation = {};
  const TimeNs end_ns = now_ + config_.timeout.recovery_ns + 3 * kFailure;
  while (now_ < end_ns) {
    const PeerId peer = to_server(0);
    if (transport_.peers.contains(peer) && !transport_.peers.at(peer).is_up) {
      transport_.up(peer, stranger);
    }
    turn(std::clamp(loop_.next_deadline() - now_, kMillisecond, kSecond));
  }
  std::vector<RelayNotice> told;
  notices_.drain(told);
  ASSERT_THAT(told, SizeIs(2));
  EXPECT_EQ(told[0].kind, RelayNotice::Kind::kReady);
  EXPECT_EQ(told[1].kind, RelayNotice::Kind::kFailed);
  EXPECT_THAT(told[1].why.message(), HasSubstr("its scheduler is another"));
}

// ---- workers that have left

TEST_F(RelayPostsTest, its_own_does_not_wait_for_the_word_of_a_worker_that_has_left) {
  begin();
  std::vector<PeerId> peers;
  for (const std::uint32_t rank : {0U, 1U, 2U}) {
    peers.push_back(arrive(rank, 1, 0));
    turn();
    push(peers.back(), rank, y_);
  }
  answer();
  ack(peers[0], 0, 1);
  ack(peers[1], 1, 1);
  transport_.end(peers[2]);
  pass(kSecond);
  EXPECT_FALSE(transport_.take(Kind::kAck)) << "worker 2 may come back, and lack it";
  leave(2);
  pass(kSecond);
  const auto said = transport_.take(Kind::kAck);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->header.count, 1U);
}

// The server is a successor as well: it is to hear when that was all.
class LeaversTest : public RelayPostsTest {
 protected:
  LeaversTest() {
    roster_.slots[0].since = 2;
    transport_.answers[kServer.text()].since = 2;
  }
};

TEST_F(LeaversTest, nor_does_one_that_begins_later) {
  begin();
  leave(2);
  lose(0, 4);
  transport_.up(to_server(0));
  const PeerId one = arrive(1, 0, 4);
  turn();
  EXPECT_FALSE(has_told_all(to_server(0))) << "worker 1 has not said what it has";
  say_all(one, 1);
  EXPECT_TRUE(has_told_all(to_server(0)));
}

TEST_F(LeaversTest, nor_one_that_stands_there_already) {
  begin();
  lose(0, 4);
  transport_.up(to_server(0));
  const PeerId one = arrive(1, 0, 4);
  turn();
  say_all(one, 1);
  EXPECT_FALSE(has_told_all(to_server(0))) << "worker 2 may have what nobody else has";
  leave(2);
  turn();
  EXPECT_TRUE(has_told_all(to_server(0)));
}

TEST_F(LeaversTest, who_leaves_while_it_is_connected_says_first_what_it_has) {
  begin();
  lose(0, 4);
  transport_.up(to_server(0));
  const PeerId one = arrive(1, 0, 4);
  const PeerId two = arrive(2, 0, 4);
  turn();
  say_all(one, 1);
  leave(2);
  EXPECT_FALSE(has_told_all(to_server(0))) << "its word is on the way";
  transport_.end(two);
  turn();
  EXPECT_TRUE(has_told_all(to_server(0)));
}

// ---- the end

TEST_F(AlonePostsTest, told_to_end_it_serves_in_the_place_of_the_lost_until_nobody_is_there) {
  begin();
  lose(0, 4);
  const PeerId two = arrive(2, 0, 4);
  turn();
  say_all(two, 2);
  end();
  turn();
  EXPECT_FALSE(loop_.finished());
  EXPECT_FALSE(transport_.closed.contains(two));
  wire::Declare own = x_;
  own.members = Members(std::vector<std::uint32_t>{0, 2});
  push(two, 2, own);
  EXPECT_THAT(answered(), ElementsAre(two)) << "it sums on";
  transport_.end(two);
  turn();
  EXPECT_TRUE(loop_.finished());
}

TEST_F(AlonePostsTest, told_to_end_it_is_for_the_failure_timeout_at_most) {
  begin();
  lose(0, 4);
  const PeerId two = arrive(2, 0, 4);
  turn();
  end();
  pass(kFailure - 100 * kMillisecond);
  EXPECT_FALSE(transport_.closed.contains(two));
  EXPECT_LE(loop_.next_deadline(), now_ + 100 * kMillisecond);
  pass(200 * kMillisecond);
  ASSERT_TRUE(transport_.closed.contains(two));
  EXPECT_EQ(transport_.closed.at(two).message(), "the worker has left");
  EXPECT_TRUE(loop_.finished());
}

TEST_F(AlonePostsTest, told_to_end_it_ends_at_once_where_nobody_uses_what_stands_in) {
  begin();
  lose(0, 4);
  end();
  turn();
  EXPECT_TRUE(loop_.finished());
}

TEST_F(RelayPostsTest, then_all_of_them_leave_the_servers) {
  begin();
  lose(0, 4);
  transport_.up(to_server(0));
  const PeerId two = arrive(2, 0, 4);
  turn();
  end();
  pass(kFailure - 100 * kMillisecond);
  EXPECT_FALSE(transport_.closed.contains(to_server(0)));
  pass(200 * kMillisecond);
  EXPECT_TRUE(transport_.closed.contains(to_server(0)));
  EXPECT_TRUE(transport_.closed.contains(two));
  EXPECT_TRUE(loop_.finished());
}

TEST_F(RelayPostsTest, all_of_them_end_their_connections_to_the_servers) {
  begin();
  lose(0, 4);
  transport_.up(to_server(0));
  turn();
  end();
  pass(10 * kMillisecond);
  EXPECT_TRUE(transport_.closed.contains(to_server(0)));
  EXPECT_TRUE(transport_.closed.contains(to_server(1)));
  turn();
  EXPECT_TRUE(loop_.finished());
}

TEST_F(RelayPostsTest, before_it_ends_the_servers_hear_that_all_here_have_what_they_were_sent) {
  begin();
  std::vector<PeerId> peers;
  for (const std::uint32_t rank : {0U, 1U, 2U}) {
    peers.push_back(arrive(rank, 1, 0));
    turn();
    push(peers.back(), rank, y_);
  }
  answer();
  end();
  EXPECT_FALSE(transport_.closed.contains(to_server(1)));
  turn();
  const auto said = transport_.take(Kind::kAck);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->peer, to_server(1));
  EXPECT_EQ(said->header.count, 1U);
  pass(10 * kMillisecond);
  EXPECT_TRUE(transport_.closed.contains(to_server(1)));
}

}  // namespace
}  // namespace byteps
