// The simulated network's own behaviour: time, lines, faults. That it is a Transport is tests/conformance.
#include "sim/network.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/sim_transport.h"

namespace byteps::sim {
namespace {

using Bytes = std::vector<std::byte>;

// A listener "server" and a client, connected, with everything they hear.
class Pair {
 public:
  struct Heard {
    Event::Kind kind;
    PeerId peer;
    Bytes header;
    Bytes payload;
    bool is_shared;
    SendToken token;
    TimeNs at;
  };

  explicit Pair(SimNetworkOptions options, std::uint64_t seed = 1, HostIndex client_host = 1)
      : network_(std::move(options), Prng(seed), trace_) {
    server_ = std::make_unique<SimTransport>(
        network_, SimTransportOptions{.name = "server", .host = 0, .listen = kServer, .self = {}});
    client_ = std::make_unique<SimTransport>(
        network_,
        SimTransportOptions{.name = "client", .host = client_host, .listen = {}, .self = {}});
  }

  PeerId connect() { return client_->connect(kServer, {}).value(); }
  // Moves time on by `span`, polling after each thing that happens.
  void run(TimeNs span) {
    const TimeNs end = network_.now() + span;
    for (;;) {
      listen(*server_, at_server);
      listen(*client_, at_client);
      if (network_.now() == end) return;
      network_.advance(std::min(end, std::max(network_.next_event_ns(), network_.now())));
    }
  }
  // The network's time moves, but nobody looks.
  void pass(TimeNs span) { network_.advance(network_.now() + span); }

  SimNetwork& network() { return network_; }
  SimTransport& server() { return *server_; }
  SimTransport& client() { return *client_; }
  SimNetwork::Pair numbers() const { return {client_->number(), server_->number()}; }

  static std::size_t count(const std::vector<Heard>& heard, Event::Kind kind) {
    return static_cast<std::size_t>(std::count_if(
        heard.begin(), heard.end(), [&](const Heard& each) { return each.kind == kind; }));
  }

  std::vector<Heard> at_server;
  std::vector<Heard> at_client;

 private:
  static inline const Endpoint kServer{"server", 1};

  void listen(SimTransport& transport, std::vector<Heard>& heard) {
    std::vector<Event> events(8);
    while (const std::size_t n = transport.poll(network_.now(), events)) {
      for (std::size_t i = 0; i < n; ++i) {
        const Event& event = events[i];
        heard.push_back({event.kind, event.peer, Bytes(event.header.begin(), event.header.end()),
                         Bytes(event.payload.begin(), event.payload.end()), event.is_shared,
                         event.token, network_.now()});
      }
    }
  }

  Trace trace_;
  SimNetwork network_;
  std::unique_ptr<SimTransport> server_;
  std::unique_ptr<SimTransport> client_;
};

SimNetworkOptions steady() {
  SimNetworkOptions options;
  options.delay_ns = 0;
  options.jitter_ns = 0;
  return options;
}

TEST(SimNetwork, a_line_of_1_mb_per_s_takes_1_s_for_1_mb) {
  SimNetworkOptions options = steady();
  options.bytes_per_second = 1'000'000;
  options.window_bytes = 4 << 20;
  Pair pair(options);
  const PeerId peer = pair.connect();
  pair.run(kMillisecond);
  const Bytes payload(250'000);
  const TimeNs begun = pair.network().now();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(pair.client().send(peer, {.header = {}, .payload = payload}).is_ok());
  }
  pair.run(5 * kSecond);
  ASSERT_EQ(Pair::count(pair.at_server, Event::Kind::kReceived), 4U);
  const double seconds =
      static_cast<double>(pair.at_server.back().at - begun) / static_cast<double>(kSecond);
  EXPECT_NEAR(seconds, 1.0, 0.01);
}

TEST(SimNetwork, who_dies_inside_a_turn_has_sent_so_many_messages_and_no_more) {
  Pair pair(steady());
  const PeerId peer = pair.connect();
  pair.run(kMillisecond);
  int deaths = 0;
  pair.client().let_leave(2, [&] { ++deaths; });
  EXPECT_TRUE(pair.client().send(peer, {}).is_ok());
  EXPECT_EQ(deaths, 0);
  EXPECT_TRUE(pair.client().send(peer, {}).is_ok());
  EXPECT_EQ(deaths, 1) << "with the second, not behind it";
  EXPECT_TRUE(pair.client().send(peer, {}).is(Code::kAgain));
  EXPECT_EQ(deaths, 1);
  pair.run(kSecond);
  EXPECT_EQ(Pair::count(pair.at_server, Event::Kind::kReceived), 2U);
}

TEST(SimNetwork, a_refused_and_a_silent_block_delay_a_connection_until_they_end) {
  for (const bool silent : {false, true}) {
    Pair pair(steady());
    pair.network().block(pair.numbers(), kSecond, silent);
    const PeerId first = pair.connect();
    pair.run(kSecond);
    EXPECT_EQ(Pair::count(pair.at_client, Event::Kind::kUp), 0U);
    EXPECT_EQ(Pair::count(pair.at_client, Event::Kind::kDown), silent ? 0U : 1U);
    const PeerId peer = silent ? first : pair.connect();
    pair.run(kSecond);
    EXPECT_EQ(Pair::count(pair.at_client, Event::Kind::kUp), 1U);
    EXPECT_TRUE(pair.client().send(peer, {}).is_ok());
  }
}

// T2 and T3, as a half-open connection has them: the client is on its second connection while the server still gets
// messages of the first.
TEST(SimNetwork, an_end_that_hears_late_of_a_cut_still_gets_messages_of_the_old_connection) {
  std::size_t interleaved = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SimNetworkOptions options = steady();
    options.bytes_per_second = 10'000'000;
    Pair pair(options, seed);
    const PeerId old_peer = pair.connect();
    pair.run(kMillisecond);
    const Bytes payload(100);
    for (int i = 0; i < 20; ++i) {
      const Bytes header = {std::byte{static_cast<unsigned char>(i)}};
      ASSERT_TRUE(pair.client().send(old_peer, {.header = header, .payload = payload}).is_ok());
    }
    pair.network().cut({.pair = pair.numbers(),
                        .a_hears_ns = 0,
                        .b_hears_ns = 100 * kMillisecond,
                        .late_ns = 50 * kMillisecond});
    pair.run(kMillisecond);
    ASSERT_EQ(Pair::count(pair.at_client, Event::Kind::kSent), 20U) << "all is back ...";
    ASSERT_EQ(pair.at_client.back().kind, Event::Kind::kDown) << "... before the end";
    const PeerId new_peer = pair.connect();
    pair.run(kMillisecond);
    ASSERT_TRUE(pair.client().send(new_peer, {.header = {}, .payload = payload}).is_ok());
    pair.run(kSecond);

    const PeerId old_at_server = pair.at_server.front().peer;
    std::size_t next = 0;
    bool saw_new = false;
    bool ended = false;
    for (const Pair::Heard& heard : pair.at_server) {
      if (heard.peer != old_at_server) {
        saw_new = true;
        continue;
      }
      ASSERT_FALSE(ended) << "after kDown";
      ended = heard.kind == Event::Kind::kDown;
      if (heard.kind != Event::Kind::kReceived) continue;
      ASSERT_EQ(heard.header.at(0), std::byte{static_cast<unsigned char>(next++)}) << "in order";
      interleaved += saw_new ? 1 : 0;
    }
    EXPECT_TRUE(ended);
    EXPECT_LE(next, 20U);
  }
  EXPECT_GT(interleaved, 50U);
}

TEST(SimNetwork, lent_payloads_come_back_in_order_and_before_the_end_whatever_happens) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Prng prng(seed);
    SimNetworkOptions options;
    options.bytes_per_second = 5'000'000;
    options.window_bytes = 3000;
    options.chances.lost_tail_at_close = 0.5;
    Pair pair(options, seed);
    PeerId peer = pair.connect();
    pair.run(kMillisecond);
    const Bytes payload(700);
    SendToken accepted = 0;
    for (int i = 0; i < 30; ++i) {
      accepted +=
          pair.client().send(peer, {.header = {}, .payload = payload, .token = accepted}).is_ok();
      if (prng.chance(0.5)) pair.run(static_cast<TimeNs>(prng.below(200 * kMicrosecond)));
    }
    switch (prng.below(3)) {
      case 0:
        pair.client().close(peer, {Code::kCancelled, "enough"});
        break;
      case 1:
        pair.server().close(pair.at_server.front().peer, {Code::kCancelled, "enough"});
        break;
      default:
        pair.network().cut({.pair = pair.numbers(),
                            .a_hears_ns = static_cast<TimeNs>(prng.below(kMillisecond)),
                            .b_hears_ns = static_cast<TimeNs>(prng.below(kMillisecond)),
                            .late_ns = kMillisecond});
        break;
    }
    pair.run(kSecond);
    SendToken next = 0;
    for (const Pair::Heard& heard : pair.at_client) {
      if (heard.kind == Event::Kind::kSent) {
        ASSERT_EQ(heard.token, next++) << "seed " << seed;
      }
    }
    EXPECT_EQ(next, accepted) << "seed " << seed;
    EXPECT_EQ(pair.at_client.back().kind, Event::Kind::kDown) << "seed " << seed;
    EXPECT_EQ(pair.at_server.back().kind, Event::Kind::kDown) << "seed " << seed;
    EXPECT_EQ(pair.network().lent_payloads(), 0U);
  }
}

TEST(SimNetwork, held_messages_wait_and_then_all_arrive) {
  Pair pair(steady());
  const PeerId peer = pair.connect();
  pair.run(kMillisecond);
  pair.network().hold(pair.numbers(), pair.network().now() + kSecond);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(pair.client().send(peer, {}).is_ok());
  pair.run(kSecond / 2);
  EXPECT_EQ(Pair::count(pair.at_server, Event::Kind::kReceived), 0U);
  pair.run(kSecond);
  EXPECT_EQ(Pair::count(pair.at_server, Event::Kind::kReceived), 5U);
}

TEST(SimNetwork, messages_repeat_when_told_so_and_only_those_that_may) {
  SimNetworkOptions options = steady();
  options.chances.repeat = 1;
  options.chances.repeat_within_ns = kMillisecond;
  options.chances.may_repeat = [](std::span<const std::byte> header) {
    return header[0] == std::byte{7};
  };
  Pair pair(options);
  const PeerId peer = pair.connect();
  pair.run(kMillisecond);
  for (const std::byte first : {std::byte{7}, std::byte{8}}) {
    const Bytes header = {first};
    ASSERT_TRUE(pair.client().send(peer, {.header = header, .payload = {}}).is_ok());
  }
  pair.run(kSecond);
  std::size_t repeated = 0;
  for (const Pair::Heard& heard : pair.at_server) {
    if (heard.kind == Event::Kind::kReceived) repeated += heard.header[0] == std::byte{7} ? 1 : 0;
  }
  EXPECT_EQ(repeated, 2U);
  EXPECT_EQ(Pair::count(pair.at_server, Event::Kind::kReceived), 3U);
}

TEST(SimNetwork, a_payload_that_its_owner_changes_while_it_is_lent_is_a_breach) {
  SimNetworkOptions options = steady();
  options.check_lent_memory = true;
  options.lending = {Lending::kReadAtArrive};
  Pair pair(options);
  const PeerId peer = pair.connect();
  pair.run(kMillisecond);
  Bytes payload(100);
  ASSERT_TRUE(pair.client().send(peer, {.header = {}, .payload = payload}).is_ok());
  EXPECT_NE(pair.client().claim_on(payload), "");
  payload[50] = std::byte{1};
  pair.client().close(peer, {Code::kCancelled, "enough"});
  pair.run(kSecond);
  EXPECT_EQ(pair.network().breaches().size(), 1U);
}

TEST(SimNetwork, bulk_that_stays_on_a_host_is_shared_with_its_sender) {
  for (const HostIndex client_host : {0U, 1U}) {
    Pair pair(steady(), 1, client_host);
    const PeerId peer = pair.connect();
    pair.run(kMillisecond);
    const Bytes payload(100);
    for (const bool bulk : {false, true}) {
      ASSERT_TRUE(
          pair.client().send(peer, {.header = {}, .payload = payload, .bulk = bulk}).is_ok());
    }
    pair.run(kSecond);
    ASSERT_EQ(Pair::count(pair.at_server, Event::Kind::kReceived), 2U);
    EXPECT_FALSE(pair.at_server[1].is_shared);
    EXPECT_EQ(pair.at_server[2].is_shared, client_host == 0);
  }
}

// ---- walls, slow hosts, damage

SimNetwork::Wall wall(bool both, TimeNs until) {
  return {.from = {1}, .to = {0}, .both = both, .until = until};
}

TEST(SimNetwork, a_wall_that_falls_in_time_has_only_delayed_what_it_held) {
  for (const bool both : {false, true}) {
    Pair pair(steady());
    const PeerId peer = pair.connect();
    pair.run(kMillisecond);
    pair.network().put_up(wall(both, kSecond));
    ASSERT_TRUE(pair.client().send(peer, {}).is_ok());
    ASSERT_TRUE(pair.server().send(pair.at_server.front().peer, {}).is_ok());
    pair.run(kSecond / 2);
    EXPECT_EQ(Pair::count(pair.at_server, Event::Kind::kReceived), 0U);
    EXPECT_EQ(Pair::count(pair.at_client, Event::Kind::kReceived), both ? 0U : 1U);
    pair.run(kSecond);
    EXPECT_EQ(Pair::count(pair.at_server, Event::Kind::kReceived), 1U);
    EXPECT_EQ(Pair::count(pair.at_client, Event::Kind::kReceived), 1U);
    EXPECT_EQ(Pair::count(pair.at_client, Event::Kind::kDown), 0U);
  }
}

TEST(SimNetwork, behind_a_wall_that_stands_connections_end_at_both_ends_and_none_is_made) {
  for (const bool both : {false, true}) {
    SimNetworkOptions options = steady();
    options.unreachable_ns = kSecond;
    Pair pair(options);
    const PeerId peer = pair.connect();
    pair.run(kMillisecond);
    pair.network().put_up(wall(both, 10 * kSecond));
    const Bytes payload(100);
    ASSERT_TRUE(pair.client().send(peer, {.header = {}, .payload = payload}).is_ok());
    pair.run(kSecond / 2);
    EXPECT_EQ(Pair::count(pair.at_client, Event::Kind::kDown), 0U);
    pair.run(kSecond);
    EXPECT_EQ(Pair::count(pair.at_client, Event::Kind::kDown), 1U);
    EXPECT_EQ(Pair::count(pair.at_server, Event::Kind::kDown), 1U);
    EXPECT_EQ(pair.network().lent_payloads(), 0U);
    pair.connect();
    pair.run(2 * kSecond);
    EXPECT_EQ(Pair::count(pair.at_client, Event::Kind::kUp), 1U);
    pair.run(10 * kSecond);
    pair.connect();
    pair.run(kSecond);
    EXPECT_EQ(Pair::count(pair.at_client, Event::Kind::kUp), 2U);
  }
}

TEST(SimNetwork, a_process_that_stands_still_lets_nobody_in_until_it_goes_on) {
  Pair pair(steady());
  pair.network().freeze(pair.server().number(), kSecond);
  pair.connect();
  pair.run(kSecond - 1);
  EXPECT_EQ(Pair::count(pair.at_client, Event::Kind::kUp), 0U);
  pair.run(kMillisecond);
  EXPECT_EQ(Pair::count(pair.at_client, Event::Kind::kUp), 1U);
}

TEST(SimNetwork, connections_of_a_slow_host_take_turns_when_told_so) {
  SimNetworkOptions options = steady();
  options.at_sender = 1;
  options.window_bytes = 4 << 20;
  Pair pair(options);
  const PeerId bulk = pair.connect();
  const PeerId other = pair.connect();
  pair.run(kMillisecond);
  pair.network().slow_down(1, 1'000'000);
  const Bytes large(100'000);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(pair.client().send(bulk, {.header = {}, .payload = large}).is_ok());
  }
  const Bytes heartbeat = {std::byte{1}};
  ASSERT_TRUE(pair.client().send(other, {.header = heartbeat, .payload = {}}).is_ok());
  pair.run(250 * kMillisecond);
  const auto is_heartbeat = [](const Pair::Heard& heard) { return heard.header.size() == 1; };
  EXPECT_TRUE(std::any_of(pair.at_server.begin(), pair.at_server.end(), is_heartbeat));
  EXPECT_LT(Pair::count(pair.at_server, Event::Kind::kReceived), 4U);
  pair.run(kSecond);
  EXPECT_EQ(Pair::count(pair.at_server, Event::Kind::kReceived), 11U);
}

TEST(SimNetwork,
     a_damaged_message_is_not_given_out_and_ends_the_connection_behind_those_before_it) {
  std::size_t damaged = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SimNetworkOptions options = steady();
    options.chances.corrupt = 0.2;
    Pair pair(options, seed);
    const PeerId peer = pair.connect();
    pair.run(kMillisecond);
    std::vector<Bytes> payloads;
    for (unsigned char i = 0; i < 10; ++i) payloads.emplace_back(100, std::byte{i});
    for (const Bytes& payload : payloads) {
      ASSERT_TRUE(pair.client().send(peer, {.header = {}, .payload = payload}).is_ok());
    }
    pair.run(kSecond);
    std::size_t next = 0;
    for (const Pair::Heard& heard : pair.at_server) {
      if (heard.kind != Event::Kind::kReceived) continue;
      ASSERT_EQ(heard.payload, payloads.at(next++)) << "whole, and in order";
    }
    const std::size_t received = Pair::count(pair.at_server, Event::Kind::kReceived);
    if (received == 10) continue;
    EXPECT_EQ(pair.network().counts().corrupted_messages, 1U);
    EXPECT_EQ(pair.at_server.back().kind, Event::Kind::kDown);
    EXPECT_EQ(pair.at_client.back().kind, Event::Kind::kDown);
    ++damaged;
  }
  EXPECT_GT(damaged, 10U);
}

// ---- several transports on a host

// Transports, each on its host, that listen and send each other bytes.
class Site {
 public:
  // One transport on each of these hosts.
  Site(SimNetworkOptions options, const std::vector<HostIndex>& hosts)
      : network_(std::move(options), Prng(1), trace_), received_(hosts.size()) {
    for (const HostIndex host : hosts) {
      const std::string name = "transport " + std::to_string(transports_.size());
      transports_.push_back(std::make_unique<SimTransport>(
          network_, SimTransportOptions{
                        .name = name, .host = host, .listen = Endpoint{name, 1}, .self = {}}));
    }
    network_.probes().on_arrival = [this](std::uint32_t, std::uint32_t to, auto) {
      received_[to - 1].push_back(network_.now());
    };
  }

  // From now on `count` messages of `bytes` are under way over a connection of their own.
  void send(std::size_t from, std::size_t to, std::size_t count, std::size_t bytes) {
    SimTransport& sender = *transports_[from];
    const PeerId peer = sender.connect({transports_[to]->name(), 1}, {}).value();
    run(kMillisecond);
    payloads_.emplace_back(bytes);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_TRUE(sender.send(peer, {.header = {}, .payload = payloads_.back()}).is_ok());
    }
  }
  void run(TimeNs span) {
    const TimeNs end = network_.now() + span;
    std::vector<Event> events(8);
    for (;;) {
      for (const auto& transport : transports_) {
        while (transport->poll(network_.now(), events) > 0) {
        }
      }
      if (network_.now() == end) return;
      network_.advance(std::min(end, std::max(network_.next_event_ns(), network_.now())));
    }
  }
  const SimNetwork& network() const { return network_; }
  std::size_t received(std::size_t at) const { return received_[at].size(); }
  // When this one got its last message.
  double last_s(std::size_t at) const {
    return static_cast<double>(received_[at].back()) / static_cast<double>(kSecond);
  }

 private:
  Trace trace_;
  SimNetwork network_;
  std::deque<Bytes> payloads_;
  std::vector<std::unique_ptr<SimTransport>> transports_;
  std::vector<std::vector<TimeNs>> received_;  // when, by transport
};

SimNetworkOptions slow_cards() {
  SimNetworkOptions options = steady();
  options.bytes_per_second = 1'000'000;
  options.memory_bytes_per_second = 1'000'000'000;
  options.window_bytes = 64 << 20;
  return options;
}

TEST(SimNetwork, what_stays_on_a_host_takes_the_time_of_its_memory_and_none_of_its_card) {
  Site site(slow_cards(), {1, 1, 2});
  site.send(0, 1, 10, 1'000'000);
  site.send(0, 2, 4, 250'000);
  site.send(1, 0, 10, 1'000'000);
  EXPECT_TRUE(site.network().is_within_host({.a = 2, .b = 1}));
  EXPECT_FALSE(site.network().is_within_host({.a = 1, .b = 3}));
  site.run(5 * kSecond);
  ASSERT_EQ(site.received(1), 10U);
  EXPECT_NEAR(site.last_s(1), 0.01, 0.002);
  ASSERT_EQ(site.received(0), 10U);
  EXPECT_NEAR(site.last_s(0), 0.01, 0.004) << "the other way at the same time";
  ASSERT_EQ(site.received(2), 4U);
  EXPECT_NEAR(site.last_s(2), 1.0, 0.01);
}

TEST(SimNetwork, a_transport_moves_what_others_of_its_host_send_it_one_after_the_other) {
  Site site(slow_cards(), {1, 1, 1, 1});
  site.send(0, 3, 50, 1'000'000);
  site.send(1, 3, 50, 1'000'000);
  site.send(0, 2, 1, 1);
  site.run(kSecond);
  ASSERT_EQ(site.received(3), 100U);
  EXPECT_NEAR(site.last_s(3), 0.1, 0.005);
  ASSERT_EQ(site.received(2), 1U);
  EXPECT_LT(site.last_s(2), 0.01) << "another one's connection takes its turn";
}

TEST(SimNetwork, transports_of_a_host_share_its_card_towards_other_hosts) {
  for (const bool is_shared : {false, true}) {
    Site sending(slow_cards(), {1, is_shared ? 1U : 2U, 3, 4});
    sending.send(0, 2, 4, 250'000);
    sending.send(1, 3, 4, 250'000);
    sending.run(5 * kSecond);
    Site receiving(slow_cards(), {1, is_shared ? 1U : 2U, 3, 4});
    receiving.send(2, 0, 4, 250'000);
    receiving.send(3, 1, 4, 250'000);
    receiving.run(5 * kSecond);
    EXPECT_NEAR(std::max(sending.last_s(2), sending.last_s(3)), is_shared ? 2 : 1, 0.01);
    EXPECT_NEAR(std::max(receiving.last_s(0), receiving.last_s(1)), is_shared ? 2 : 1, 0.01);
  }
}

// One connection has 20 messages of 0.1 s to send, then another one a word.
TEST(SimNetwork, a_card_sends_first_what_came_first_and_so_much_of_each_connection_at_a_time) {
  const struct {
    std::size_t at_sender;
    double waits_s;
  } cases[] = {{1, 0.1}, {2, 0.2}, {8, 0.8}, {64, 2}};
  for (const auto& each : cases) {
    SimNetworkOptions options = slow_cards();
    options.at_sender = each.at_sender;
    Site site(options, {1, 2, 3});
    site.send(0, 1, 20, 100'000);
    site.send(0, 2, 1, 1);
    site.run(5 * kSecond);
    ASSERT_EQ(site.received(2), 1U);
    EXPECT_NEAR(site.last_s(2), each.waits_s, 0.02) << each.at_sender;
    ASSERT_EQ(site.received(1), 20U);
    EXPECT_NEAR(site.last_s(1), 2, 0.01);
  }
}

// Two hosts send a third more than its card takes, then a fourth sends it a word.
TEST(SimNetwork, a_card_receives_first_what_reached_it_first_and_so_much_of_each_connection) {
  const struct {
    std::size_t at_receiver;
    double waits_s;
  } cases[] = {{1, 0.2}, {64, 1}};
  for (const auto& each : cases) {
    SimNetworkOptions options = slow_cards();
    options.at_receiver = each.at_receiver;
    Site site(options, {1, 2, 3, 3, 4});
    site.send(0, 2, 20, 100'000);
    site.send(1, 2, 20, 100'000);
    site.run(kSecond);
    site.send(4, 3, 1, 1);
    site.run(5 * kSecond);
    ASSERT_EQ(site.received(3), 1U);
    EXPECT_NEAR(site.last_s(3), 1 + each.waits_s, 0.11) << each.at_receiver;
    ASSERT_EQ(site.received(2), 40U);
    EXPECT_NEAR(site.last_s(2), 4, 0.11);
  }
}

TEST(SimNetwork, what_stays_on_a_host_is_neither_damaged_nor_repeated) {
  SimNetworkOptions options = slow_cards();
  options.chances.corrupt = 1;
  options.chances.repeat = 1;
  options.chances.may_repeat = [](std::span<const std::byte>) { return true; };
  Site site(options, {1, 1});
  site.send(0, 1, 20, 100);
  site.run(kSecond);
  EXPECT_EQ(site.received(1), 20U);
  EXPECT_EQ(site.network().counts().repeated_messages, 0U);
}

}  // namespace
}  // namespace byteps::sim
