// Goal: bytes from strangers end their own connection and nothing else (T7), within limits of bytes and
// time. Method: a bare socket says the bytes, while a good connection to the same transport goes on
// working.
#include <algorithm>
#include <cstring>
#include <deque>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "tests/net/tcp_peer.h"

namespace byteps {
namespace {

class TcpHostile : public testing::Test {
 protected:
  // A connection of bare bytes that has proved itself and is up.
  std::unique_ptr<BareSocket> make_up() {
    auto socket = std::make_unique<BareSocket>(server_.address());
    const std::size_t before = server_.count(Event::Kind::kUp);
    EXPECT_TRUE(shake_hands(*socket, server_, hello_of(Role::kWorker, 1)));
    EXPECT_TRUE(server_.until([&] { return server_.count(Event::Kind::kUp) > before; }));
    return socket;
  }

  // The stranger is cut off, and a newcomer is served as ever.
  void expect_only_it_ends(BareSocket& stranger) {
    EXPECT_TRUE(server_.until([&] { return stranger.has_ended(); }));
    const std::size_t received = server_.count(Event::Kind::kReceived);
    const auto good = make_up();
    EXPECT_TRUE(good->write(numbered_frame(3, 2)));
    ASSERT_TRUE(
        server_.until([&] { return server_.count(Event::Kind::kReceived) == received + 1; }));
    EXPECT_EQ(server_.seen().back().payload, numbered(3, 2));
  }

  TurnedTcp server_;
};

TEST_F(TcpHostile, bytes_that_are_no_hello_are_refused_before_anyone_hears_of_them) {
  BareSocket stranger(server_.address());
  const char* text = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";
  ASSERT_TRUE(stranger.write(std::as_bytes(std::span(text, strlen(text)))));
  expect_only_it_ends(stranger);
  EXPECT_NE(server_.log().find("does not speak our protocol"), std::string::npos);
}

TEST_F(TcpHostile, a_first_record_beyond_4_kib_is_refused_by_its_length) {
  Bytes bytes = tcp::encode_hello_record(hello_of(Role::kWorker, 1), {});
  bytes[6] = std::byte{0xff};
  bytes[7] = std::byte{0xff};
  BareSocket stranger(server_.address());
  ASSERT_TRUE(stranger.write(bytes));
  expect_only_it_ends(stranger);
  EXPECT_NE(server_.log().find("too long"), std::string::npos);
}

TEST_F(TcpHostile, random_first_records_are_refused) {
  Prng prng(5);
  for (int i = 0; i < 60; ++i) {
    Bytes bytes = tcp::encode_hello_record(hello_of(Role::kWorker, 1), {});
    const std::size_t body_bytes = bytes.size() - tcp::kRecordHeadBytes;
    // Half of them with a good start, so that the body's decoder is reached.
    for (std::size_t k = i % 2 == 0 ? 0 : tcp::kRecordHeadBytes; k < bytes.size(); ++k) {
      bytes[k] = static_cast<std::byte>(prng.next());
    }
    ASSERT_EQ(bytes.size(), tcp::kRecordHeadBytes + body_bytes);
    BareSocket stranger(server_.address());
    ASSERT_TRUE(stranger.write(bytes));
    if (i % 2 == 1) {
      ASSERT_TRUE(server_.until([&] { return stranger.has_ended(); })) << i;
    }
    stranger.close();
  }
  server_.settle();
  EXPECT_EQ(server_.count(Event::Kind::kUp), 0U);
  BareSocket last(server_.address());
  ASSERT_TRUE(last.write(Bytes(8)));
  expect_only_it_ends(last);
}

TEST_F(TcpHostile, who_says_nothing_is_dropped_after_5_seconds_and_not_before) {
  BareSocket silent(server_.address());
  BareSocket slow(server_.address());
  Bytes hello = tcp::encode_hello_record(hello_of(Role::kWorker, 1), {});
  server_.settle();
  EXPECT_EQ(server_.transport().next_deadline(), server_.now() + 5 * kSecond);
  // A byte a second does not buy more time.
  for (std::size_t i = 0; i < 4; ++i) {
    server_.advance(kSecond);
    ASSERT_TRUE(slow.write(std::span(hello).subspan(i, 1)));
    server_.settle();
  }
  EXPECT_FALSE(silent.has_ended());
  EXPECT_FALSE(slow.has_ended());
  server_.advance(kSecond);
  EXPECT_TRUE(server_.until([&] { return silent.has_ended() && slow.has_ended(); }));
  EXPECT_TRUE(server_.seen().empty());
  EXPECT_EQ(server_.transport().next_deadline(), kNever);
}

// That of a frame with a header and a payload.
Bytes prefix_of_kind(std::uint8_t kind) {
  Bytes bytes = prefix_of(1, 1);
  bytes[6] = std::byte{kind};
  constexpr std::size_t kCrcAt = frame::kPrefixBytes - sizeof(std::uint32_t);
  const std::uint32_t crc = crc32c(0, std::span(bytes).first(kCrcAt));
  std::memcpy(bytes.data() + kCrcAt, &crc, sizeof crc);
  return bytes;
}

TEST_F(TcpHostile, a_prefix_beyond_the_limits_ends_the_connection_with_what_was_wrong) {
  const std::vector<Bytes> prefixes = {
      prefix_of(static_cast<std::uint32_t>(kPayloadBytesMax) + 1, 0),
      prefix_of(0xffffffff, 0),
      prefix_of(0, static_cast<std::uint16_t>(kHeaderBytesMax) + 1),
      prefix_of(0, 0xffff),
      prefix_of_kind(2),  // an aside with a payload
      prefix_of_kind(4),
      prefix_of_kind(0xff)};
  for (const Bytes& prefix : prefixes) {
    const auto socket = make_up();
    const PeerId peer = server_.seen().back().peer;
    const std::size_t downs = server_.count(Event::Kind::kDown);
    ASSERT_TRUE(socket->write(prefix));
    ASSERT_TRUE(server_.until([&] { return server_.count(Event::Kind::kDown) == downs + 1; }));
    EXPECT_EQ(server_.seen().back().peer, peer);
    EXPECT_NE(server_.seen().back().why.message().find("no frame"), std::string::npos);
    EXPECT_NE(server_.seen().back().why.message().find("127.0.0.1:"), std::string::npos);
    expect_only_it_ends(*socket);
  }
}

TEST_F(TcpHostile, a_message_cut_off_at_any_byte_never_arrives) {
  const Bytes message = numbered_frame(300, 40);
  for (std::size_t cut = 1; cut < message.size(); cut += 17) {
    const auto socket = make_up();
    const std::size_t downs = server_.count(Event::Kind::kDown);
    ASSERT_TRUE(socket->write(message));
    ASSERT_TRUE(socket->write(std::span(message).first(cut)));
    socket->close();
    ASSERT_TRUE(server_.until([&] { return server_.count(Event::Kind::kDown) > downs; }));
  }
  const std::size_t connections = server_.count(Event::Kind::kUp);
  EXPECT_EQ(server_.count(Event::Kind::kReceived), connections) << "only the whole ones";
  EXPECT_EQ(server_.count(Event::Kind::kDown), connections);
}

TEST_F(TcpHostile, random_bytes_after_the_hello_end_only_that_connection) {
  Prng prng(3);
  for (int i = 0; i < 40; ++i) {
    const auto socket = make_up();
    Bytes bytes(1 + prng.below(5000));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.next());
    (void)socket->write(bytes);
    server_.settle();
  }
  const auto last = make_up();
  ASSERT_TRUE(last->write(prefix_of(0xffffffff, 0)));
  expect_only_it_ends(*last);
}

TEST_F(TcpHostile, a_huge_promised_payload_that_does_not_come_costs_little_and_ends_with_it) {
  std::vector<std::unique_ptr<BareSocket>> sockets;
  const Bytes promise = numbered_frame(kPayloadBytesMax, 256);
  for (int i = 0; i < 20; ++i) {
    sockets.push_back(make_up());
    ASSERT_TRUE(sockets.back()->write(std::span(promise).first(700)));
  }
  server_.settle();
  EXPECT_EQ(server_.count(Event::Kind::kReceived), 0U);
  sockets.clear();
  EXPECT_TRUE(server_.until([&] { return server_.count(Event::Kind::kDown) == 20; }));
}

TEST_F(TcpHostile, a_peer_that_does_not_read_gets_a_full_window_and_no_more_memory) {
  const auto socket = make_up();
  const PeerId peer = server_.seen().back().peer;
  const Bytes payload = numbered(64 << 10);
  std::size_t accepted = 0;
  for (int quiet = 0; quiet < 20;) {
    const Status status =
        server_.transport().send(peer, {.header = {}, .payload = payload, .token = accepted});
    if (status.is_ok()) {
      ++accepted;
      quiet = 0;
    } else {
      ASSERT_TRUE(status.is(Code::kAgain));
      quiet += server_.poll() == 0 ? 1 : 0;
    }
    ASSERT_LT(accepted, 10'000U) << "nothing stops it";
  }
  EXPECT_LE(accepted - server_.count(Event::Kind::kSent), (4U << 20) / payload.size());
  socket->close();
  ASSERT_TRUE(server_.until([&] { return server_.count(Event::Kind::kDown) == 1; }));
  EXPECT_EQ(server_.count(Event::Kind::kSent), accepted);
}

TEST_F(TcpHostile, connections_beyond_the_maximum_are_turned_away_and_the_others_stay) {
  PeerOptions options = loopback_options();
  options.connections_max = 3;
  TurnedTcp small(std::move(options));
  std::deque<BareSocket> sockets;
  for (int i = 0; i < 5; ++i) {
    sockets.emplace_back(small.address());
    EXPECT_EQ(shake_hands(sockets.back(), small, hello_of(Role::kWorker, 1)), i < 3);
    small.settle();
  }
  small.settle();
  EXPECT_TRUE(sockets[3].has_ended() && sockets[4].has_ended());
  EXPECT_EQ(small.count(Event::Kind::kUp), 3U);
  EXPECT_EQ(small.count(Event::Kind::kDown), 0U);
}

TEST_F(TcpHostile, a_refusal_full_of_control_characters_reaches_the_log_harmless) {
  // The other side is a bare listener: a TcpTransport connects to it and is refused.
  Bytes body(200, std::byte{0x1b});
  std::fill(body.begin(), body.begin() + 4, std::byte{0});
  const Status status = frame::decode_refusal(body);
  EXPECT_TRUE(status.is(Code::kMismatch)) << "never ok";
  EXPECT_EQ(status.message().find('\x1b'), std::string::npos);
  EXPECT_FALSE(frame::decode_refusal({}).is_ok());
}

}  // namespace
}  // namespace byteps
