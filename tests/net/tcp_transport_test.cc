// What is particular to TCP; the contract itself is tested in tests/conformance.
#include "net/tcp/tcp_transport.h"

#include <chrono>
#include <deque>
#include <thread>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/prng.h"
#include "tests/net/tcp_peer.h"

namespace byteps {
namespace {

PeerOptions connecting_options() {
  return {};
}

// ---- frames, however the bytes are cut

class TcpReceiving : public testing::Test {
 protected:
  void SetUp() override {
    socket_ = std::make_unique<BareSocket>(server_.address());
    ASSERT_TRUE(shake_hands(*socket_, server_, hello_of(Role::kWorker, 3)));
    ASSERT_TRUE(server_.until([&] { return server_.count(Event::Kind::kUp) == 1; }));
    peer_ = server_.seen().back().peer;
  }
  TurnedTcp server_;
  std::unique_ptr<BareSocket> socket_;
  PeerId peer_;
};

TEST_F(TcpReceiving, messages_byte_by_byte_are_the_same_messages) {
  TurnedTcp server;
  BareSocket socket(server.address());
  ASSERT_TRUE(shake_hands(socket, server, hello_of(Role::kWorker, 3)));
  ASSERT_TRUE(server.until([&] { return server.count(Event::Kind::kUp) == 1; }));
  Bytes bytes = numbered_frame(10, 4);
  append(bytes, numbered_frame(0, 0));
  append(bytes, numbered_frame(20, 0, 100));
  append(bytes, numbered_frame(5, 256));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_TRUE(socket.write(std::span(bytes).subspan(i, 1)));
    server.poll();
    server.transport().waiter().wait(kMillisecond);
  }
  ASSERT_TRUE(server.until([&] { return server.count(Event::Kind::kReceived) == 4; }));
  EXPECT_EQ(server.seen()[1].header, numbered(4));
  EXPECT_EQ(server.seen()[1].payload, numbered(10, 4));
  EXPECT_TRUE(server.seen()[2].payload.empty());
  EXPECT_EQ(server.seen()[3].payload, numbered(20, 100));
  EXPECT_EQ(server.seen()[4].header, numbered(256));
  EXPECT_EQ(server.seen()[4].payload, numbered(5, 256));
}

TEST_F(TcpReceiving, random_cuts_of_a_long_stream_give_the_same_messages) {
  Prng prng(1);
  struct Expected {
    Bytes header;
    Bytes payload;
  };
  std::deque<Expected> expected;
  Bytes stream;
  for (int i = 0; i < 300; ++i) {
    const std::size_t sizes[] = {prng.below(50), prng.below(5000), 32768, prng.below(400'000)};
    const std::size_t payload_bytes = i / 50 % 2 == 1 ? 32768 : sizes[prng.below(4)];
    Expected next{numbered(prng.below(257), prng.below(1000)),
                  numbered(payload_bytes, prng.below(1000))};
    append(stream, frame_of(next.header, next.payload));
    expected.push_back(std::move(next));
  }
  for (std::span<const std::byte> rest = stream; !rest.empty();) {
    const std::size_t piece = std::min<std::size_t>(rest.size(), 1 + prng.below(60'000));
    ASSERT_TRUE(socket_->write(rest.first(piece)));
    rest = rest.subspan(piece);
    for (std::uint64_t polls = 1 + prng.below(3); polls > 0; --polls) server_.poll();
  }
  ASSERT_TRUE(server_.until([&] { return server_.count(Event::Kind::kReceived) == 300; }));
  for (std::size_t i = 0; i < 300; ++i) {
    const auto& seen = server_.seen()[1 + i];
    ASSERT_TRUE(seen.header == expected[i].header) << i;
    ASSERT_TRUE(seen.payload == expected[i].payload) << i;
    ASSERT_FALSE(seen.is_shared);
  }
}

TEST_F(TcpReceiving, a_payload_that_is_half_here_when_its_sender_dies_is_not_given_out) {
  const Bytes message = numbered_frame(100'000, 0);
  ASSERT_TRUE(socket_->write(std::span(message).first(message.size() - 1)));
  server_.settle();
  socket_->close();
  ASSERT_TRUE(server_.until([&] { return server_.count(Event::Kind::kDown) == 1; }));
  EXPECT_EQ(server_.count(Event::Kind::kReceived), 0U);
}

TEST_F(TcpReceiving, one_busy_peer_does_not_keep_others_waiting) {
  BareSocket quiet(server_.address());
  ASSERT_TRUE(shake_hands(quiet, server_, hello_of(Role::kWorker, 4)));
  ASSERT_TRUE(server_.until([&] { return server_.count(Event::Kind::kUp) == 2; }));
  const PeerId quiet_peer = server_.seen().back().peer;
  Bytes flood;
  for (int i = 0; i < 20'000; ++i) append(flood, numbered_frame(0, 8));
  ASSERT_TRUE(socket_->write(flood));
  ASSERT_TRUE(quiet.write(numbered_frame(0, 0)));
  // 20,000 messages fill 625 spans of 32 events; the quiet one's comes within a few.
  int polls = 0;
  const auto heard = [&] {
    return std::any_of(server_.seen().begin(), server_.seen().end(), [&](const auto& event) {
      return event.kind == Event::Kind::kReceived && event.peer == quiet_peer;
    });
  };
  server_.transport().waiter().wait(kMillisecond);
  for (; polls < 20 && !heard(); ++polls) server_.poll();
  EXPECT_LT(polls, 20);
  EXPECT_TRUE(server_.until([&] { return server_.count(Event::Kind::kReceived) == 20'001; }));
}

TEST(TcpFairness, peers_that_all_have_more_than_a_poll_can_hold_take_turns) {
  constexpr std::size_t kPeers = 8;
  constexpr std::size_t kUnderWay = 6;  // messages of 32 KiB: three times what one poll can hold
  PeerOptions options = loopback_options();
  options.read_batch_bytes = 64 << 10;
  TurnedTcp server(std::move(options));
  const Bytes message = numbered_frame(32768, 0);
  std::vector<std::unique_ptr<BareSocket>> sockets;
  std::vector<PeerId> peers;
  for (std::size_t i = 0; i < kPeers; ++i) {
    sockets.push_back(std::make_unique<BareSocket>(server.address()));
    ASSERT_TRUE(shake_hands(*sockets[i], server, hello_of(Role::kWorker, 4)));
    ASSERT_TRUE(server.until([&] { return server.count(Event::Kind::kUp) == 1 + i; }));
    peers.push_back(server.seen().back().peer);
  }
  const auto received = [&](std::size_t i) {
    return static_cast<std::size_t>(std::count_if(
        server.seen().begin(), server.seen().end(), [&](const TurnedTcp::Seen& event) {
          return event.kind == Event::Kind::kReceived && event.peer == peers[i];
        }));
  };
  std::vector<std::size_t> written(kPeers);
  for (int polls = 0; polls < 64; ++polls) {
    for (std::size_t i = 0; i < kPeers; ++i) {
      for (; written[i] < received(i) + kUnderWay; ++written[i]) {
        ASSERT_TRUE(sockets[i]->write(message));
      }
    }
    server.poll();
  }
  // 64 polls hold about 128 messages. Were the first always first, the last would have none.
  for (std::size_t i = 0; i < kPeers; ++i) EXPECT_GE(received(i), 8U) << "peer " << i;
}

// ---- sleeping and waking

TEST(TcpWaiting, an_idle_transport_with_connections_sleeps_until_its_timeout) {
  TurnedTcp server;
  TurnedTcp client(connecting_options());
  const PeerId peer =
      client.transport().connect(server.address(), hello_of(Role::kWorker, 0)).value();
  ASSERT_TRUE(client.until([&] {
    server.poll();
    return client.count(Event::Kind::kUp) == 1;
  }));
  (void)client.transport().send(peer, {});
  ASSERT_TRUE(client.until([&] {
    server.poll();
    return server.count(Event::Kind::kReceived) == 1;
  }));
  client.settle();
  server.settle();
  // Nothing is under way: each wait lasts as long as it may. Three are enough to see a spin.
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) {
    client.transport().waiter().wait(5 * kMillisecond);
    EXPECT_EQ(client.poll(), 0U);
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(14));
  EXPECT_EQ(client.transport().next_deadline(), kNever);
}

TEST(TcpWaiting, a_wake_before_the_wait_is_not_lost_even_if_a_poll_comes_between) {
  TurnedTcp server;
  server.poll();
  server.poll();
  server.transport().waiter().wake();
  server.poll();                             // asks epoll, and learns of it
  server.transport().waiter().wait(kNever);  // would never return
  std::thread other([&] { server.transport().waiter().wake(); });
  server.transport().waiter().wait(kNever);
  other.join();
}

TEST(TcpWaiting, wait_returns_at_once_while_events_are_left_over) {
  TurnedTcp server;
  BareSocket socket(server.address());
  ASSERT_TRUE(shake_hands(socket, server, hello_of(Role::kWorker, 0)));
  ASSERT_TRUE(server.until([&] { return server.count(Event::Kind::kUp) == 1; }));
  Bytes bytes;
  for (int i = 0; i < 10; ++i) append(bytes, numbered_frame(0, 0));
  ASSERT_TRUE(socket.write(bytes));
  std::vector<Event> one(1);
  std::size_t received = 0;
  while (received < 10) {
    server.transport().waiter().wait(
        kNever);  // returns each time, although the bytes were read in the first turn
    received += server.transport().poll(server.now(), one);
  }
  EXPECT_EQ(received, 10U);
}

// ---- connecting

TEST(TcpConnecting, an_attempt_that_is_accepted_but_not_answered_times_out_by_the_given_time) {
  TurnedTcp silent;  // its kernel accepts, it is never turned
  TurnedTcp client(connecting_options());
  const PeerId peer =
      client.transport().connect(silent.address(), hello_of(Role::kWorker, 0)).value();
  client.settle();
  EXPECT_EQ(client.transport().next_deadline(), client.now() + 3 * kSecond);
  client.advance(3 * kSecond - 1);
  client.settle();
  EXPECT_TRUE(client.seen().empty());
  client.advance(1);
  client.settle();
  ASSERT_EQ(client.seen().size(), 1U);
  EXPECT_EQ(client.seen()[0].kind, Event::Kind::kDown);
  EXPECT_EQ(client.seen()[0].peer, peer);
  EXPECT_TRUE(client.seen()[0].why.is(Code::kTimeout));
  EXPECT_NE(client.seen()[0].why.message().find(silent.address().text()), std::string::npos);
}

TEST(TcpConnecting, time_spent_asleep_before_connect_does_not_count_against_it) {
  TurnedTcp server;
  TurnedTcp client(connecting_options());
  client.settle();
  (void)client.transport().connect(server.address(), hello_of(Role::kWorker, 0)).value();
  EXPECT_LE(client.transport().next_deadline(), client.now()) << "wants to be polled";
  client.advance(100 * kSecond);
  EXPECT_TRUE(client.until([&] {
    server.poll();
    return client.count(Event::Kind::kUp) == 1;
  }));
}

TEST(TcpConnecting, refusal_names_the_address_and_the_reason) {
  const Endpoint nobody = TurnedTcp().address();
  TurnedTcp client(connecting_options());
  (void)client.transport().connect(nobody, hello_of(Role::kWorker, 0)).value();
  ASSERT_TRUE(client.until([&] { return client.count(Event::Kind::kDown) == 1; }));
  EXPECT_EQ(client.seen()[0].why.text(), "Disconnected: " + nobody.text() + ": connection refused");
}

TEST(TcpConnecting, a_host_name_with_several_addresses_is_tried_at_each) {
  TurnedTcp server;  // 127.0.0.1 only; localhost may be ::1 first
  TurnedTcp client(connecting_options());
  (void)client.transport()
      .connect({"localhost", server.address().port}, hello_of(Role::kWorker, 0))
      .value();
  EXPECT_TRUE(client.until([&] {
    server.poll();
    return client.count(Event::Kind::kUp) == 1;
  }));
}

TEST(TcpConnecting, an_unknown_host_name_ends_in_down_that_says_so) {
  TurnedTcp client(connecting_options());
  // .invalid never exists, RFC 2606
  (void)client.transport().connect({"nobody.invalid", 9}, hello_of(Role::kWorker, 0)).value();
  ASSERT_TRUE(client.until([&] { return client.count(Event::Kind::kDown) == 1; }));
  EXPECT_NE(client.seen()[0].why.message().find("nobody.invalid:9: cannot look up"),
            std::string::npos)
      << client.seen()[0].why.text();
}

TEST(TcpConnecting, what_was_sent_just_before_close_still_arrives) {
  TurnedTcp server;
  TurnedTcp client(connecting_options());
  const PeerId peer =
      client.transport().connect(server.address(), hello_of(Role::kWorker, 0)).value();
  ASSERT_TRUE(client.until([&] {
    server.poll();
    return client.count(Event::Kind::kUp) == 1 && server.count(Event::Kind::kUp) == 1;
  }));
  // Unread input at the closing side is what turns a naive close into a reset.
  const Bytes noise = numbered(100'000);
  ASSERT_TRUE(
      server.transport().send(server.seen()[0].peer, {.header = {}, .payload = noise}).is_ok());
  server.settle();
  const Bytes goodbye = numbered(20'000);
  ASSERT_TRUE(client.transport().send(peer, {.header = {}, .payload = goodbye}).is_ok());
  client.transport().close(peer, {Code::kCancelled, "leaving"});
  ASSERT_TRUE(client.until([&] { return client.count(Event::Kind::kDown) == 1; }));
  ASSERT_TRUE(server.until([&] {
    client.poll();
    return server.count(Event::Kind::kDown) == 1;
  }));
  EXPECT_EQ(server.count(Event::Kind::kReceived), 1U);
  EXPECT_NE(server.seen().back().why.message().find("closed the connection"), std::string::npos);
}

TEST(TcpConnecting, a_closed_connection_whose_peer_says_nothing_is_dropped_after_its_time) {
  TurnedTcp server;
  BareSocket socket(server.address());
  ASSERT_TRUE(shake_hands(socket, server, hello_of(Role::kWorker, 0)));
  ASSERT_TRUE(server.until([&] { return server.count(Event::Kind::kUp) == 1; }));
  server.transport().close(server.seen()[0].peer, {Code::kCancelled, "leaving"});
  server.settle();
  EXPECT_EQ(server.count(Event::Kind::kDown), 1U);
  EXPECT_EQ(server.transport().next_deadline(), server.now() + kSecond);
  server.advance(kSecond);
  server.settle();
  EXPECT_EQ(server.transport().next_deadline(), kNever);
}

// ---- listening

TEST(TcpListening, on_all_addresses_both_families_reach_one_port) {
  PeerOptions options = loopback_options();
  options.listen = {Endpoint{"", 0}};
  TurnedTcp server(std::move(options));
  const std::uint16_t port = server.address().port;
  EXPECT_NE(port, 0);
  TurnedTcp client(connecting_options());
  const PeerId peer =
      client.transport().connect({"127.0.0.1", port}, hello_of(Role::kWorker, 0)).value();
  ASSERT_TRUE(client.until([&] {
    server.poll();
    return client.count(Event::Kind::kUp) == 1 && server.count(Event::Kind::kUp) == 1;
  }));
  client.transport().close(peer, {Code::kCancelled, "leaving"});
  ASSERT_TRUE(server.until([&] {
    client.poll();
    return server.count(Event::Kind::kDown) == 1;
  }));
  EXPECT_EQ(server.seen().back().why.message().find("127.0.0.1:"), 0U)
      << "an IPv4 address looks like one";
  if (!local_address_towards({"::1", 9}).is_ok()) GTEST_SKIP() << "no IPv6 here";
  (void)client.transport().connect({"::1", port}, hello_of(Role::kWorker, 0)).value();
  EXPECT_TRUE(client.until([&] {
    server.poll();
    return client.count(Event::Kind::kUp) == 2;
  }));
}

TEST(TcpListening, loopback_only_neither_listens_at_nor_connects_to_other_addresses) {
  PeerOptions options;
  options.loopback_only = true;
  for (const char* host : {"", "0.0.0.0", "::"}) {
    options.listen = {{host, 0}};
    EXPECT_TRUE(make_transport(options, Log("test", LogLevel::kSilent, {}))
                    .status()
                    .is(Code::kInvalidArgument))
        << host;
  }
  options.listen = {{"127.0.0.1", 0}};
  auto transport = make_transport(options, Log("test", LogLevel::kSilent, {}));
  ASSERT_TRUE(transport.is_ok()) << transport.status().message();
  const Endpoint own = transport.value()->listening().front();
  EXPECT_TRUE(transport.value()->connect(own, {}).is_ok());
  const auto outside = transport.value()->connect({"192.0.2.1", 9000}, {});
  EXPECT_TRUE(outside.status().is(Code::kInvalidArgument));
  EXPECT_NE(outside.status().message().find("192.0.2.1:9000 is not on loopback"),
            std::string::npos);
}

TEST(TcpListening, a_taken_port_is_a_system_error_that_names_it) {
  TurnedTcp first;
  PeerOptions options = loopback_options();
  options.listen = {first.address()};
  const auto second = make_transport(std::move(options), Log("test", LogLevel::kSilent, {}));
  ASSERT_FALSE(second.is_ok());
  EXPECT_TRUE(second.status().is(Code::kSystem));
  EXPECT_NE(second.status().message().find(first.address().text()), std::string::npos);
}

TEST(TcpListening, set_self_is_what_later_connections_are_told) {
  TurnedTcp server;
  TurnedTcp client(connecting_options());
  Hello self = hello_of(Role::kServer, 0);
  self.rank = 12;
  self.epoch = Epoch(4);
  server.transport().set_self(self);
  (void)client.transport().connect(server.address(), hello_of(Role::kWorker, 0)).value();
  ASSERT_TRUE(client.until([&] {
    server.poll();
    return client.count(Event::Kind::kUp) == 1;
  }));
  EXPECT_EQ(client.seen()[0].hello, self);
}

// Takes all free descriptors of the process until it is destroyed.
class NoDescriptors {
 public:
  NoDescriptors() {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    before_ = limit;
    const int next = ::dup(0);
    ::close(next);
    limit.rlim_cur = static_cast<rlim_t>(next);
    setrlimit(RLIMIT_NOFILE, &limit);
    while (true) {
      const int taken = ::dup(0);
      if (taken < 0) break;
      taken_.push_back(taken);
    }
  }
  ~NoDescriptors() {
    for (const int taken : taken_) ::close(taken);
    setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

TEST(TcpListening,
     without_descriptors_one_who_waits_is_told_why_accepting_rests_and_connect_says_so) {
  TurnedTcp server;
  TurnedTcp client(connecting_options());
  BareSocket first(server.address());
  BareSocket waiting(server.address());
  {
    const NoDescriptors none;
    const auto refused = client.transport().connect(server.address(), hello_of(Role::kWorker, 0));
    ASSERT_FALSE(refused.is_ok());
    EXPECT_TRUE(refused.status().is(Code::kSystem));
    EXPECT_NE(refused.status().message().find("ulimit -n"), std::string::npos);
    server.settle();
    EXPECT_EQ(server.transport().next_deadline(), server.now() + 100 * kMillisecond);
    // Only one attempt was made in all these polls.
    EXPECT_EQ(server.log().find("cannot accept"), server.log().rfind("cannot accept"));
  }
  const std::vector<std::byte> refusal = first.read_some();
  ASSERT_GT(refusal.size(), tcp::kRecordHeadBytes);
  const Status why = frame::decode_refusal(std::span(refusal).subspan(tcp::kRecordHeadBytes));
  EXPECT_TRUE(why.is(Code::kSystem));
  EXPECT_NE(why.message().find("no file descriptor left"), std::string::npos) << why.text();
  EXPECT_TRUE(why.is_because_of(CauseKind::kNoDescriptors) && why.cause().is_of_peer);
  EXPECT_TRUE(first.has_ended());
  server.advance(100 * kMillisecond);
  EXPECT_TRUE(shake_hands(waiting, server, hello_of(Role::kWorker, 0)));
  EXPECT_TRUE(server.until([&] { return server.count(Event::Kind::kUp) == 1; }));
}

// ---- addresses

TEST(TcpAddress, of_this_machine_are_found_by_target_and_by_interface) {
  EXPECT_EQ(local_address_towards({"127.0.0.1", 9}).value(), "127.0.0.1");
  EXPECT_EQ(address_of_interface("lo").value(), "127.0.0.1");
  const auto unknown = address_of_interface("nosuch0");
  ASSERT_FALSE(unknown.is_ok());
  EXPECT_TRUE(unknown.status().is(Code::kInvalidArgument));
  EXPECT_NE(unknown.status().message().find("lo"), std::string::npos) << "names those there are";
}

TEST(TcpAddress, text_and_port_survive_the_way_through_a_socket_address) {
  for (const Endpoint& endpoint :
       {Endpoint{"10.1.2.3", 9000}, Endpoint{"::1", 1}, Endpoint{"2001:db8::7", 65535}}) {
    EXPECT_EQ(resolve(endpoint).value().at(0).endpoint(), endpoint);
  }
  EXPECT_EQ(resolve({"::ffff:10.1.2.3", 5}).value().at(0).endpoint(), (Endpoint{"10.1.2.3", 5}));
  EXPECT_TRUE(resolve({"10.0.0.1", 0}).status().is(Code::kInvalidArgument));
  EXPECT_TRUE(resolve({"", 5}).status().is(Code::kInvalidArgument));
}

}  // namespace
}  // namespace byteps
