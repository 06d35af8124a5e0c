// Connections with relays. (Those with shards are in worker_test.cc, as far as a relay's are the same.)
#include "worker/connections.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/net/scripted_transport.h"

namespace byteps {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr Incarnation kJob = {std::byte{9}};
constexpr TimeNs kFailure = 6 * kSecond;

// Of worker 0, with the relays of workers 0 and 4, and a server.
class ConnectionsTest : public testing::Test {
 protected:
  ConnectionsTest() : connections_(config_, transport_, log_) {
    for (const std::uint32_t rank : {0U, 4U}) {
      ShardPlace relay;
      relay.relay = WorkerRank(rank);
      relay.endpoint = {"127.0.0.1", static_cast<std::uint16_t>(7000 + rank)};
      relay.host = "alpha:1" + std::to_string(rank);
      add(std::move(relay), Role::kWorker, rank);
    }
    ShardPlace shard;
    shard.server = ServerRank(4);
    shard.shard_of_server = 1;
    shard.endpoint = {"10.0.0.4", 9001};
    shard.host = "beta:7";
    add(std::move(shard), Role::kServer, 4);
  }
  void add(ShardPlace place, Role role, std::uint32_t rank) {
    Hello& hello = transport_.answers[place.endpoint.text()];
    hello.role = role;
    hello.rank = rank;
    hello.epoch = Epoch(1);
    hello.incarnation = kJob;
    places_.push_back(std::move(place));
  }
  void begin() {
    connections_.begin({.epoch = Epoch(1), .incarnation = kJob, .failure_ns = kFailure}, places_,
                       now_);
  }
  PeerId peer(std::size_t place) const { return transport_.peer_at(places_[place].endpoint); }
  std::size_t attempts(std::size_t place) const {
    return static_cast<std::size_t>(
        std::count_if(transport_.attempts.begin(), transport_.attempts.end(),
                      [&](const auto& attempt) { return attempt.to == places_[place].endpoint; }));
  }
  void turn() {
    std::vector<Event> events(64);
    const std::size_t count = transport_.poll(now_, events);
    for (std::size_t i = 0; i < count; ++i) {
      const auto shard = connections_.shard_of(events[i].peer);
      ASSERT_TRUE(shard);
      if (events[i].kind == Event::Kind::kUp) connections_.on_up(*shard, events[i].hello, now_);
      if (events[i].kind == Event::Kind::kDown) {
        connections_.on_down(*shard, events[i].why, now_, false);
      }
    }
    if (reached_.is_ok()) reached_ = connections_.keep(now_, false);
  }
  void pass(TimeNs duration, TimeNs step = 10 * kMillisecond) {
    for (const TimeNs end = now_ + duration; now_ < end;) {
      now_ += step;
      turn();
    }
  }
  void up(std::size_t place) {
    transport_.up(peer(place));
    turn();
  }
  // What a server's shards become when another one takes its place in this revision.
  std::vector<ShardPlace> amended(std::uint32_t server, const std::string& host,
                                  std::uint32_t revision) const {
    std::vector<ShardPlace> places = places_;
    for (ShardPlace& place : places) {
      if (place.relay || place.server.value != server) continue;
      place.host = host;
      place.endpoint.port = static_cast<std::uint16_t>(place.endpoint.port + 100);
      place.since = revision;
    }
    return places;
  }
  std::vector<FlightRecorder::Entry> replaced() const {
    std::vector<FlightRecorder::Entry> found;
    for (FlightRecorder::Entry& entry : flight_.entries()) {
      if (std::string_view(entry.event.kind) == "replaced") found.push_back(std::move(entry));
    }
    return found;
  }
  void all_up() {
    begin();
    turn();
    for (std::size_t place = 0; place < places_.size(); ++place) {
      up(place);
      connections_.on_answer(ShardIndex(static_cast<std::uint32_t>(place)));
    }
    ASSERT_TRUE(connections_.all_were_up());
  }

  const Config config_;
  ScriptedTransport transport_;
  std::vector<std::string> lines_;
  FlightRecorder flight_{100, [] { return TimeNs{0}; }, {}};
  Timeline timeline_{Round(0), Round(9), [] { return TimeNs{0}; }};
  Log log_{"worker 0", LogLevel::kInfo,
           [this](std::string_view line) { lines_.emplace_back(line); }, &flight_, &timeline_};
  ShardConnections connections_;
  std::vector<ShardPlace> places_;
  TimeNs now_ = kSecond;
  Status reached_;
};

TEST_F(ConnectionsTest, a_relay_that_is_lost_is_not_reached_again_and_a_server_is) {
  all_up();
  const wire::HeaderBytes header = wire::encode(wire::Header{});
  Outgoing message;
  message.header = header;
  EXPECT_TRUE(connections_.send(ShardIndex(1), message));
  transport_.end(peer(1));
  transport_.end(peer(2));
  pass(kFailure / 2);
  EXPECT_EQ(attempts(1), 1U);
  EXPECT_EQ(attempts(2), 2U);
  EXPECT_TRUE(reached_.is_ok());
}

TEST_F(ConnectionsTest, a_relay_that_was_told_nothing_is_reached_again) {
  all_up();
  transport_.end(peer(1));
  pass(kFailure / 100);
  EXPECT_EQ(attempts(1), 2U);
}

TEST_F(ConnectionsTest, a_relay_that_has_never_come_is_tried_again_soon) {
  begin();
  turn();
  transport_.end(peer(1), {Code::kDisconnected, "refused"});
  turn();
  EXPECT_EQ(attempts(1), 1U);
  pass(kFailure / 600);
  EXPECT_EQ(attempts(1), 2U) << "it begins in a moment";
  up(1);
  EXPECT_TRUE(connections_.is_in_use(ShardIndex(1)));
}

TEST_F(ConnectionsTest, a_relay_is_given_up_later_than_the_scheduler_gives_up_its_worker) {
  all_up();
  transport_.end(peer(1), {Code::kDisconnected, "reset by peer"});
  turn();
  pass(2 * kFailure - 10 * kMillisecond);
  EXPECT_TRUE(reached_.is_ok());
  pass(10 * kMillisecond);
  EXPECT_EQ(reached_.message(),
            "worker 4 (alpha:14) at 127.0.0.1:7004, its relay cannot be reached for 12 s: reset "
            "by peer");
  EXPECT_EQ(reached_.cause().who,
            (Participant{.role = Role::kWorker, .rank = 4, .host = "alpha:14"}));
}

// Seed 5601336: messages that are damaged, each a few milliseconds after the connection was made anew.
TEST_F(ConnectionsTest, a_server_that_can_be_reached_most_of_the_time_is_not_given_up) {
  all_up();
  for (TimeNs since = now_; now_ < since + 3 * kFailure;) {
    transport_.end(peer(2), {Code::kDisconnected, "damaged"});
    turn();
    pass(kFailure / 30);  // a new attempt comes earlier
    up(2);
    pass(kFailure / 15);
  }
  EXPECT_TRUE(reached_.is_ok()) << reached_.message();
  transport_.end(peer(2), {Code::kDisconnected, "damaged"});
  pass(kFailure + 100 * kMillisecond);
  EXPECT_FALSE(reached_.is_ok());
}

TEST_F(ConnectionsTest, the_relay_of_a_worker_that_left_is_not_missed) {
  all_up();
  transport_.end(peer(1));
  turn();
  connections_.note_left(WorkerRank(4), now_);
  pass(5 * kFailure);
  EXPECT_TRUE(reached_.is_ok());
  EXPECT_EQ(attempts(1), 1U);
  transport_.end(peer(2));
  pass(kFailure + 100 * kMillisecond);
  EXPECT_FALSE(reached_.is_ok()) << "a server of the same rank is";
}

TEST_F(ConnectionsTest, a_relay_that_does_not_end_with_its_worker_is_given_up_after_a_while) {
  all_up();
  connections_.note_left(WorkerRank(4), now_);
  pass(2 * kFailure - 10 * kMillisecond);
  EXPECT_TRUE(connections_.peer_of(ShardIndex(1)).has_value());
  EXPECT_LE(connections_.next_deadline(), now_ + 10 * kMillisecond);
  pass(20 * kMillisecond);
  EXPECT_FALSE(connections_.peer_of(ShardIndex(1)).has_value());
  EXPECT_TRUE(connections_.peer_of(ShardIndex(2)).has_value());
  EXPECT_TRUE(reached_.is_ok());
  EXPECT_EQ(attempts(1), 1U);
}

TEST_F(ConnectionsTest, a_worker_that_left_before_its_relay_was_reached_holds_nobody_up) {
  begin();
  turn();
  up(0);
  up(2);
  EXPECT_FALSE(connections_.all_were_up());
  connections_.note_left(WorkerRank(4), now_);
  EXPECT_TRUE(connections_.all_were_up());
}

TEST_F(ConnectionsTest, who_is_at_the_other_end_is_the_worker_whose_relay_it_is) {
  begin();
  EXPECT_EQ(connections_.describe(ShardIndex(1)),
            "worker 4 (alpha:14) at 127.0.0.1:7004, its relay");
  EXPECT_EQ(connections_.describe(ShardIndex(2)), "server 4 (beta:7) at 10.0.0.4:9001, shard 1");
  EXPECT_EQ(connections_.owner_of(ShardIndex(1)),
            (Participant{.role = Role::kWorker, .rank = 4, .host = "alpha:14"}));
  EXPECT_EQ(connections_.owner_of(ShardIndex(2)),
            (Participant{.role = Role::kServer, .rank = 4, .host = "beta:7"}));
  pass(config_.timeout.first_notice_ns);
  ASSERT_THAT(lines_, SizeIs(1));
  EXPECT_THAT(lines_[0], AllOf(HasSubstr("no connection yet to worker 0 (alpha:10)"),
                               HasSubstr("server 4 (beta:7)")));
}

TEST_F(ConnectionsTest, who_answers_at_a_relays_place_must_be_that_worker) {
  begin();
  turn();
  Hello other = transport_.answers[places_[1].endpoint.text()];
  other.role = Role::kServer;
  transport_.up(peer(1), other);
  turn();
  EXPECT_FALSE(connections_.is_in_use(ShardIndex(1)));
  EXPECT_THAT(transport_.closed.begin()->second.message(), HasSubstr("a server"));
  Hello own = transport_.answers[places_[0].endpoint.text()];
  own.rank = 1;
  transport_.up(peer(0), own);
  turn();
  EXPECT_FALSE(connections_.is_in_use(ShardIndex(0)));
}

TEST_F(ConnectionsTest, the_successor_of_a_server_is_reached_when_the_old_connection_has_ended) {
  all_up();
  ShardPlace heir = places_[2];
  heir.endpoint = {"10.0.0.5", 9001};
  heir.since = 1;
  heir.host = "gamma:8";
  Hello hello = transport_.answers[places_[2].endpoint.text()];
  hello.since = 1;
  transport_.answers[heir.endpoint.text()] = hello;
  const PeerId before = peer(2);
  std::vector<ShardPlace> amended = places_;
  amended[2] = heir;
  connections_.amend(amended, now_);
  EXPECT_FALSE(connections_.is_in_use(ShardIndex(2))) << "nothing counts that it says now";
  turn();
  EXPECT_TRUE(transport_.closed.contains(before));
  places_[2] = heir;
  turn();
  ASSERT_EQ(attempts(2), 1U);
  EXPECT_EQ(transport_.attempts.back().hello.since, 1U);
  up(2);
  EXPECT_TRUE(connections_.is_in_use(ShardIndex(2)));
  EXPECT_TRUE(connections_.is_successor(ShardIndex(2)));
  EXPECT_FALSE(connections_.is_successor(ShardIndex(1)));
  connections_.amend(places_, now_);
  EXPECT_TRUE(connections_.is_in_use(ShardIndex(2))) << "nothing has changed";
}

TEST_F(ConnectionsTest, a_server_that_is_replaced_is_counted_and_told_once_for_all_of_its_shards) {
  for (const std::uint32_t server : {4U, 7U}) {
    ShardPlace shard = places_[2];
    shard.server = ServerRank(server);
    shard.shard_of_server = 0;
    shard.endpoint = {"10.0.0.4", static_cast<std::uint16_t>(9100 + server)};
    add(std::move(shard), Role::kServer, server);
  }
  all_up();
  transport_.end(peer(3), {Code::kDisconnected, "reset by peer"});
  turn();
  now_ += 500 * kMillisecond;
  places_ = amended(4, "gamma:8", 1);
  connections_.amend(places_, now_);
  EXPECT_EQ(connections_.counts().lost_servers, 1U);
  ASSERT_THAT(replaced(), SizeIs(1));
  const FlightRecorder::Entry told = replaced()[0];
  EXPECT_EQ(told.text,
            "server 4 (beta:7) was lost (reset by peer); server 4 (gamma:8) took its place 500 ms "
            "later");
  EXPECT_STREQ(told.event.role, "server");
  EXPECT_EQ(told.event.rank, 4U);
  EXPECT_EQ(told.host, "beta:7");
  EXPECT_STREQ(told.event.cause, "gone");
  EXPECT_EQ(told.event.epoch, 1U);
  EXPECT_EQ(told.event.number, 1U);
  EXPECT_EQ(told.event.at_ns, now_);
  const std::vector<TimelineMark> marks = timeline_.facts().marks;
  ASSERT_THAT(marks, SizeIs(1));
  EXPECT_EQ(marks[0].name, "server 4 replaced");
  EXPECT_EQ(marks[0].text, told.text);
  EXPECT_EQ(marks[0].at_ns, now_);
  connections_.amend(places_, now_);
  EXPECT_EQ(connections_.counts().lost_servers, 1U) << "nothing has changed";
}

TEST_F(ConnectionsTest, a_server_that_was_there_until_another_took_its_place_was_not_seen_to_end) {
  all_up();
  connections_.amend(amended(4, "gamma:8", 3), now_);
  EXPECT_EQ(connections_.counts().lost_servers, 1U);
  ASSERT_THAT(replaced(), SizeIs(1));
  EXPECT_EQ(replaced()[0].text,
            "server 4 (gamma:8) took the place of server 4 (beta:7), whose connection was still "
            "open");
  EXPECT_EQ(replaced()[0].event.cause, nullptr);
}

TEST_F(ConnectionsTest, who_serves_a_slot_since_another_revision_is_not_who_is_looked_for) {
  transport_.answers[places_[2].endpoint.text()].since = 2;
  begin();
  turn();
  const PeerId stranger = peer(2);
  up(2);
  EXPECT_FALSE(connections_.is_in_use(ShardIndex(2)));
  turn();
  EXPECT_EQ(transport_.closed.at(stranger).message(),
            "it serves this slot since revision 2, the roster says 0");
}

// ---- relays in the place of those of lost workers

// The relay of worker 4 is with this one's, or with that of worker 5, since revision 2.
class GuestsTest : public ConnectionsTest {
 protected:
  GuestsTest() {
    ShardPlace relay;
    relay.relay = WorkerRank(5);
    relay.endpoint = {"127.0.0.1", 7005};
    relay.host = "alpha:15";
    add(std::move(relay), Role::kWorker, 5);
  }
  // The place of worker 4's relay.
  std::vector<ShardPlace> hosted(std::uint32_t host, std::uint32_t since) const {
    std::vector<ShardPlace> places = places_;
    places[1].relay_host = WorkerRank(host);
    places[1].since = since;
    places[1].endpoint.port = static_cast<std::uint16_t>(7000 + host);
    places[1].host = "alpha:1" + std::to_string(host);
    return places;
  }
  std::vector<WorkerRank> amend(std::uint32_t host, std::uint32_t since) {
    places_ = hosted(host, since);
    return connections_.amend(places_, now_);
  }
  std::vector<WorkerRank> leave(std::uint32_t worker) {
    return connections_.note_left(WorkerRank(worker), now_);
  }
  // The newest attempt that looks for the relay of this worker.
  const ScriptedTransport::Attempt* looks_for(std::uint32_t worker) const {
    for (auto at = transport_.attempts.rbegin(); at != transport_.attempts.rend(); ++at) {
      if (at->hello.relay_of == worker + 1) return &*at;
    }
    return nullptr;
  }
  void use(std::uint32_t shard) {
    const wire::HeaderBytes header = wire::encode(wire::Header{});
    Outgoing message;
    message.header = header;
    EXPECT_TRUE(connections_.send(ShardIndex(shard), message));
  }
  // It has taken the place of the lost one's, and is reached.
  void stand_in_at(std::uint32_t host, std::uint32_t since) {
    all_up();
    use(1);
    transport_.end(peer(1));
    turn();
    EXPECT_THAT(amend(host, since), IsEmpty());
    turn();
    transport_.up(looks_for(4)->peer);
    turn();
    ASSERT_TRUE(connections_.is_in_use(ShardIndex(1)));
  }
};

TEST_F(GuestsTest, what_stands_in_is_reached_where_it_is_and_told_whom_we_look_for) {
  stand_in_at(5, 2);
  const ScriptedTransport::Attempt& attempt = *looks_for(4);
  EXPECT_EQ(attempt.to.port, 7005);
  EXPECT_EQ(attempt.hello.since, 2U);
  EXPECT_EQ(looks_for(5)->hello.since, 0U);
  EXPECT_TRUE(connections_.is_successor(ShardIndex(1)));
  EXPECT_EQ(connections_.describe(ShardIndex(1)),
            "worker 5 (alpha:15) at 127.0.0.1:7005, its relay for worker 4");
  EXPECT_EQ(connections_.owner_of(ShardIndex(1)).rank, 5U);
  EXPECT_EQ(connections_.counts().lost_servers, 0U);
  EXPECT_THAT(lines_, Contains(HasSubstr("stands in for it")));
}

TEST_F(GuestsTest, who_answers_there_must_be_the_one_in_whose_process_it_is) {
  all_up();
  amend(5, 2);
  turn();
  turn();
  Hello lost;
  lost = transport_.answers["127.0.0.1:7004"];
  transport_.up(looks_for(4)->peer, lost);
  turn();
  EXPECT_FALSE(connections_.is_in_use(ShardIndex(1)));
}

TEST_F(GuestsTest, a_relay_that_stands_in_is_reached_again_though_it_was_used) {
  stand_in_at(5, 2);
  use(1);
  const std::size_t before = transport_.attempts.size();
  transport_.end(looks_for(4)->peer);
  pass(kFailure / 100);
  EXPECT_EQ(transport_.attempts.size(), before + 1) << "it may not have heard yet that it does";
}

TEST_F(GuestsTest, with_a_worker_that_leaves_go_all_relays_of_its_process) {
  stand_in_at(5, 2);
  EXPECT_THAT(leave(4), IsEmpty()) << "its own was lost before";
  EXPECT_THAT(leave(5), ElementsAre(WorkerRank(4), WorkerRank(5)));
  EXPECT_THAT(leave(5), IsEmpty()) << "once";
  transport_.end(looks_for(4)->peer);
  const std::size_t before = transport_.attempts.size();
  pass(5 * kFailure);
  EXPECT_EQ(transport_.attempts.size(), before) << "nobody is missed there";
  EXPECT_TRUE(reached_.is_ok());
}

TEST_F(GuestsTest, what_would_be_in_the_process_of_one_that_has_left_is_gone) {
  all_up();
  EXPECT_THAT(leave(5), ElementsAre(WorkerRank(5)));
  EXPECT_THAT(amend(5, 2), ElementsAre(WorkerRank(4)));
  pass(5 * kFailure);
  EXPECT_TRUE(reached_.is_ok()) << "and not missed";
}

TEST_F(GuestsTest, in_the_process_of_the_next_that_is_there_it_is_missed_as_before) {
  stand_in_at(5, 2);
  EXPECT_THAT(leave(5), SizeIs(2));
  EXPECT_THAT(amend(0, 3), IsEmpty()) << "worker 0 is here";
  turn();
  turn();
  ASSERT_EQ(looks_for(4)->to.port, 7000);
  EXPECT_EQ(looks_for(4)->hello.since, 3U);
  transport_.up(looks_for(4)->peer);
  turn();
  EXPECT_TRUE(connections_.is_in_use(ShardIndex(1)));
  EXPECT_THAT(leave(0), ElementsAre(WorkerRank(0), WorkerRank(4)));
}

TEST_F(GuestsTest, an_older_revision_of_it_changes_nothing) {
  stand_in_at(5, 2);
  EXPECT_THAT(leave(0), ElementsAre(WorkerRank(0)));
  EXPECT_THAT(connections_.amend(hosted(0, 1), now_), IsEmpty());
  EXPECT_TRUE(connections_.is_in_use(ShardIndex(1)));
}

TEST_F(ConnectionsTest, a_relay_says_to_the_servers_since_when_it_stands_in) {
  connections_.begin({.epoch = Epoch(1),
                      .incarnation = kJob,
                      .failure_ns = kFailure,
                      .self = WorkerRank(4),
                      .stands_since = 7},
                     places_, now_);
  turn();
  EXPECT_EQ(transport_.attempts.back().to, places_[2].endpoint);
  EXPECT_EQ(transport_.attempts.back().hello.rank, 4U);
  EXPECT_EQ(transport_.attempts.back().hello.stands_since, 7U);
}

}  // namespace
}  // namespace byteps
