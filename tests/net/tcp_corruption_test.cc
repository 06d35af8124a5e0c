// Goal: a bit that changes on the way ends the connection and is never acted on; and the checksum is that of what was
// sent, however often the memory changes. Method: real connections, with the stream's bytes cut and changed by hand.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "net/frame/inbox.h"
#include "net/frame/outbox.h"
#include "tests/net/tcp_peer.h"

namespace byteps {
namespace {

class TcpCorruption : public testing::Test {
 protected:
  std::unique_ptr<BareSocket> make_up() {
    auto socket = std::make_unique<BareSocket>(server_.address());
    const std::size_t before = server_.count(Event::Kind::kUp);
    EXPECT_TRUE(shake_hands(*socket, server_, hello_of(Role::kWorker, 1)));
    EXPECT_TRUE(server_.until([&] { return server_.count(Event::Kind::kUp) > before; }));
    peer_ = server_.seen().back().peer;
    return socket;
  }
  // Sends `bytes` on a connection of their own, and waits for its end. Its last event.
  const TurnedTcp::Seen& end_of(std::span<const std::byte> bytes) {
    const auto socket = make_up();
    const std::size_t downs = server_.count(Event::Kind::kDown);
    EXPECT_TRUE(socket->write(bytes));
    EXPECT_TRUE(server_.until([&] { return server_.count(Event::Kind::kDown) > downs; }));
    return server_.seen().back();
  }
  TurnedTcp server_;
  PeerId peer_;
};

TEST_F(TcpCorruption, any_bit_of_a_frame_ends_the_connection_and_the_frame_is_not_reported) {
  const Bytes good = numbered_frame(40, 9);
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    append(bytes, good);  // what follows does not help
    const auto& end = end_of(bytes);
    ASSERT_TRUE(end.why.is(Code::kDisconnected));
    ASSERT_NE(end.why.message().find("corrupted on the way (CRC32C differs)"), std::string::npos)
        << "bit " << bit << ": " << end.why.message();
    ASSERT_NE(end.why.message().find("127.0.0.1:"), std::string::npos);
    ASSERT_EQ(server_.count(Event::Kind::kReceived), 0U) << "bit " << bit;
  }
  EXPECT_EQ(server_.log().find("corrupted"), server_.log().rfind("corrupted")) << "one line";
}

TEST_F(TcpCorruption, in_a_large_payload_it_is_found) {
  Prng prng(6);
  for (int i = 0; i < 40; ++i) {
    const std::size_t payload_bytes = 100'000 + prng.below(500'000);
    Bytes bytes = numbered_frame(payload_bytes, 48);
    const std::size_t at =
        frame::kPrefixBytes + 48 + prng.below(payload_bytes + frame::kTrailerBytes);
    bytes[at] ^= static_cast<std::byte>(1 << prng.below(8));
    const auto& end = end_of(bytes);
    ASSERT_NE(end.why.message().find("CRC32C differs"), std::string::npos);
    ASSERT_EQ(server_.count(Event::Kind::kReceived), 0U);
  }
}

TEST_F(TcpCorruption, the_other_side_is_told_and_passes_it_on_in_its_own_error) {
  const auto socket = make_up();
  const Bytes payload = numbered(1000);
  ASSERT_TRUE(
      server_.transport().send(peer_, {.header = {}, .payload = payload, .token = 1}).is_ok());
  Bytes bytes = numbered_frame(40, 9);
  bytes[50] ^= std::byte{4};
  ASSERT_TRUE(socket->write(bytes));
  ASSERT_TRUE(server_.until([&] { return server_.count(Event::Kind::kDown) == 1; }));
  Bytes heard;
  ASSERT_TRUE(server_.until([&] {
    append(heard, socket->read_some());
    return socket->has_ended();
  }));
  // What was sent before, and then why: on to another server, as if from a client of it.
  const auto other = make_up();
  ASSERT_TRUE(other->write(heard));
  ASSERT_TRUE(server_.until([&] { return server_.count(Event::Kind::kDown) == 2; }));
  EXPECT_EQ(server_.seen()[server_.seen().size() - 2].payload, payload);
  EXPECT_TRUE(server_.seen().back().why.is(Code::kDisconnected));
  EXPECT_NE(server_.seen().back().why.message().find(
                "it ended the connection: a frame from it was corrupted on the way"),
            std::string::npos)
      << server_.seen().back().why.message();
  // That is not answered with another one.
  server_.settle();
  EXPECT_TRUE(other->read_some().empty());
  EXPECT_TRUE(other->has_ended());
}

TEST_F(TcpCorruption, a_farewell_is_printable_and_short_whatever_was_said) {
  const auto socket = make_up();
  Bytes bytes = frame::encode_farewell({Code::kDisconnected, std::string("\x1b[31m") + "red"});
  ASSERT_TRUE(socket->write(bytes));
  ASSERT_TRUE(server_.until([&] { return server_.count(Event::Kind::kDown) == 1; }));
  EXPECT_NE(server_.seen().back().why.message().find("?[31mred"), std::string::npos);
}

// What an Outbox gives out in pieces of any size, of which the "kernel" takes any part; `meanwhile` happens between
// two calls.
Bytes drain(frame::Outbox& outbox, Prng& prng, const std::function<void()>& meanwhile) {
  Bytes stream;
  while (outbox.unsent_bytes() > 0) {
    std::array<iovec, 5> entries;
    std::size_t bytes = 0;
    const std::size_t count =
        outbox.gather(std::span(entries).first(1 + prng.below(5)), 1 + prng.below(3000), bytes);
    Bytes gathered;
    for (std::size_t i = 0; i < count; ++i) {
      const auto* at = static_cast<const std::byte*>(entries[i].iov_base);
      append(gathered, {at, entries[i].iov_len});
    }
    EXPECT_EQ(gathered.size(), bytes);
    const std::size_t taken = prng.chance(0.3) ? bytes : prng.below(bytes + 1);
    append(stream, std::span(gathered).first(taken));
    outbox.advance(taken);
    meanwhile();
  }
  return stream;
}

// Every frame of `stream` as it came; an error ends it.
std::vector<Bytes> parsed(std::span<const std::byte> stream, Status& status) {
  std::vector<Bytes> payloads;
  frame::Staging staging(64 << 10);
  frame::Inbox inbox;
  std::vector<Event> events(8);
  while (!stream.empty() && status.is_ok()) {
    staging.begin_poll();
    if (!inbox.has_backlog()) {
      const frame::Inbox::Places places = inbox.places(staging, 64 << 10);
      std::size_t bytes = 0;
      for (int i = 0; i < places.count && !stream.empty(); ++i) {
        const iovec& entry = places.entries[static_cast<std::size_t>(i)];
        const std::size_t piece = std::min(entry.iov_len, stream.size());
        std::memcpy(entry.iov_base, stream.data(), piece);
        stream = stream.subspan(piece);
        bytes += piece;
      }
      inbox.received(bytes, places, staging);
    }
    do {
      frame::EventSpan out(events);
      status = inbox.parse(PeerId(1), staging, out);
      for (std::size_t i = 0; i < out.count(); ++i) {
        payloads.emplace_back(events[i].payload.begin(), events[i].payload.end());
      }
    } while (status.is_ok() && inbox.has_backlog());
  }
  return payloads;
}

TEST(OutboxChecksum, is_that_of_what_was_sent_however_the_calls_are_cut) {
  Prng prng(8);
  for (int round = 0; round < 50; ++round) {
    frame::Outbox outbox;
    std::vector<Bytes> payloads;
    for (int i = 0; i < 12; ++i) {
      const std::size_t sizes[] = {0, prng.below(20), prng.below(3000), 9000};
      payloads.push_back(numbered(sizes[prng.below(4)], prng.below(1000)));
    }
    for (const Bytes& payload : payloads) {
      std::optional<std::uint32_t> crc;
      if (prng.chance(0.3)) crc = crc32c(0, payload);
      outbox.push({.header = std::span(payload).first(std::min<std::size_t>(payload.size(), 7)),
                   .payload = payload,
                   .payload_crc = prng.chance(0.7) ? &crc : nullptr});
      EXPECT_EQ(crc.value_or(crc32c(0, payload)), crc32c(0, payload)) << "kept for the next";
    }
    Status status;
    EXPECT_EQ(parsed(drain(outbox, prng, [] {}), status), payloads);
    EXPECT_TRUE(status.is_ok()) << status.text();
    EXPECT_TRUE(outbox.has_sent());
  }
}

TEST(OutboxChecksum, fits_what_was_sent_when_the_memory_is_overwritten_between_the_calls) {
  // A repeated push whose memory an answer lands in meanwhile: what arrives is a mixture, and not taken for
  // damage.
  Prng prng(9);
  for (int round = 0; round < 50; ++round) {
    frame::Outbox outbox;
    std::vector<Bytes> payloads(6, numbered(5000));
    for (const Bytes& payload : payloads) outbox.push({.header = {}, .payload = payload});
    const Bytes stream = drain(outbox, prng, [&] {
      Bytes& payload = payloads[prng.below(payloads.size())];
      payload[prng.below(payload.size())] = static_cast<std::byte>(prng.next());
    });
    Status status;
    EXPECT_EQ(parsed(stream, status).size(), payloads.size());
    EXPECT_TRUE(status.is_ok()) << status.text();
  }
}

}  // namespace
}  // namespace byteps
