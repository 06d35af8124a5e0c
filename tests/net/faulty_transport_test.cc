// What the wrapper adds: faults of each kind do occur, repeat with their seed, and keep what they must
// keep. That it keeps the whole contract while no connection is closed is tested in tests/conformance.
#include "net/faulty/faulty_transport.h"

#include <deque>
#include <map>
#include <optional>

#include <gtest/gtest.h>

#include "tests/net/scripted_transport.h"
#include "tests/net/tcp_peer.h"

namespace byteps {
namespace {

class Faulty {
 public:
  explicit Faulty(const Faults& faults, std::uint64_t seed = 1) {
    auto inner = std::make_unique<ScriptedTransport>();
    scripted = inner.get();
    scripted->gives_back_at_once = true;
    scripted->forgiving = true;
    transport = std::make_unique<FaultyTransport>(std::move(inner), faults, Prng(seed));
  }
  // The kinds of one poll's events, and their first payload bytes.
  std::vector<Event> poll() {
    std::vector<Event> events(64);
    events.resize(transport->poll(0, events));
    return events;
  }
  ScriptedTransport* scripted;
  std::unique_ptr<FaultyTransport> transport;
};

TEST(FaultyTransport, without_faults_it_changes_nothing) {
  Faulty faulty({});
  const Bytes payload = numbered(5);
  faulty.scripted->arrive({});
  faulty.scripted->say(PeerId(1), Bytes(), payload);
  const auto events = faulty.poll();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, Event::Kind::kUp);
  EXPECT_EQ(Bytes(events[1].payload.begin(), events[1].payload.end()), payload);
  EXPECT_EQ(faulty.transport->next_deadline(), kNever);
  Hello self;
  self.rank = 3;
  faulty.transport->set_self(self);
  EXPECT_EQ(faulty.scripted->told, self);
}

TEST(FaultyTransport, again_is_injected_only_while_a_sent_is_still_to_come) {
  Faulty faulty({.again = 1.0});
  faulty.scripted->arrive({});
  faulty.poll();
  EXPECT_TRUE(faulty.transport->send(PeerId(1), {}).is_ok())
      << "nothing under way: no wake-up would follow";
  EXPECT_TRUE(faulty.transport->send(PeerId(1), {}).is(Code::kAgain));
  EXPECT_EQ(faulty.scripted->sent_count, 1U) << "nothing was taken";
  faulty.poll();
  EXPECT_TRUE(faulty.transport->send(PeerId(1), {}).is_ok());
}

TEST(FaultyTransport, delayed_events_of_a_peer_keep_their_order_and_ask_to_be_polled) {
  Faulty faulty({.delay = 0.5, .delay_polls_max = 5});
  const Bytes numbers = numbered(256);
  faulty.scripted->arrive({});
  for (std::size_t i = 0; i < 40; ++i) {
    faulty.scripted->say(PeerId(1), Bytes(), std::span(numbers).subspan(i, 1));
  }
  std::size_t next = 0;
  int polls = 0;
  do {
    for (const Event& event : faulty.poll()) {
      if (event.kind != Event::Kind::kReceived) continue;
      EXPECT_EQ(event.payload[0], numbers[next++]);
    }
    ++polls;
  } while (faulty.transport->next_deadline() != kNever);
  EXPECT_EQ(next, 40U);
  EXPECT_GT(polls, 5) << "some were delayed";
}

TEST(FaultyTransport, a_closed_connection_loses_delayed_messages_but_no_sent_and_no_down) {
  Faulty faulty({.delay = 1.0, .delay_polls_max = 3});
  faulty.scripted->arrive({});
  while (faulty.poll().empty()) {
  }
  const Bytes payload = numbered(1);
  for (std::uint64_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(
        faulty.transport->send(PeerId(1), {.header = {}, .payload = {}, .token = i}).is_ok());
    faulty.scripted->say(PeerId(1), Bytes(), payload);
  }
  EXPECT_TRUE(faulty.poll().empty()) << "all are delayed";
  faulty.transport->set_faults({.close = 1.0});
  std::vector<Event::Kind> kinds;
  for (int i = 0; i < 10; ++i) {
    for (const Event& event : faulty.poll()) kinds.push_back(event.kind);
  }
  std::vector<Event::Kind> expected(10, Event::Kind::kSent);
  expected.push_back(Event::Kind::kDown);
  EXPECT_EQ(kinds, expected);
  EXPECT_TRUE(faulty.transport->send(PeerId(1), {}).is(Code::kDisconnected));
}

TEST(FaultyTransport, duplicates_come_twice_the_second_time_as_a_view_of_its_own) {
  Faulty faulty({.duplicate = 1.0});
  faulty.scripted->arrive({});
  faulty.poll();
  faulty.scripted->say(PeerId(1), Bytes(), numbered(10));
  const auto events = faulty.poll();
  ASSERT_EQ(events.size(), 2U);
  for (const Event& event : events) {
    EXPECT_EQ(Bytes(event.payload.begin(), event.payload.end()), numbered(10));
  }
  EXPECT_NE(events[0].payload.data(), events[1].payload.data());
}

TEST(FaultyTransport, the_same_seed_makes_the_same_faults) {
  const auto run = [](std::uint64_t seed) {
    Faulty faulty({.again = 0.3, .delay = 0.3, .close = 0.02, .duplicate = 0.1}, seed);
    const Bytes payload = numbered(1);
    std::string trace;
    for (std::uint32_t i = 0; i < 200; ++i) {
      const PeerId peer(1 + i % 5);
      if (i < 5) faulty.scripted->arrive({});
      faulty.scripted->say(peer, Bytes(), payload);
      trace += name(faulty.transport->send(peer, {}).code())[0];
      for (const Event& event : faulty.poll()) {
        trace += std::to_string(static_cast<int>(event.kind)) + std::to_string(event.peer.value);
      }
    }
    return trace;
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

// Goal: whatever is closed when, every accepted send comes back once before the one kDown. Method: two real
// transports under all faults; connections are made anew as they end.
TEST(FaultyTransport, over_tcp_with_random_closes_every_sent_comes_back_once_before_down) {
  TurnedTcp server;
  auto inner = make_transport({}, Log("test", LogLevel::kSilent, {})).value();
  TcpTransport& tcp = *inner;
  FaultyTransport client(std::move(inner), {.again = 0.1, .delay = 0.3, .close = 0.02}, Prng(5));
  const Bytes payload = numbered(30'000);
  struct Account {
    bool up = false;
    bool down = false;
    std::uint64_t accepted = 0;
    std::uint64_t returned = 0;
  };
  std::map<PeerId, Account> accounts;
  std::vector<Event> events(16);
  PeerId current;
  std::size_t downs = 0;
  for (int i = 0; i < 20'000 && downs < 20; ++i) {
    if (current == PeerId() || accounts[current].down) {
      current = client.connect(server.address(), hello_of(Role::kWorker, 0)).value();
    }
    Account& account = accounts[current];
    if (account.up &&
        client.send(current, {.header = {}, .payload = payload, .token = account.accepted})
            .is_ok()) {
      ++account.accepted;
    }
    const std::size_t count = client.poll(server.now(), events);
    for (std::size_t e = 0; e < count; ++e) {
      Account& its = accounts[events[e].peer];
      ASSERT_FALSE(its.down) << "an event after kDown";
      its.up |= events[e].kind == Event::Kind::kUp;
      if (events[e].kind == Event::Kind::kSent) {
        ASSERT_EQ(events[e].token, its.returned++);
      }
      if (events[e].kind == Event::Kind::kDown) {
        its.down = true;
        ++downs;
        EXPECT_EQ(its.returned, its.accepted);
      }
    }
    if (server.poll() == 0 && count == 0) tcp.waiter().wait(kMillisecond);
  }
  EXPECT_EQ(downs, 20U);
}

}  // namespace
}  // namespace byteps
